"""What goes wrong on purpose: drawn from a seed, done to real processes, and judged by what became of it."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from murmur.lab.devnet import launch
from murmur.lab.localnet.chaos import KINDS, QUIET_END, QUIET_START, Injection, draw
from murmur.lab.localnet.chaos_injector import KEPT, Injected, Injector
from murmur.lab.localnet.chaos_report import Aftermath, Blame, survived
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.processes import Processes
from tests.lab.devnet.conftest import genesis
from tests.lab.localnet.harness import assert_nothing_runs, localnet
from tests.lab.localnet.schema import assert_report

VALIDATORS, MINERS, NEWCOMERS = (
    ("validator-1", "validator-2"),
    tuple(f"miner-{i}" for i in range(1, 5)),
    ("newcomer-1",),
)
SEEDS = range(200)
SLEEPER = ["-c", "import time; time.sleep(600)"]


def drawn(seed: int, rounds: int = 20) -> tuple[Injection, ...]:
    return draw(seed, rounds, VALIDATORS, MINERS, NEWCOMERS)


# --- the plan


def test_a_plan_is_a_function_of_its_seed_in_every_process() -> None:
    words = f"from murmur.lab.localnet.chaos import draw; print(draw(7, 20, {VALIDATORS}, {MINERS}, {NEWCOMERS}))"
    printed = {subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout for _ in range(2)}
    assert printed == {f"{drawn(7)}\n"}
    assert len({drawn(seed) for seed in SEEDS}) == len(SEEDS)


def test_twenty_rounds_meet_every_kind_on_everybody_whom_it_is_for() -> None:
    servers = {(kind, name) for kind in ("kill", "freeze") for name in ("store", "devnet")}
    validators = {(kind, "validator") for kind in ("kill", "wipe", "freeze", "stall")}
    miners = {(kind, "miner") for kind in set(KINDS) - {"join"}}
    for seed in SEEDS:
        met = {(injection.kind, injection.node.split("-")[0]) for injection in drawn(seed)}
        assert met == servers | validators | miners | {("join", "newcomer")}, seed


def test_the_first_and_the_last_rounds_are_quiet_and_everything_is_in_order() -> None:
    for seed in SEEDS:
        for rounds in (8, 20, 60):
            moments = [injection.at for injection in drawn(seed, rounds)]
            assert moments == sorted(moments)
            assert moments[0] >= QUIET_START - 0.5
            assert moments[-1] < rounds - QUIET_END


def test_a_majority_is_up_most_of_the_time() -> None:
    """Of two validators none is hit while the other, or a server, may still be away; so for most of the time both of
    them are up, if each is back two rounds after it was hit, or four after its home was lost."""
    for seed in SEEDS:
        heavy = [injection for injection in drawn(seed) if injection.node in (*VALIDATORS, "store", "devnet")]
        away: Counter[int] = Counter()
        for injection in heavy:
            for tenth in range(round(10 * injection.at), round(10 * (injection.at + max(injection.rounds, 0.5)))):
                away[tenth] += 1
        assert max(away.values()) <= 2
        assert len(away) < 0.5 * 200
        wiped = next(injection for injection in heavy if injection.kind == "wipe")
        others = [injection.at for injection in heavy if injection.node in VALIDATORS and injection != wiped]
        assert not [at for at in others if wiped.at <= at < wiped.at + 3.0]


def test_no_miner_is_hit_again_before_it_can_be_back() -> None:
    for seed in SEEDS:
        for name in MINERS:
            hits = [injection for injection in drawn(seed, 60) if injection.node == name]
            assert all(later.at >= sooner.at + sooner.rounds + 2 for sooner, later in pairwise(hits))


def test_only_honest_nodes_are_hit(tmp_path: Path) -> None:
    plan = Plan(tmp_path, rounds=40, miners=2, validators=1, faults=("garbage",), newcomers=1, chaos=3)
    hit = {injection.node for injection in plan.injections()}
    assert hit == {"miner-1", "miner-2", "validator-1", "newcomer-1", "store", "devnet"}
    assert Plan(tmp_path, rounds=40).injections() == ()


# --- doing it


class Rig:
    """An injector over sleeping processes and a link to nowhere."""

    def __init__(self, folder: Path, *plan: Injection) -> None:
        (folder / "logs").mkdir()
        self.processes = Processes(folder / "logs", {})
        self.links = Links("http://127.0.0.1:9", MINERS)
        self.home = folder / "home"
        self.joined: list[str] = []
        self.processes.start("miner-1", SLEEPER, SLEEPER)
        self.injector = Injector(
            plan, 1.0, self.processes, self.links, {"miner-1": self.home}, lambda: self.joined.append("newcomer-1")
        )

    def until_over(self, progress: float, seconds: float = 120.0) -> Injected:
        """Step until what was done first is over."""
        end = time.monotonic() + seconds
        while self.injector.done[0].ended is None:
            assert self.processes.watch() == []
            self.injector.step(progress)
            assert time.monotonic() < end
            time.sleep(0.02)
        return self.injector.done[0]


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def make(*plan: Injection) -> Rig:
        made.append(Rig(tmp_path, *plan))
        return made[-1]

    yield make
    for rig in made:
        rig.processes.stop()
        rig.links.close()


def test_nothing_happens_before_its_time_and_nothing_twice(rigs: Any) -> None:
    rig = rigs(Injection("kill", "miner-1", 2.5, 0.0), Injection("join", "newcomer-1", 3.0, 0.0))
    assert rig.injector.step(2.4) == []
    assert rig.injector.step(2.6) == ["miner-1 killed"]
    assert rig.injector.step(2.6) == []
    over = rig.until_over(2.7)
    assert (over.kind, over.began, over.ended) == ("kill", 2.6, 2.7)
    assert rig.processes.children["miner-1"].restarts == 1
    assert rig.injector.step(9.0) == ["newcomer-1 started for the first time"]
    assert rig.joined == ["newcomer-1"]


def test_an_absent_process_stays_away_and_comes_back(rigs: Any) -> None:
    rig = rigs(Injection("absent", "miner-1", 0.0, 0.7))
    began = time.monotonic()
    assert rig.injector.step(0.0) == ["miner-1 killed and kept away for 0.7 s"]
    rig.until_over(0.5)
    assert time.monotonic() - began >= 0.7


def test_a_lost_home_keeps_only_what_the_operator_wrote_and_the_record(rigs: Any) -> None:
    rig = rigs(Injection("wipe", "miner-1", 0.0, 0.0))
    (rig.home / "files").mkdir(parents=True)
    for name in ("files/blob", "state.db", "state.db-wal", *KEPT):
        (rig.home / name).write_text("x")
    first = rig.processes.children["miner-1"].process
    rig.injector.step(0.0)
    assert first.poll() is not None
    assert {path.name for path in rig.home.iterdir()} == KEPT
    rig.until_over(0.5)


def test_a_frozen_process_is_over_when_it_goes_on(rigs: Any) -> None:
    rig = rigs(Injection("freeze", "miner-1", 1.0, 0.5))
    rig.injector.step(1.0)
    assert rig.injector.frozen("miner-1")
    # It was stopped, and has been told to go on.
    assert os.waitid(os.P_PID, rig.processes.children["miner-1"].process.pid, os.WCONTINUED) is not None
    rig.until_over(1.5)
    assert not rig.injector.frozen("miner-1")


@pytest.mark.parametrize("kind", ["slow", "stall"])
def test_a_bad_link_is_whole_again_afterwards(kind: str, rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, calls = rigs(Injection(kind, "miner-2", 0.0, 0.3)), []
    for name in ("slow", "stall", "clear"):
        monkeypatch.setattr(Links, name, lambda self, *words, name=name: calls.append((name, words[0])))
    rig.injector.step(0.0)
    rig.until_over(0.3)
    assert calls == [(kind, "miner-2"), ("clear", "miner-2")]


def test_a_killed_devnet_comes_back_under_its_url_with_its_blocks_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    processes = Processes(tmp_path / "logs", {"PYTHONPATH": str(Path(__file__).parents[3])})
    devnet = launch.start(tmp_path / "chain", genesis(), block_seconds=0.1)
    processes.adopt("devnet", devnet.process, devnet.again)
    try:
        wait_for_block(devnet, processes, 5)
        block = devnet.admin().request("chain_getBlockHash", 5)
        processes.kill("devnet")
        wait_for_block(devnet, processes, 20)
        assert processes.children["devnet"].restarts == 1
        assert devnet.admin().request("chain_getBlockHash", 5) == block
        assert devnet.admin().info()["genesis"] == devnet.genesis
    finally:
        processes.stop()


def wait_for_block(devnet: launch.Devnet, processes: Processes, number: int) -> None:
    from murmur.protocol.errors import ChainError

    end = time.monotonic() + 150
    while True:
        assert processes.watch() == []
        try:
            if devnet.admin().info()["head"] >= number:
                return
        except ChainError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


# --- what became of it

ROLES = {"validator-1": "validator", "validator-2": "validator", "miner-1": "miner", "miner-2": "miner"}


def aftermath(
    *injected: Injected,
    void: tuple[int, ...] = (),
    events: dict[str, list[dict[str, Any]]] | None = None,
    rounds: int = 20,
) -> Aftermath:
    written = {name: (events or {}).get(name, []) for name in ROLES}
    voids = {round: round in void for round in range(rounds)}
    return Aftermath(injected, ROLES, {f"5{name}": name for name in ROLES}, written, voids)


def done(kind: str, node: str, began: float, ended: float | None) -> Injected:
    """What was done, in a network whose rounds take a second."""
    return Injected(kind, node, 0.0, began, ended, over=ended)


def worked(node: str, *rounds: int) -> dict[str, list[dict[str, Any]]]:
    kind = "checked" if node.startswith("validator") else "committed"
    return {node: [{"event": kind, "round": round, "time": round + 0.9} for round in rounds]}


def booked(validator: str, round: int, peer: str, reason: str) -> dict[str, list[dict[str, Any]]]:
    rows = {f"5{peer}": {"uid": 1, "rejected": reason}, "5somebody": {"uid": 2, "rejected": "MALFORMED"}}
    return {validator: [{"event": "reported", "round": round, "time": round + 0.9, "peers": rows}]}


def test_a_void_round_is_explained_while_half_of_the_validators_are_away() -> None:
    killed = done("kill", "validator-1", 5.2, 5.6)
    assert aftermath(killed, void=(5,), events=worked("validator-1", 6)).unexplained() == []
    assert aftermath(killed, void=(4, 5, 6), events=worked("validator-1", 6)).unexplained() == [4, 6]


def test_whoever_does_not_find_back_explains_no_more_than_two_rounds_and_four_without_a_home() -> None:
    void = tuple(range(5, 12))
    assert aftermath(done("kill", "validator-1", 5.2, 5.6), void=void).unexplained() == [7, 8, 9, 10, 11]
    assert aftermath(done("wipe", "validator-1", 5.2, 5.6), void=void).unexplained() == [9, 10, 11]


def test_miners_explain_no_void_round() -> None:
    assert aftermath(done("absent", "miner-1", 5.2, 8.6), void=(5, 6, 7)).unexplained() == [5, 6, 7]


def test_one_of_three_validators_explains_no_void_round() -> None:
    one = aftermath(done("freeze", "validator-1", 5.2, 5.6), void=(5,))
    three = Aftermath(
        one.injected, {**ROLES, "validator-3": "validator"}, {}, {**one.events, "validator-3": []}, one.void
    )
    assert (one.unexplained(), three.unexplained()) == ([], [5])


@pytest.mark.parametrize("server", ["store", "devnet"])
def test_a_servers_outage_explains_its_window_and_the_half_round_behind_it(server: str) -> None:
    assert aftermath(done("kill", server, 5.2, 5.3), void=(4, 5, 6)).unexplained() == [4, 6]
    assert aftermath(done("kill", server, 5.2, 5.8), void=(4, 5, 6, 7)).unexplained() == [4, 7]


def test_what_is_not_over_explains_everything_since() -> None:
    assert aftermath(done("stall", "validator-1", 5.2, None), void=(4, 5, 9)).unexplained() == [4]


def test_a_node_is_back_with_the_first_round_that_it_works_in_after_it_was_let_go() -> None:
    frozen = done("freeze", "validator-1", 5.2, 6.5)
    story = aftermath(frozen, events=worked("validator-1", 4, 5, 7, 8))
    assert (story.back_in(frozen), story.back_after(frozen)) == (7, 2)
    never = aftermath(frozen, events=worked("validator-1", 4, 5))
    assert never.back_after(frozen) is None
    late = {"miner-1": [{"event": "committed", "round": r, "time": r + 0.9, "in_time": r > 7} for r in (6, 7, 8)]}
    gone = done("absent", "miner-1", 5.2, 6.5)
    assert aftermath(gone, events=late).back_after(gone) == 3


def test_a_server_is_back_with_the_first_round_that_is_not_void() -> None:
    outage = done("kill", "store", 5.2, 5.4)
    assert aftermath(outage, void=(5, 6)).back_after(outage) == 2
    assert aftermath(outage).back_after(outage) == 0


def test_a_fault_on_an_honest_peer_counts_unless_it_or_the_validator_or_a_server_was_disturbed() -> None:
    blamed = booked("validator-1", 5, "miner-1", "UNREVEALED")
    assert aftermath(events=blamed).blames() == [Blame(5, "validator-1", "miner-1", "UNREVEALED")]
    assert aftermath(done("kill", "miner-2", 5.2, 5.4), events=blamed).blames()
    for node in ("miner-1", "validator-1", "store", "devnet"):
        assert not aftermath(done("freeze", node, 5.2, 5.4), events=blamed).blames(), node
        assert aftermath(done("freeze", node, 2.2, 2.4), events=blamed | worked("miner-1", 3)).blames(), node


def test_the_longest_absence_counts_rounds_on_end_that_a_node_did_nothing_for() -> None:
    always = {name: worked(name, *range(16))[name] for name in ROLES}
    assert aftermath(events=always, rounds=16).longest_absence() == 0
    newcomer = worked("miner-1", 3, 4, 8, 9, 10)  # beyond the last one that was decided
    assert aftermath(events=always | newcomer, rounds=10).longest_absence() == 3
    assert aftermath(events=always | newcomer, rounds=16).longest_absence() == 5
    assert aftermath(events=always | {"miner-1": []}, rounds=16).longest_absence() == 16


def test_harm_is_a_void_round_without_a_reason_an_end_a_blame_or_a_lost_home_that_stays_lost() -> None:
    wiped = done("wipe", "validator-1", 5.2, 5.6)
    sound = aftermath(wiped, events=worked("validator-1", 9)).body(7, 0)
    assert survived(sound)
    assert not survived(aftermath(wiped, events=worked("validator-1", 10)).body(7, 0))
    assert not survived(aftermath(wiped).body(7, 0))
    assert not survived(aftermath(wiped, events=worked("validator-1", 9)).body(7, 1))
    assert not survived(aftermath(void=(3,)).body(7, 0))
    assert not survived(aftermath(events=booked("validator-1", 5, "miner-1", "LATE")).body(7, 0))


# --- all of it


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_network_survives_chaos(tmp_path: Path) -> None:
    words = ("--chaos", "7", "--rounds", "20", "--validators", "2", "--miners", "4")
    with localnet(tmp_path / "run", *words) as run:
        status = run.finish(2900)
        assert_nothing_runs(run.folder)
    report = run.report
    assert_report(report)
    told = json.dumps(report["chaos"], indent=1)
    assert report["summary"]["replicas_identical"], told
    assert [report["chaos"][name] for name in ("void_unexplained", "ended_for_good", "honest_faults_booked")] == [
        0,
        0,
        0,
    ], told
    assert {entry["node"] for entry in report["chaos"]["injected"]} > {"store", "devnet", "newcomer-1"}
    assert status == 0, run.screen
