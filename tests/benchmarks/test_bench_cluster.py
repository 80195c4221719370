"""The bench of clusters: its faults are the same for both sides, what it reads of their events is what happened, and
its links are as slow as it says."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.plan.member import ClusterPlan
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import link
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.errors import ConfigError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The scripts, which run with their own folder in the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("bench_cluster", "cluster_exchange", "cluster_faults", "cluster_readings", "cluster_sides")
        names += ("cluster_soak",)
        yield SimpleNamespace(**{name: import_module(name) for name in names})
    finally:
        sys.path.remove(str(BENCHMARKS))


# --- faults ------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(30, 3600), st.floats(0, 1000))
def test_faults_never_leave_a_cluster_without_a_member_that_is_up(
    seed: int, members: int, seconds: float, per_hour: float
) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    faults = import_module("cluster_faults")
    sys.path.remove(str(BENCHMARKS))
    found = faults.schedule(seed, members, seconds, per_hour)
    assert found == faults.schedule(seed, members, seconds, per_hour)
    assert all(early.at <= late.at for early, late in pairwise(found))
    assert all(0 <= fault.member < members and fault.at < seconds for fault in found)
    for fault in found:
        down = [other.member for other in found if other.at <= fault.at < other.over]
        assert len(down) == len(set(down)) < members


def test_the_rates_of_an_exchange_are_measured_for_a_clusters_plan(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []
    names = [field.name for field in fields(Rates) if field.name != "threads"]
    rates = {name: {"one": 3.0, "most": None} for name in names}
    answer = json.dumps({"rates": {"threads": 2, **rates}})

    def start(command: Sequence[str], **_: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(communicate=lambda: (answer, None))

    monkeypatch.setattr(sys.modules[bench.cluster_exchange.measured_rates.__module__].subprocess, "Popen", start)
    found = bench.cluster_exchange.measured_rates(Path("spec.toml"), 2, "--members", "4")
    assert (found.threads, found.call) == (2, Rate(3.0, float("inf")))
    assert [command[-2:] for command in asked] == [["--members", "4"]] * 2


def test_the_store_dies_alone_and_the_sides_faults_stay_what_they_were(bench: SimpleNamespace) -> None:
    faults = bench.cluster_faults
    kinds = set()
    for seed in range(20):
        found = faults.schedule(seed, 4, 1800.0, 125.0, faults.ALL_KINDS)
        kinds |= {fault.kind for fault in found}
        for store in (fault for fault in found if fault.kind == "store"):
            assert not [o for o in found if o is not store and o.at < store.over and store.at < o.over]
        assert {fault.kind for fault in faults.schedule(seed, 4, 1800.0, 125.0)} <= {"kill", "stop"}
    assert kinds == set(faults.ALL_KINDS)


def test_a_soak_counts_the_living_and_explains_waits_by_faults(bench: SimpleNamespace) -> None:
    soak = bench.cluster_soak
    at = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0, 4: 90.0, 5: 100.0, 6: 150.0}
    events = {name: [{"event": "applied", "round": r, "time": t} for r, t in at.items()] for name in "abc"}
    records = [dict.fromkeys("abc", 20) for _ in at]
    records[2] = {"a": 20, "b": 20}  # c was stopped
    records[3] = {"a": 20, "b": 20}  # c was not
    downs = [soak.Down("c", 21.0, 29.0), soak.Down(None, 45.0, 80.0)]
    found = soak.summary(events, records, downs, 0.0, 200.0)
    assert (found["rounds"], found["round_seconds"], found["steps"]) == (7, 10.0, 5 * 60 + 2 * 40)
    assert found["participation"] == round(16 / 17, 4)
    assert (found["outage_rounds"], found["outage_rounds_that_name_all_living"]) == (1, 1)
    assert (found["unexplained_waits"], found["longest_round_seconds"]) == (1, 50.0)


def test_the_rate_of_faults_is_about_the_one_that_is_asked_for(bench: SimpleNamespace) -> None:
    found = [bench.cluster_faults.schedule(seed, 14, 3600.0, 125.0) for seed in range(20)]
    assert 100 < sum(map(len, found)) / 20 < 130
    assert len(set(found)) == 20
    assert {fault.kind for some in found for fault in some} == {"kill", "stop"}
    assert bench.cluster_faults.schedule(0, 14, 3600.0, 0.0) == ()


# --- readings ----------------------------------------------------------------------------------------------------


def event(kind: str, round: int, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "round": round, "time": time, **fields}


def test_the_steps_of_a_record_reach_theta_when_the_first_member_applies_it(bench: SimpleNamespace) -> None:
    events = {
        "a": [event("trained", 0, 5.0, tokens=200), event("applied", 0, 8.0), event("trained", 1, 13.0, tokens=200)],
        "b": [event("trained", 0, 6.0, tokens=160), event("applied", 0, 7.5)],
    }
    found = bench.cluster_readings.of_members(events, {0: {"a": 20, "b": 16}}, 10)
    assert [(one.time, one.steps, one.members) for one in found.reached] == [(7.5, 36, 2)]
    assert not found.lost  # round 1 has no record yet
    assert not found.returned


def test_an_update_that_no_record_names_is_lost_unless_it_was_carried_over(bench: SimpleNamespace) -> None:
    def late(*more: dict[str, Any]) -> Any:
        events = {
            "a": [event("trained", 0, 5.0, tokens=200), event("applied", 0, 8.0)],
            "b": [event("trained", 0, 9.0, tokens=180), event("applied", 0, 9.5), *more],
        }
        return bench.cluster_readings.of_members(events, {0: {"a": 20}}, 10)

    dropped, carried = late(), late(event("update_returned", 0, 9.6))
    assert ([one.steps for one in dropped.lost], dropped.returned) == ([18], [])
    assert ([one.steps for one in carried.returned], carried.lost) == ([18], [])


def test_steps_that_a_killed_member_makes_again_are_lost_once(bench: SimpleNamespace) -> None:
    events = {
        "a": [
            event("trained", 0, 5.0, tokens=200),
            event("trained", 0, 15.0, tokens=120),
            event("applied", 0, 18.0),
        ]
    }
    found = bench.cluster_readings.of_members(events, {0: {"a": 12}}, 10)
    assert ([one.steps for one in found.lost], [one.steps for one in found.reached]) == ([20], [12])


def synced(
    sync: str, step: int, time: float, *, committed: bool = True, participants: int = 3, healed: bool = False
) -> list[dict[str, Any]]:
    fields = {"sync": sync, "steps": 20}
    outcome = {"step": step, "committed": committed, "participants": participants, "healed": healed}
    return [
        {"event": "trained", "time": time - 1.0, **fields},
        {"event": "synced", "time": time, **fields, **outcome},
    ]


def test_an_outer_step_has_the_steps_of_all_its_participants_even_of_one_that_died(bench: SimpleNamespace) -> None:
    events = {"a": synced("1-1", 0, 5.0), "b": synced("2-1", 0, 5.5), "c": synced("3-1", 0, 5.2)[:1]}
    found = bench.cluster_readings.of_replicas(events)
    assert [(one.time, one.steps, one.members) for one in found.reached] == [(5.0, 60, 3)]
    assert not found.lost  # c's outcome is not known yet
    events["c"].append(synced("4-1", 0, 9.0)[0])  # but it was another process
    assert [one.steps for one in bench.cluster_readings.of_replicas(events).lost] == [20]


def test_steps_of_a_replica_that_took_anothers_state_or_that_did_not_commit_are_lost(bench: SimpleNamespace) -> None:
    events = {
        "a": synced("1-1", 7, 5.0),
        "b": synced("2-1", 7, 5.5, healed=True),
        "c": synced("3-1", 7, 5.2, committed=False),
    }
    found = bench.cluster_readings.of_replicas(events)
    assert [(one.steps, one.members) for one in found.reached] == [(40, 2)]
    assert [one.steps for one in found.lost] == [20, 20]


def test_the_summary_counts_what_lies_within_and_finds_the_longest_gap(bench: SimpleNamespace) -> None:
    readings = bench.cluster_readings
    steps = [readings.Steps(time, 30, 3) for time in (99.0, 110.0, 118.0, 150.0, 161.0)]
    found = readings.summary(
        readings.Reading(steps, [readings.Steps(120.0, 20)], [readings.Steps(90.0, 5)]), 100.0, 160.0
    )
    assert (found["outer_steps"], found["inner_steps"], found["inner_steps_an_hour"]) == (3, 90, 5400.0)
    assert (found["steps_lost"], found["steps_returned"], found["members_an_outer_step"]) == (20, 0, 3.0)
    assert found["longest_standstill_seconds"] == 32.0
    nothing = readings.summary(readings.Reading(), 100.0, 160.0)
    assert (nothing["inner_steps_an_hour"], nothing["longest_standstill_seconds"]) == (0.0, 60.0)


# --- exchange ----------------------------------------------------------------------------------------------------


def played(round: int, trained: float, applied: float, *names: str) -> list[dict[str, Any]]:
    """A member's events: two seconds of steps, half a second of compressing."""
    phases = [
        {"phase": "data", "began": 0.0, "seconds": 0.1},
        {"phase": "compute", "began": 0.1, "seconds": 2.0},
        {"phase": "compress", "began": 2.2, "seconds": 0.5},
        {"phase": "upload", "began": 2.8, "seconds": 0.6},
    ]
    return [
        event("trained", round, trained),
        event("applied", round, applied, contributing=list(names)),
        event("phases", round, applied + 0.1, phases=phases),
    ]


def test_an_exchange_is_from_the_last_compressed_update_to_the_last_application(bench: SimpleNamespace) -> None:
    events = [played(3, 10.0, 14.0, "a", "b"), played(3, 10.4, 13.8, "a", "b")]
    (found,) = bench.cluster_exchange.exchanges(events)
    assert (found.round, found.members) == (3, 2)
    assert found.seconds == pytest.approx(14.0 - (10.4 + 0.6))
    assert found.spread == pytest.approx(0.4)
    assert found.phases["compress"] == 0.5
    assert bench.cluster_exchange.exchanges([events[0], events[1][:1]]) == []


INSTANT = ("compute", "device", "copy", "fresh", "hash", "cipher", "write", "read", "compress", "apply", "call")
FAST = Rates(threads=2, up=link(32.0), down=link(32.0), **dict.fromkeys(INSTANT, Rate(1e15)))


def spec_of(table: dict[str, Any]) -> ClusterSpec:
    data = {**table["data"], "index": "00" * 32, "num_tokens": 10**9}
    return build_cluster({**table, "name": "bench", "genesis_checkpoint": "00" * 32, "data": data}, "the bench's table")


@pytest.mark.parametrize("members", [2, 4, 9])
def test_on_a_machine_that_takes_no_time_the_plan_has_the_links_and_two_looks(
    bench: SimpleNamespace, members: int
) -> None:
    spec = spec_of(bench.cluster_exchange.TABLE)
    plan = ClusterPlan(spec, 1, 0, FAST, on_gpu=False, has_data=True, members=members)
    bound = members * plan.payload_bytes / 4e6
    assert plan.payload_bytes == pytest.approx(2e6, rel=0.1)
    one, look = plan.payload_bytes / 4e6, spec.cluster.beat_seconds / 2
    # One look for the claims; then the download, beside the look that closes the round.
    expected = one + look + max((members - 1) * one, look)
    assert bench.cluster_exchange.planned_seconds(plan) == pytest.approx(expected, rel=1e-3)
    rounds = [
        SimpleNamespace(
            members=of, seconds=seconds, spread=0.1, phases=dict.fromkeys(bench.cluster_exchange.PHASES, 0.0)
        )
        for of, seconds in ((members, bound), (members - 1, 9 * bound), (members, 1.2 * bound))
    ]
    found = bench.cluster_exchange.compared(rounds, plan, 32.0)
    assert (found["of_bound"], found["rounds"], found["whole_rounds"]) == (pytest.approx(1.1, abs=0.01), 3, 2)


# --- torchft -----------------------------------------------------------------------------------------------------


def test_the_comparison_says_what_to_install(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    for found in (missing, lambda name: "0.1.0"):
        monkeypatch.setattr(bench.cluster_sides, "version", found)
        with pytest.raises(ConfigError, match="pip install torchft"):
            bench.cluster_sides.require_torchft()
    monkeypatch.setattr(bench.cluster_sides, "version", lambda name: "0.2.0")
    bench.cluster_sides.require_torchft()


def test_an_all_reduce_has_time_for_a_replica_that_gets_its_state(bench: SimpleNamespace) -> None:
    sides = bench.cluster_sides
    setting = sides.Setting(members=4, mbps=32.0, seed=0, join=10.0)
    assert sides.all_reduce_share(4) == 1.5
    # 5 copies of 4 MB at 4 MB/s, the all-reduce, and the 5 s of torchft's example
    assert sides.collective_seconds(setting, 1_000_000) == pytest.approx(5.0 + 5 + 1.5)


# --- rows --------------------------------------------------------------------------------------------------------


def test_what_the_file_has_is_not_run_again(bench: SimpleNamespace, tmp_path: Path) -> None:
    path, ran = tmp_path / "rows.jsonl", list[Path]()

    def run(folder: Path) -> dict[str, Any]:
        assert folder.is_dir()
        ran.append(folder)
        return {"of_bound": 1.1, "of_plan": 0.95}

    rows = [bench.bench_cluster.ensure(path, {"part": "exchange", "mbps": mbps}, run) for mbps in (8.0, 32.0, 8.0)]
    assert len(ran) == 2
    assert rows[0] == rows[2] != rows[1]
    assert bench.bench_cluster.kept(rows[0])
    assert not bench.bench_cluster.kept(
        {"settings": {"part": "exchange"}, "result": {"of_bound": 1.16, "of_plan": 1.0}}
    )


def test_the_table_has_a_line_for_each_row(bench: SimpleNamespace) -> None:
    result: dict[str, Any] = dict.fromkeys(
        ("inner_steps_an_hour", "inner_steps", "steps_lost", "steps_returned", "outer_steps", "loss"), 1
    )
    result |= {"members_an_outer_step": 2.5, "longest_standstill_seconds": 9.0, "faults": [1, 2], "load": [1.0, 2.0]}
    both: Sequence[dict[str, Any]] = [{"side": "cluster"}, {"side": "torchft", "join": 10.0}]
    rows = [{"settings": {"part": "torchft", "seed": 0, **of}, "result": result} for of in both]
    head, rule, *lines = bench.bench_cluster.table(rows).splitlines()
    assert len(lines) == 2
    assert {line.count("|") for line in (head, rule, *lines)} == {13}
    assert "| torchft, join 10 s |" in lines[1]


# --- links -------------------------------------------------------------------------------------------------------

SENT = """
import socket, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import cluster_namespaces
from murmur.protocol.errors import ConfigError
try:
    cluster_namespaces.require()
    cluster_namespaces.enter()
    cluster_namespaces.Namespaces(["one"], 99.0).close()  # leaves nothing behind
    network = cluster_namespaces.Namespaces(["one", "two"], 16.0)
except ConfigError as fault:
    print(fault)
    sys.exit(77)
server = '''
import socket
with socket.create_server(("one", 5000)) as listening:
    print(socket.gethostname(), flush=True)
    with listening.accept()[0] as connection:
        while connection.recv(1 << 16):
            pass
        connection.sendall(b"x")
'''
client = '''
import socket, time
began = time.monotonic()
with socket.create_connection(("one", 5000)) as connection:
    connection.sendall(bytes(4_000_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(time.monotonic() - began)
'''
one = subprocess.Popen([sys.executable, *network.inside("one", ["-c", server])], stdout=subprocess.PIPE, text=True)
assert one.stdout.readline() == "one\\n"
two = subprocess.check_output([sys.executable, *network.inside("two", ["-c", client])], text=True)
print(two)
one.wait()
network.close()
"""


def test_processes_in_namespaces_reach_each_other_at_the_links_speed() -> None:
    before = sorted(path.name for path in Path("/run/netns").glob("*"))
    done = subprocess.run([sys.executable, "-c", SENT, str(BENCHMARKS)], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr
    assert 0.95 * 2.0 < float(done.stdout) < 2 * 2.0
    assert sorted(path.name for path in Path("/run/netns").glob("*")) == before
