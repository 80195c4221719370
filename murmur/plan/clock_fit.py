"""The shortest clock with which a run's nodes are in time on given machines and links, computed by the plan."""

from dataclasses import replace
from math import ceil

from pydantic import ValidationError

from murmur.plan.requirements import Plan
from murmur.plan.verification import can_repeat
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import POSTS_PER_EPOCH, WINDOW_MARGIN_BLOCKS, RunSpec

SHORTEST_REVEAL = 5
"""Blocks from the commit deadline to the reveal deadline: a key is small, but a machine or a store may stall for a
minute now and then."""
VOTE_SPARE = 2
"""Blocks to spare for a vote: the chain may miss one, and a validator adds peers that others name."""
LONGEST = 10_000
"""Longest round, in blocks."""
CHECKPOINTS = 8
"""Intervals between checkpoints are tried in steps of that many rounds .."""
LONGEST_INTERVAL = 256
""".. up to this one."""


def fit(plan: Plan) -> Plan:
    """Return the plan with the shortest round in which every deadline is met, and in which a validator of a run with
    traces can repeat a miner's steps.

    Windows are whole blocks, no shorter than the protocol's own rules. A validator's weights are due as often as the
    chain takes them, and checkpoints as often as its uplink carries them. Raises ConfigError where no round is long
    enough.
    """
    found = _with(plan, LONGEST - 2, 1, 2)
    timed = {phase.phase.name: phase for phase in found.timeline("validator")}
    clock = plan.spec.clock
    reveal = max(SHORTEST_REVEAL, ceil(timed["gather"].seconds / clock.block_seconds))
    votes = reveal + 2 * clock.finality_blocks + WINDOW_MARGIN_BLOCKS
    found = _with(plan, LONGEST - 2 * votes, reveal, votes)
    timed = {phase.phase.name: phase for phase in found.timeline("validator")}
    votes = max(votes, ceil(timed["vote"].ends / clock.block_seconds) + VOTE_SPARE)
    least = max(votes + 2, -(-clock.tempo // POSTS_PER_EPOCH))
    low, high = least, LONGEST
    if not _is_in_time(_of_length(plan, high, reveal, votes)):
        raise ConfigError(
            f"no round of up to {LONGEST} blocks is long enough: see `murmur plan` for what takes longest"
        )
    while low < high:  # a longer round is in time where a shorter one is
        middle = (low + high) // 2
        low, high = (low, middle) if _is_in_time(_of_length(plan, middle, reveal, votes)) else (middle + 1, high)
    return _with_checkpoints(_of_length(plan, low, reveal, votes))


def _of_length(plan: Plan, round_blocks: int, reveal: int, votes: int) -> Plan:
    return _with(plan, round_blocks - 1 - votes, reveal, votes)


def _with(plan: Plan, commit: int, reveal: int, votes: int) -> Plan:
    """Return the plan with a clock of these offsets: of the commit deadline from the round's start, of the reveal and
    the vote deadline from the commit deadline, in blocks."""
    spec, round_blocks = plan.spec, commit + votes + 1
    clock = {"round_blocks": round_blocks, "commit": commit, "reveal": commit + reveal, "words": commit + votes}
    rounds = max(1, -(-spec.clock.weights_rate_limit // round_blocks))
    changed = {
        "clock": spec.clock.model_dump() | clock,
        "gauntlet": spec.gauntlet.model_dump() | {"weight_rounds": rounds},
    }
    # Not validated here: only a clock that is in time has to be valid.
    return replace(
        plan, spec=spec.model_copy(update={name: type(getattr(spec, name))(**table) for name, table in changed.items()})
    )


def _is_in_time(plan: Plan) -> bool:
    try:
        RunSpec.model_validate(plan.spec.model_dump())
    except ValidationError:
        return False
    downloaded = next(timed.ends for timed in plan.timeline("miner") if timed.phase.name == "download")
    in_guess = downloaded <= plan.openings["guess"]  # else each guess would lack somebody
    return not plan.missed and in_guess and can_repeat(plan) and plan.openings["uploaded"] <= plan.openings["commit"]


def _with_checkpoints(plan: Plan) -> Plan:
    """Return the plan with the most frequent checkpoints that a validator's uplink allows."""
    rounds = plan.spec.checkpoint_rounds
    while plan.uplink_share > 1 and rounds < LONGEST_INTERVAL:
        rounds = (rounds // CHECKPOINTS + 1) * CHECKPOINTS
        plan = replace(plan, spec=plan.spec.model_copy(update={"checkpoint_rounds": rounds}))
    return plan


def as_toml(plan: Plan) -> str:
    """Return the settings that differ between runs of the same model, as TOML of a spec."""
    spec, clock = plan.spec, plan.spec.clock
    lines = [
        f"checkpoint_rounds = {spec.checkpoint_rounds}",
        "",
        "[clock]",
        *(f"{name} = {getattr(clock, name)}" for name in ("round_blocks", "commit", "reveal", "words")),
        f"finality_blocks = {clock.finality_blocks}",
        f"upload_mbps = {8e-6 * plan.rates.up.one:g}",
        f"download_mbps = {8e-6 * plan.rates.down.one:g}",
        "",
        "[gauntlet]",
        f"weight_rounds = {spec.gauntlet.weight_rounds}",
    ]
    return "\n".join(lines) + "\n"
