"""What a plan says of a validator that repeats miners' steps: memory, time, and how many whole rounds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gauntlet.repetition import SPARE_STEPS
from murmur.cli.main import main
from murmur.plan import presets
from murmur.plan.clock_fit import fit
from murmur.plan.network import as_json, refusals
from murmur.plan.phases import Setting, round_phases
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import Plan, link
from murmur.plan.verification import LONGEST, verification
from murmur.protocol.spec import RunSpec
from murmur.training.memory import COMPUTING, host_moments
from murmur.training.sizes import Sizes

GB = 10**9
LINKS = Rates(up=link(880.0), down=link(4000.0))


def traced(name: str, places: int = 4096, **rules: int) -> RunSpec:
    """The preset with Muon that begins each round anew, and with traces."""
    table = presets.read(name).first.model_dump()
    table["inner"] |= {"optimizer": "muon", "state": "fresh"}
    table["gauntlet"] |= {"trace_values": places * table["inner"]["steps"], **rules}
    return RunSpec.model_validate(table)


def untraced(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"gauntlet": spec.gauntlet.model_copy(update={"trace_values": 0})})


def ends(plan: Plan, phase: str) -> float:
    return next(timed.ends for timed in plan.timeline("validator") if timed.phase.name == phase)


@pytest.fixture(scope="module")
def covenant() -> Plan:
    """Covenant-72B with verified work, on 8 x 192 GB."""
    return Plan(traced("covenant-72b"), 8, 192 * GB, LINKS)


# --- covenant-72b --------------------------------------------------------------------------------------------------


def test_an_audit_of_covenant_fits_the_memory_of_eight_gpus_of_192_gb(covenant: Plan) -> None:
    assert covenant.memory_total.gpu_computing / GB == pytest.approx(126.6, abs=0.1)
    assert covenant.memory_total.gpu_computing < 0.95 * 192 * GB
    assert covenant.micro_sequences == 16
    model = covenant.sizes.model
    held = host_moments(covenant.spec, "validator", ranks=8)
    # theta of this round and of the one before, the weights of steps that were stopped, and theta of what waits.
    assert sum(held[COMPUTING].values()) - held[COMPUTING]["processes"] == 4 * model
    assert covenant.host_bytes_peak("validator") == covenant.host("validator")["outer step"]


def test_covenants_validator_repeats_one_in_three_rounds_and_its_rounds_are_no_longer_for_it(covenant: Plan) -> None:
    """383 s are free of the round's 1,344; a repetition takes 1,307."""
    found = verification(covenant)
    assert found is not None
    assert found.free_seconds == pytest.approx(383, abs=1)
    assert found.one_seconds == pytest.approx(1307, abs=1)
    assert found.rounds == pytest.approx(3.41, abs=0.01)
    assert (found.repeats, found.looks_twice) == (1 / found.rounds, False)
    assert refusals(covenant, ["validator"]) == []
    longer = fit(covenant)
    assert longer.spec.clock.round_blocks == 121, "Muon's steps: the same as without traces"
    assert fit(replace(covenant, spec=untraced(covenant.spec))).spec.clock.round_blocks == 121
    assert refusals(longer) == []


# --- time ----------------------------------------------------------------------------------------------------------


def test_the_free_time_is_what_judging_leaves_but_for_the_steps_that_are_kept_free() -> None:
    plan = Plan(traced("1b"), 1, 80 * GB, Rates(compute=Rate(4e15)))
    found = verification(plan)
    assert found is not None
    kept = SPARE_STEPS * plan.compute_seconds / plan.spec.inner.steps
    assert found.free_seconds == pytest.approx(plan.round_seconds - ends(plan, "held-out loss") - kept)
    # Text of one miner's pages, theta there and back, and all that a miner's steps take.
    load, spec = plan.sizes.model / 10e9, plan.spec
    text = spec.inner.steps * spec.inner.sequences * spec.model.context * plan.sizes.token
    taken = 2.0 + text / plan.rates.down.one + text / 1.1e9 + 2 * load + plan.compute_seconds
    assert found.one_seconds == pytest.approx(taken, rel=0.01)
    assert found.rounds == found.one_seconds / found.free_seconds < 1 / 2
    assert (found.repeats, found.looks_twice) == (1.0, True)
    at_hand = verification(replace(plan, has_data=True))
    assert at_hand is not None
    assert at_hand.one_seconds == pytest.approx(2 * load + plan.compute_seconds)


def test_no_more_are_repeated_than_are_drawn_and_the_rest_is_for_second_executions() -> None:
    plan = Plan(traced("1b", verifications=3), 1, 80 * GB, Rates(compute=Rate(4e15)))
    found = verification(plan)
    assert found is not None
    assert (found.drawn, found.repeats) == (3, 3.0)
    assert found.free_seconds > 3 * found.one_seconds
    slow = verification(replace(plan, rates=replace(plan.rates, compute=Rate(1.2e15))))
    assert slow is not None
    assert slow.repeats == slow.free_seconds / slow.one_seconds == pytest.approx(2.3, abs=0.2)


def test_who_repeats_a_round_in_eight_is_not_refused_and_who_lacks_a_moment_for_it_is() -> None:
    plan = Plan(traced("1b"), 1, 80 * GB)
    fast, slow = 1.3e14, 1.25e14
    fits, lacks = (replace(plan, rates=replace(plan.rates, compute=Rate(flops))) for flops in (fast, slow))
    assert [refusals(one, ["validator"]) != [] for one in (fits, lacks)] == [False, True]
    assert LONGEST - 1 < verification(fits).rounds <= LONGEST < verification(lacks).rounds < LONGEST + 1
    on_cpu = replace(lacks, on_gpu=False)
    assert "Use a faster machine; or give the run" in refusals(on_cpu, ["validator"])[0]


# --- memory --------------------------------------------------------------------------------------------------------


def test_a_validator_whose_gpus_cannot_train_is_told_that_it_could_repeat_nothing() -> None:
    plan = Plan(traced("8b"), 1, 80 * GB)
    assert "no memory to repeat a miner's steps" in refusals(plan, ["validator"])[-1]
    assert not [told for told in refusals(plan, ["miner"]) if "repeat" in told]
    assert not [told for told in refusals(replace(plan, spec=untraced(plan.spec))) if "repeat" in told]


def test_on_a_cpu_it_holds_what_training_takes_once_beside_its_two_areas() -> None:
    spec = traced("150m")
    held = host_moments(spec, "validator", cpu_activations=1000)[COMPUTING]
    sizes = Sizes(spec)
    expected = dict.fromkeys(("theta", "spare", "paused", "kept", "parameters", "gradients"), sizes.model)
    assert held == expected | {"adam_moments": sizes.optimizer, "activations": 1000, "processes": held["processes"]}
    assert COMPUTING not in host_moments(untraced(spec), "validator", cpu_activations=1000)


# --- what is told --------------------------------------------------------------------------------------------------


def test_a_payload_counts_its_trace() -> None:
    spec = traced("8b")
    plans = [Plan(one, 8, 80 * GB) for one in (spec, untraced(spec))]
    more = plans[0].payload_bytes - plans[1].payload_bytes
    assert more == pytest.approx(2 * 2 * 4096 * spec.inner.steps, rel=0.001)  # gradients and moves in two bytes each
    assert plans[0].download_bytes - plans[1].download_bytes == 20 * more


@pytest.mark.parametrize("name", [name for name in presets.names() if not presets.read(name).first.trace.places])
def test_a_run_without_traces_is_planned_as_if_there_were_none(name: str) -> None:
    plan = Plan(presets.read(name).first, 8, 180 * GB)
    assert verification(plan) is None
    assert "verification" not in as_json(plan)
    assert "repeat steps" not in {phase.name for phase in round_phases(Setting(plan.spec, 8, 64), "validator")}


def told(spec: RunSpec, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    status = main(["plan", "--spec", str(path), *words])
    return status, capsys.readouterr().out


def test_people_and_programs_are_told_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = traced("1b", verifications=2)
    machine = ["--gpus", "1", "--gpu-memory", "80", "--gpu-tflops"]
    status, shown = told(spec, tmp_path, capsys, *machine, "1000")
    assert status == 0
    words = " ".join(shown.split())
    assert "repeated 2.0 of 2 miners' rounds that a validator draws in one: each takes" in words
    assert "there is no time for the second execution that a failure takes" in words
    assert f"trace: {4 + 2 * 2 * 4096 * spec.inner.steps:,} bytes" in words
    assert "A validator's GPUs hold what a miner's do, while it repeats steps." in words
    assert [line for line in shown.splitlines() if len(line) > 100 or line != line.rstrip()] == []
    _, found = told(spec, tmp_path, capsys, *machine, "1000", "--json")
    table: dict[str, Any] = json.loads(found)["verification"]
    assert (table["drawn"], table["repeats"]) == (2, min(2.0, 1 / table["rounds"]))
    assert "second execution" not in told(spec, tmp_path, capsys, *machine, "4000")[1]

    status, shown = told(spec, tmp_path, capsys, *machine, "100")
    assert status == 1
    assert "- a validator has" in shown[shown.index("REFUSED:") :]
    status, found = told(spec, tmp_path, capsys, *machine, "100", "--json")
    assert status == 1
    assert "it could audit nobody" in json.loads(found)["refused"][-1]


def test_a_validator_without_any_free_time_is_told_so_in_json_that_others_can_read() -> None:
    slow = Plan(traced("1b"), 1, 80 * GB, Rates(compute=Rate(1e13)))
    found = verification(slow)
    assert found is not None
    assert (found.free_seconds, found.repeats) == (0.0, 0.0)
    assert json.loads(json.dumps(as_json(slow)["verification"], allow_nan=False))["rounds"] is None
    assert "it could audit nobody" in refusals(slow, ["validator"])[-1]
