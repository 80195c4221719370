"""Phases of a round: their work by hand on small numbers, and when each begins."""

from dataclasses import replace

import pytest

from murmur.node.fetch.threads import FETCH_THREADS, parallel_fetches
from murmur.plan import presets
from murmur.plan.phases import DEADLINES, Opening, Phase, Setting, Work, decided, opening, restart_phases, round_phases
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import ROLES, Plan
from murmur.plan.timeline import Timed, amount, phase_seconds, schedule
from murmur.training.memory import Role

RATES = Rates(
    threads=4,
    compute=Rate(1e12),
    up=Rate(1e6, 1e6),
    down=Rate(2e6, 2e6),
    device=Rate(1e9),
    copy=Rate(1e9, 2e9),
    fresh=Rate(5e8, 1e9),
    hash=Rate(1e8, 1e9),
    cipher=Rate(4e8, 1e9),
    write=Rate(2e8, 5e8),
    read=Rate(3e8, 6e8),
    compress=Rate(2.5e8, 5e8),
    apply=Rate(1e8, 2e8),
    probe=Rate(1e7, 3e7),
    call=Rate(10.0, 10.0),
)


def timed(name: str, role: Role, *, on_gpu: bool = True) -> dict[str, Timed]:
    plan = Plan(presets.read(name).first, 2, 10**9, RATES, on_gpu)
    return {found.phase.name: found for found in plan.timeline(role)}


# --- rates and times ---------------------------------------------------------------------------------------------


def test_threads_add_up_to_what_all_together_reach() -> None:
    rate = Rate(3.0, 10.0)
    assert [rate.seconds(30.0, threads) for threads in (1, 2, 3, 4, 64)] == [10.0, 5.0, 30 / 9, 3.0, 3.0]


def test_a_phase_takes_its_work_in_turn_or_what_goes_on_beside_it_if_that_is_longer() -> None:
    work = (Work(2e8, "hash"), Work(1e9, "fresh", 2))
    assert phase_seconds(Phase("both", work), RATES) == 2.0 + 1.0
    assert phase_seconds(Phase("beside", work, beside=(Work(1e9, "write", 4),)), RATES) == 3.0
    assert phase_seconds(Phase("longer", work, beside=(Work(1e9, "write"),)), RATES) == 5.0
    assert phase_seconds(Phase("nothing", ()), RATES) == 0.0


def test_phases_begin_when_what_they_wait_for_has_ended_and_only_the_longest_way_is_critical() -> None:
    phases = (
        Phase("a", (Work(3, "wait"),), ()),
        Phase("b", (Work(2, "wait"),)),
        Phase("aside", (Work(4, "wait"),), ("a",)),
        Phase("final", (Work(1, "wait"),), ("b", "aside"), opens="decided"),
        Phase("late", (Work(20, "wait"),), ("a",)),
    )
    openings: dict[Opening, float] = {"commit": 0.0, "reveal": 1.0, "decided": 6.0}
    found = {one.phase.name: one for one in schedule(phases, RATES, openings, ["final"], 10.0)}
    assert {name: (one.begins, one.ends) for name, one in found.items()} == {
        "a": (0, 3),
        "b": (3, 5),
        "aside": (3, 7),
        "final": (7, 8),
        "late": (3, 23),
    }
    assert {name for name, one in found.items() if one.critical} == {"a", "aside", "final"}
    assert found["b"].overlaps == ("aside", "late")
    assert found["late"].overlaps == ("a", "b", "aside", "final")  # it goes on in the next round
    assert found["final"].overlaps == ("late",)


def test_a_phase_that_waits_for_a_block_leaves_those_before_it_slack() -> None:
    phases = (Phase("early", (Work(3, "wait"),), ()), Phase("final", (Work(1, "wait"),), opens="decided"))
    openings: dict[Opening, float] = {"commit": 0.0, "reveal": 1.0, "decided": 6.0}
    early, final = schedule(phases, RATES, openings, ["final"], 10.0)
    assert (early.critical, final.critical, final.begins) == (False, True, 6.0)


def test_blocks_are_final_when_the_clock_says() -> None:
    clock = presets.read("8b").first.clock  # commit 58, reveal 63, votes 71, finality 3, 12 s
    assert opening(clock, "commit") == 3 * 12
    assert opening(clock, "reveal") == (5 + 3) * 12
    assert opening(clock, "words") == (13 + 3) * 12
    by = {deadline.phase: deadline.by(clock) for deadline in DEADLINES}
    assert by == {
        "commit": 72 * 12,
        "publish": 72 * 12,
        "gather": (5 + 3) * 12,
        "vote": 13 * 12,
        "held-out loss": (72 + 3 + 2.5) * 12,
    }


def test_a_round_is_decided_when_the_votes_are_final_and_at_x_at_the_latest() -> None:
    clock = presets.read("8b").first.clock
    assert decided(clock, 100.0) == 100.0 + 3 * 12
    assert decided(clock, 13 * 12) == decided(clock, 1e6) == opening(clock, "words")
    spec = presets.read("1b").first
    fast = replace(RATES, down=Rate(1e8, 1e8), cipher=Rate(1e9, 1e9), fresh=Rate(1e9, 1e9))
    for rates, late in ((fast, False), (replace(RATES, down=Rate(1e6, 1e6)), True)):
        plan = Plan(spec, 2, 10**9, rates)
        vote = next(one for one in plan.timeline("validator") if one.phase.name == "vote")
        assert plan.openings["decided"] == decided(spec.clock, vote.ends)
        assert (plan.openings["decided"] == opening(spec.clock, "words")) == late
        for role in ROLES:
            select = next(one for one in plan.timeline(role) if one.phase.name == "select")
            assert select.begins >= plan.openings["decided"]


def test_a_node_waits_for_the_votes_of_others_whose_machines_may_be_faster() -> None:
    spec = presets.read("1b").first
    slow = replace(RATES, down=Rate(1e6, 1e6))
    fast = replace(RATES, down=Rate(1e8, 1e8), cipher=Rate(1e9, 1e9), fresh=Rate(1e9, 1e9))
    alone, among = Plan(spec, 2, 10**9, slow), Plan(spec, 2, 10**9, slow, voters=fast)
    assert among.openings["decided"] == Plan(spec, 2, 10**9, fast).openings["decided"] < alone.openings["decided"]
    begins = [{one.phase.name: one.begins for one in plan.timeline("miner")} for plan in (among, alone)]
    assert begins[0]["select"] <= begins[1]["select"]
    taken = [{one.phase.name: one.seconds for one in plan.timeline("miner")} for plan in (among, alone)]
    assert taken[0] == taken[1]


# --- the tables --------------------------------------------------------------------------------------------------


def test_a_miners_phases_by_hand() -> None:
    spec = presets.read("1b").first
    found = timed("1b", "miner")
    model, payload = 4 * spec.layout.num_parameters, spec.object_bytes

    def seconds(*names: str) -> list[float]:
        return [found[name].seconds for name in names]

    saving = 1 / 4e8 + 1 / 5e8  # hash and write, by four threads
    assert seconds("save own state", "snapshot") == pytest.approx([model * saving, model * saving])
    assert seconds("theta digest") == pytest.approx([model / 4e8])
    assert seconds("compress", "load weights") == pytest.approx([3 * model / 2e9, model / 2e9])
    assert seconds("swap") == [0.0]
    assert seconds("outer step") == pytest.approx([model / 2e9 + 20 * payload / 2e8])
    assert seconds("download") == pytest.approx([19 * payload / 2e6])  # its own is not fetched
    assert seconds("upload ahead", "publish") == pytest.approx([(payload - (16 << 20)) / 1e6, (16 << 20) / 1e6 + 0.1])
    assert seconds("commit") == [24.0]
    assert found["upload ahead"].begins == found["seal"].begins == found["compress"].ends
    assert {"seal", "save sealed"} <= set(found["upload ahead"].overlaps)
    assert not found["save own state"].critical
    assert not found["snapshot"].critical
    assert found["snapshot"].begins == found["select"].ends >= found["theta digest"].ends
    assert found["fetch data"].begins == found["reveal"].ends
    assert found["open payloads"].begins == 48.0 > found["swap"].ends  # a block after the commit deadline is final
    assert found["inner steps"].begins == max(found["load weights"].ends, found["fetch data"].ends)
    assert found["wrong guess"].begins == found["margin"].ends
    assert found["compress"].begins == max(found["wrong guess"].ends, found["select"].ends)
    assert found["commit"].begins == found["save sealed"].ends
    assert found["publish"].critical


def test_a_node_that_has_the_data_set_fetches_none_of_it() -> None:
    spec = presets.read("1b").first
    for role in ROLES:
        for has_data in (False, True):
            plan = Plan(spec, 2, 10**9, RATES, has_data=has_data)
            taken = next(one.seconds for one in plan.timeline(role) if one.phase.name == "fetch data")
            assert (taken == 0) == has_data
            assert (plan.data_bytes_per_day(role) == 0) == (has_data or role == "validator")


def test_a_cpu_compresses_where_a_gpu_is_given_what_to_compress() -> None:
    model = 4 * presets.read("1b").first.layout.num_parameters
    assert timed("1b", "miner", on_gpu=False)["compress"].seconds == pytest.approx(model / 5e8)


def test_a_validators_phases_by_hand() -> None:
    spec = presets.read("1b").first
    found = timed("1b", "validator")
    model, payload = 4 * spec.layout.num_parameters, spec.object_bytes
    assert found["gather"].seconds == pytest.approx(20 * payload / 2e6)
    assert found["gather reserve"].seconds == pytest.approx(4 * payload / 2e6)
    # Of the contributors' two copies each a third.
    assert found["copies"].seconds == pytest.approx(20 * 2 / 3 * payload * (1 / RATES.hash.one + 1 / 1e6))
    # It posts its vote as soon as what it holds is checked.
    assert (found["vote"].begins, found["vote"].seconds) == (found["check"].ends, 24.0)
    assert found["copies"].begins == found["fetch data"].begins == found["vote"].ends
    assert not found["copies"].critical
    # 24 times: records to the ranks' area, and the codec there and back.
    moved = 24 * payload * (1 / 2e9 + 2 / 3e7)
    assert timed("1b", "validator", on_gpu=False)["probe"].seconds == pytest.approx(moved)
    # To GPUs 8 bytes of place and 4 of value, listed and picked out, both ways; what was there comes back.
    values = 24 * Setting(spec, 2, 4).sizes.values
    assert found["probe"].seconds == pytest.approx(moved + values * (2 * 2 * 12 / 1e9 + (2 * 12 + 4) / 2e9))
    assert found["snapshot"].seconds == pytest.approx(model * (1 / 4e8 + 1 / 5e8))
    assert found["checkpoint upload"].seconds == pytest.approx(model / 1e6)
    assert found["checkpoint upload"].begins == found["snapshot"].ends
    assert not found["checkpoint upload"].critical
    assert not found["snapshot"].critical
    assert found["check"].begins >= (6 + 3) * 12


@pytest.mark.parametrize("role", ["miner", "validator"])
@pytest.mark.parametrize("name", presets.names())
def test_a_rounds_phases_name_what_they_wait_for_before_they_do(name: str, role: Role) -> None:
    """Each name once; of a line, the one before; of a deadline, a phase."""
    phases = round_phases(Setting(presets.read(name).first, 8, 64), role)
    known: set[str] = set()
    for phase in phases:
        assert phase.name not in known
        assert set(phase.after or ()) <= known
        known.add(phase.name)
    assert {deadline.phase for deadline in DEADLINES if deadline.role == role} <= known
    assert all(work.amount >= 0 for phase in phases for work in (*phase.work, *phase.beside))


def test_a_restart_reads_back_a_snapshot_and_an_interval_of_payloads() -> None:
    setting = Setting(presets.read("8b").first, 8, 64)
    model, log = setting.sizes.model, 8 * 20 * setting.sizes.payload
    miner, validator = restart_phases(setting, "miner"), restart_phases(setting, "validator")
    assert (amount(miner, "read"), amount(validator, "read")) == (2 * model + log, model + log)
    assert amount(miner, "hash") == 3 * model + log  # theta's digest as well
    assert (amount(miner, "cipher"), amount(miner, "apply")) == (log, log)


def test_a_validator_has_the_contributors_payloads_when_their_last_row_is_there() -> None:
    spec = presets.read("8b").first
    for contributors in range(1, 257):
        rules = spec.gauntlet.model_copy(update={"contributors": contributors, "reserve": 40})
        first = Setting(spec.model_copy(update={"gauntlet": rules}), 1, 1).gathered_first
        row = parallel_fetches(contributors)
        assert row <= FETCH_THREADS
        assert contributors <= first < contributors + row
        assert first % row == 0
    assert parallel_fetches(20) == 10
