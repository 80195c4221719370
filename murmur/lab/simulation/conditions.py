"""How long the rounds of a simulated network are, and what its machines and lines take in one.

On the wide clock a node idles for most of a round. On a fitted clock a round is as short as the plan of a spec allows
(murmur/plan/clock_fit.py), on machines and lines that take what the plan says: who waits for anybody is late.
"""

from dataclasses import dataclass

from murmur.lab.simulation.chain import BLOCK_SECONDS
from murmur.lab.simulation.machine import COMPRESSION, Line
from murmur.lab.simulation.modelled_replica import MODEL, Costs
from murmur.plan import presets
from murmur.plan.clock_fit import fit
from murmur.plan.requirements import Plan
from murmur.protocol.layout import Layout
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.spec import ClockSpec, GauntletSpec
from murmur.training.sizes import Sizes
from sparseloco.wire import plaintext_bytes

FINALITY_LAG = 3
START_BLOCK, FITTED_START_BLOCK = 12, 36
"""On a fitted clock everybody needs minutes for theta_0 before the first round."""
GPUS, GPU_BYTES = 8, 180 * 10**9
"""The machine that `murmur plan` assumes."""


@dataclass(frozen=True)
class Conditions:
    """`costs`: of a machine of pace 1. `spread`: how far paces differ from 1. `steps`: inner steps of a round."""

    clock: ClockSpec
    costs: Costs
    line: Line
    spread: float
    steps: int
    gauntlet: GauntletSpec


def rules(places: int, weight_rounds: int) -> GauntletSpec:
    """The constants of a simulated run. Peers are judged leniently: who works honestly is the arena's subject."""
    return GauntletSpec(
        contributors=places,
        reserve=2,
        evaluations=places,
        sample_sequences=8,
        references=1,
        copy_overlap=1.0,
        proof_floor=0.0,
        proof_allowance=1000.0,
        score_floor=0.0,
        weight_rounds=weight_rounds,
    )


WIDE = Conditions(
    clock=ClockSpec(
        start_block=START_BLOCK,
        round_blocks=86,
        commit=44,
        reveal=50,
        words=84,
        finality_blocks=FINALITY_LAG,
        tempo=360,
        block_seconds=BLOCK_SECONDS,
    ),
    costs=Costs(270.0),
    line=Line(),
    spread=0.2,
    steps=1,
    gauntlet=rules(places=4, weight_rounds=2),
)
"""Seventeen minutes a round, twelve of them idle."""


def fitted(source: str) -> Conditions:
    """Return those of the preset or spec file `source`, planned as `murmur plan --fit` does. A simulated payload stands
    for one of the spec's, and what is evaluated in a full round takes as long as in the spec's. Raises ConfigError."""
    plan = fit(Plan(presets.read(source).first, GPUS, GPU_BYTES))
    miner, validator = ({t.phase.name: t.seconds for t in plan.timeline(role)} for role in ("miner", "validator"))
    gauntlet = rules(plan.spec.gauntlet.contributors, plan.spec.gauntlet.weight_rounds)
    asked, rates = Sizes(plan.spec.model_copy(update={"gauntlet": gauntlet})), plan.rates
    calls = asked.losses / gauntlet.sample_sequences
    object_bytes = ENVELOPE_BYTES + plaintext_bytes(Layout.of(MODEL.shapes(), COMPRESSION.k))
    large = plan.payload_bytes / object_bytes
    costs = Costs(
        inner=plan.compute_seconds,
        compress=miner["compress"] + miner["seal"] + miner["save sealed"],
        outer=miner["open payloads"] + miner["outer step"] + miner["load weights"],
        probe=validator["probe"] / calls,
        sequence=validator["losses"] / asked.losses,
        spread=plan.margin / 4,
    )
    return Conditions(
        _scaled(plan.spec.clock, large),
        costs,
        Line(rates.up.one, rates.down.one, large),
        plan.margin / 4,
        plan.spec.inner.steps,
        gauntlet,
    )


def _scaled(clock: ClockSpec, large: float) -> ClockSpec:
    """Return the clock with links on which a simulated payload takes as long as one of the spec's on its own: nodes
    derive time-outs from them."""
    links = {"upload_mbps": clock.upload_mbps / large, "download_mbps": clock.download_mbps / large}
    return clock.model_copy(update={"start_block": FITTED_START_BLOCK} | links)
