"""Clusters in modelled time: calm, in storms, killed at any call to the store, and with what members must not survive
together: another theta, a lost store, everybody dead."""

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from murmur.cli.simulate import simulate_cluster
from murmur.cluster.contribute import Contributor
from murmur.lab.simulation import cluster as simulated
from murmur.lab.simulation import cluster_faults
from murmur.lab.simulation.cluster import BUCKET, SECRET, Cluster, Group, MemberMachine
from murmur.lab.simulation.cluster_witness import ClusterWitness
from murmur.lab.simulation.store import Call, Faults
from murmur.node.state.node_state import NodeState
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.spec import Exchange
from murmur.rounds.contribution import Diverged, RoundWork
from tests.cli.test_simulate import options
from tests.lab.simulation.kills import CallKiller


class Watched:
    """A cluster without drawn faults, its events in order, and the records that its store holds."""

    def __init__(self, folder: Path, members: int = 3, seed: int = 1, exchange: Exchange = "sparse") -> None:
        self.events: list[tuple[str, str, int, dict[str, Any]]] = []
        self.witness = ClusterWitness(10_000)
        self.hook: Callable[[MemberMachine, str, int], None] = lambda machine, event, round: None
        self.cluster = Cluster(folder, seed, members, self._told, exchange)
        self.witness.watch(self.cluster)

    def _told(self, machine: MemberMachine, event: str, round: int, fields: dict[str, Any]) -> None:
        self.events.append((machine.name, event, round, fields))
        self.witness.told(machine, event, round, fields)
        self.hook(machine, event, round)

    def play(self, until: Callable[[], bool], hours: float = 10.0) -> None:
        clock = self.cluster.clock
        end = clock.now + 3600 * hours
        while not until():
            assert clock.now < end, "nothing goes on"
            clock.run(clock.now + 30.0)

    def kill_at_call(self, victim: MemberMachine | None, round: int, at: int | str) -> CallKiller:
        """Kill it at this call to the store in the round, and start it again later."""
        return CallKiller(self.cluster, self.witness, victim, round, at)

    def records(self) -> list[Record]:
        cluster, found = self.cluster, []
        objects = cluster.store.buckets[BUCKET]
        while (key := keys.record(cluster.run, len(found))) in objects:
            found.append(Record.parse(objects[key].data, cluster.run, len(found), GROUP, Group(SECRET).verify))
        return found

    def thetas(self, round: int) -> set[str]:
        """What members held at the start of the round."""
        return {fields["theta"] for _, event, at, fields in self.events if (event, at) == ("applied", round)}

    def machine(self, number: int) -> MemberMachine:
        return self.cluster.machines[number - 1]


def has_records(watched: Watched, count: int) -> Callable[[], bool]:
    return lambda: len(watched.records()) >= count


def assert_one_history(watched: Watched) -> None:
    """One record a round, each going on from the one before, and one theta at the start of each."""
    records = watched.records()
    assert watched.witness.result.broken == []
    for round, record in enumerate(records):
        assert watched.thetas(round) in ({record.theta.hex()}, set())
    assert len({record.theta for record in records}) == len(records)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_in_a_calm_everybody_is_in_every_record_and_nobody_waits_long(watched: Watched) -> None:
    watched.cluster.begin()
    watched.play(has_records(watched, 6))
    watched.cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[:6]] == [3] * 6
    said = {(name, round): fields["loss"] for name, event, round, fields in watched.events if event == "trained"}
    for round, record in enumerate(watched.records()):
        for update in record.updates:
            [name] = [machine.name for machine in watched.cluster.machines if machine.id == update.member]
            assert update.loss == said[name, round]
    assert not [event for event in watched.events if event[1] in ("interrupted", "diverged", "update_returned")]


@pytest.mark.quick
def test_a_storm_leaves_one_theta_a_round_and_most_of_the_living_in_it_and_a_seed_is_one_history() -> None:
    words = ["--cluster", "--rounds", "10", "--members", "4", "--faults-per-hour", "60", "--seed", "3"]
    result = simulate_cluster(options(*words))
    assert result.broken == []
    assert (result.disagreements, result.unexplained_waits) == (0, 0)
    assert result.faults > 25
    assert result.participation > 0.8  # of so few rounds each one left out is 0.03
    assert result.throughput > 0.9
    assert simulate_cluster(options(*words)).history == result.history


def test_rounds_shorter_than_a_beat_have_most_steps_of_every_member(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "INNER_SECONDS", 4.0)
    watched.cluster.begin()
    watched.play(has_records(watched, 16))
    watched.cluster.close()
    assert_one_history(watched)
    for machine in watched.cluster.machines:
        steps = [
            sum(one.steps for one in record.updates if one.member == machine.id) for record in watched.records()[4:]
        ]
        assert sum(steps) > 0.5 * simulated.STEPS * len(steps)


def test_throughput_compares_each_member_with_itself(tmp_path: Path) -> None:
    """Members differ in pace, and which of them are undisturbed differs from round to round."""
    calm = cluster_faults.play(tmp_path / "calm", 1, 3, 6, 0.0)
    assert calm.compare(calm).throughput == 1.0
    slow = min(calm.steps, key=lambda name: calm.steps[name])
    assert calm.steps[slow] < 0.97 * max(calm.steps.values())
    alone = copy(calm)
    alone.steps, alone.seconds = Counter({slow: calm.steps[slow]}), {slow: calm.seconds[slow]}
    assert alone.compare(calm).throughput == 1.0


COMMITS = ("put payload 1", "put claim 1", "after put claim 1", "create record 1")
"""The calls by which a member takes part in round 1, and closes it. Named: numbers move with each run's chances."""


@pytest.mark.parametrize("at", [*range(1, 18, 4), *COMMITS, "get claim 1", "get payload 1"])
def test_a_member_killed_at_any_call_to_the_store_costs_the_others_nothing_but_its_update(
    tmp_path: Path, at: int | str
) -> None:
    watched = Watched(tmp_path)
    killer = watched.kill_at_call(watched.machine(1) if isinstance(at, int) else None, 1, at)
    watched.cluster.begin()
    watched.play(has_records(watched, 5))
    watched.cluster.close()
    victim = killer.victim
    assert killer.killed, "nobody was killed: a round has fewer calls"
    assert victim is not None
    assert_one_history(watched)
    trained = [(name, round) for name, event, round, _ in watched.events if event == "trained" and name != victim.name]
    assert len(trained) == len(set(trained))
    assert all(len(record.updates) >= 2 for record in watched.records())
    assert victim.id in {update.member for update in watched.records()[4].updates}


def test_all_dead_at_once_go_on_where_the_records_end(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    for machine in cluster.machines:
        cluster.kill(machine)
    cluster.clock.run(cluster.clock.now + 3600.0)
    assert len(watched.records()) == 2
    for machine in cluster.machines:
        cluster.start(machine)
    watched.play(has_records(watched, 4))
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[2:4]] == [3, 3]


def test_while_the_store_is_away_nobody_is_silent_and_the_round_names_all(watched: Watched) -> None:
    cluster = watched.cluster

    def die(machine: MemberMachine, event: str, round: int) -> None:
        if (event, round) == ("claimed", 2) and not cluster.store_dead:
            cluster.store_dead = 1
            watched.witness.fault("store dead", None, 1800.0)

    watched.hook = die
    cluster.begin()
    watched.play(lambda: bool(cluster.store_dead))
    watched.hook = lambda machine, event, round: None
    cluster.clock.run(cluster.clock.now + 1800.0)
    assert len(watched.records()) == 2
    cluster.store_dead = 0
    watched.play(has_records(watched, 4))
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[:4]] == [3] * 4


def test_a_frozen_member_wakes_to_a_record_without_it_and_takes_its_update_back(watched: Watched) -> None:
    cluster, victim = watched.cluster, watched.machine(2)

    def freeze(machine: MemberMachine, event: str, round: int) -> None:
        if machine is victim and (event, round) == ("trained", 1) and machine.life is not None:
            machine.life.freeze(300.0)

    watched.hook = freeze
    cluster.begin()
    watched.play(has_records(watched, 4))
    cluster.close()
    assert_one_history(watched)
    without, after = watched.records()[1], watched.records()[3]
    assert victim.id not in {update.member for update in without.updates}
    assert victim.id in {update.member for update in after.updates}
    assert (victim.name, "update_returned", 1) in [event[:3] for event in watched.events]


def test_who_leaves_is_not_waited_for_and_who_comes_new_is_in_the_next_record(watched: Watched) -> None:
    cluster, leaver = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 2))
    began = cluster.clock.now
    cluster.leave(leaver)
    watched.play(has_records(watched, 3))
    assert cluster.clock.now - began < 1.3 * simulated.INNER_SECONDS
    assert len(watched.records()[2].updates) == 2
    cluster.wipe(leaver)
    cluster.start(leaver)
    watched.play(has_records(watched, 6))
    cluster.close()
    assert_one_history(watched)
    assert leaver.id in {update.member for update in watched.records()[5].updates}


def test_a_member_whose_theta_differs_is_not_chosen_and_comes_back(watched: Watched) -> None:
    """As broken memory makes it."""
    cluster, victim = watched.cluster, watched.machine(1)

    def bend(machine: MemberMachine, event: str, round: int) -> None:
        if machine is victim and (event, round) == ("applied", 5) and machine.program is not None:
            machine.program.state.replica.theta["vector"][0] += 1.0
            machine.program.state.replica._moved()
            machine.program.state.save(theta=machine.program.state.replica.digest())

    watched.hook = bend
    cluster.begin()
    watched.play(has_records(watched, 11))
    cluster.close()
    records = watched.records()
    assert victim.id not in {update.member for update in records[6].updates}
    assert victim.id in {update.member for record in records[7:] for update in record.updates}
    assert (victim.name, "diverged") in [event[:2] for event in watched.events]
    assert len(watched.thetas(9)) == 1


def test_a_checkpoint_takes_the_place_of_payloads_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeState, "sealed_file", lambda self, round, peer, envelope: None)
    watched = Watched(tmp_path)
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 2))
    cluster.kill(late)
    watched.play(has_records(watched, 10))
    objects = cluster.store.buckets[BUCKET]
    for key in [key for round in range(6) for key in objects if f"/payload/{round:08d}/" in key]:
        objects.pop(key)
    cluster.start(late)
    watched.play(has_records(watched, 14))
    cluster.close()
    assert_one_history(watched)
    assert late.id in {update.member for update in watched.records()[13].updates}
    assert (late.name, "caught_up") in [event[:2] for event in watched.events]
    assert (late.name, "interrupted") in [event[:2] for event in watched.events]  # it asked the others first


@pytest.mark.parametrize("fresh", [True, False])
def test_who_comes_after_the_payloads_are_gone_takes_a_checkpoint_at_once(tmp_path: Path, fresh: bool) -> None:
    """A new machine does not read theta_0, and neither asks for what nobody keeps."""
    watched = Watched(tmp_path, members=2)
    cluster, late = watched.cluster, watched.machine(2)
    keep = cluster.spec.cluster.keep_rounds
    cluster.start(watched.machine(1))
    if not fresh:
        cluster.start(late)
        watched.play(has_records(watched, 1))
        cluster.kill(late)
    watched.play(has_records(watched, keep + 6), hours=30)
    read, serve, began = set[str](), cluster.store.before, len(watched.events)

    def before(call: Call) -> None:
        if call.reader == late.name:
            read.add(call.key)
        serve(call)

    cluster.store.before = before
    cluster.start(late)
    watched.play(lambda: late.id in {update.member for update in watched.records()[-1].updates}, hours=1)
    cluster.close()
    assert_one_history(watched)
    happened = [event for name, event, _, _ in watched.events[began:] if name == late.name]
    assert "caught_up" in happened
    assert "interrupted" not in happened
    assert keys.record(cluster.run, keep) in read
    assert keys.blob(cluster.spec.genesis_digest) not in read


def test_who_is_new_begins_at_a_checkpoint_whose_record_can_be_read(tmp_path: Path) -> None:
    """The store has damaged the record before the newest one."""
    watched = Watched(tmp_path)
    cluster, late = watched.cluster, watched.machine(3)
    for machine in cluster.machines[:2]:
        cluster.start(machine)
    watched.play(has_records(watched, 10))
    objects, began = cluster.store.buckets[BUCKET], len(watched.events)
    key = keys.record(cluster.run, 7)  # checkpoints are of rounds 4 and 8
    whole, objects[key] = objects[key], replace(objects[key], data=b"no record")
    watched.witness.fault("store damages", None, 600.0)
    cluster.start(late)
    watched.play(lambda: (late.name, "joined") in [event[:2] for event in watched.events[began:]], hours=0.1)
    objects[key] = whole
    watched.play(has_records(watched, 12))
    cluster.close()
    assert_one_history(watched)
    assert (late.name, "caught_up", 4) in [event[:3] for event in watched.events[began:]]
    assert late.id in watched.records()[11].claims


def test_a_store_that_lies_holds_a_run_up_and_bends_nothing(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    watched.witness.fault("store lies", None, 1800.0)
    cluster.store.faults[BUCKET] = Faults(lies=True)
    cluster.clock.run(cluster.clock.now + 1800.0)
    cluster.store.faults[BUCKET] = Faults()
    watched.play(has_records(watched, 5))
    cluster.close()
    assert_one_history(watched)


def test_old_payloads_and_claims_are_removed_and_records_stay(tmp_path: Path) -> None:
    watched = Watched(tmp_path, members=1)
    watched.cluster.begin()
    watched.play(has_records(watched, 30), hours=30)
    watched.cluster.close()
    objects = watched.cluster.store.buckets[BUCKET]
    payloads = sorted(int(key.split("/payload/")[1][:8]) for key in objects if "/payload/" in key)
    assert payloads[0] >= 30 - watched.cluster.spec.cluster.keep_rounds - 1
    assert len(watched.records()) >= 30


def test_play_ends_at_the_last_round(tmp_path: Path) -> None:
    seen: list[int] = []
    witness = cluster_faults.play(tmp_path, 2, 2, 3, 0.0, on_round=seen.append)
    assert seen == [1, 2, 3]
    assert witness.result.participation == 1.0


def test_a_member_that_will_not_claim_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two whose training diverges in two rounds: it says so by its phase."""
    watched = Watched(tmp_path, members=2)
    cluster, victim = watched.cluster, watched.machine(2)
    compress = RoundWork.compress

    def diverges(work: RoundWork) -> Any:
        if work.signer.peer == victim.id and work.state.saved.round in (1, 2):
            raise Diverged("a NaN")
        return compress(work)

    monkeypatch.setattr(RoundWork, "compress", diverges)
    cluster.begin()
    watched.play(has_records(watched, 5), hours=2)
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[:5]] == [2, 1, 1, 2, 2]


def test_one_object_that_cannot_be_read_stops_nobody(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 1))
    bucket = cluster.store.bucket(BUCKET)
    bucket.put(keys.beats(cluster.run) + "ab" * 32, bytes(5000), timeout_seconds=1)
    bucket.put(keys.claims(cluster.run, 2) + "cd" * 32, bytes(5000), timeout_seconds=1)
    watched.play(has_records(watched, 4), hours=2)
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[:4]] == [3] * 4


def test_a_record_of_another_group_is_told_and_neither_followed_nor_hammered_at(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    cluster.store.bucket(BUCKET).put(keys.record(cluster.run, 2), b"of nobody", timeout_seconds=1)
    before, told = len(watched.events), list[str]()
    sink = logger.add(lambda line: told.append(str(line)), format="{message}", level="WARNING")
    cluster.clock.run(cluster.clock.now + 3600.0)
    logger.remove(sink)
    cluster.close()
    assert {event for _, event, _, _ in watched.events[before:]} <= {
        *("trained", "published", "claimed", "killed", "interrupted")
    }
    assert "was not written by this group" in told[-1]
    assert len(told) < 3 * 10


def test_beats_of_an_earlier_process_that_are_shown_again_end_nobody(watched: Watched) -> None:
    """Its own key has signed them, and they are no sign of a copied home."""
    cluster, victim = watched.cluster, watched.machine(1)
    cluster.begin()
    stored, key = cluster.store.buckets[BUCKET], keys.beats(cluster.run) + victim.id.hex()
    old = []
    for number in range(1, 6):
        watched.play(has_records(watched, number))
        old.append(stored[key])
    cluster.kill(victim)
    cluster.start(victim)
    for number, beat in enumerate(old, 6):
        while not has_records(watched, number)():
            stored[key] = beat
            cluster.clock.run(cluster.clock.now + 1.0)
    assert victim.up
    cluster.close()
    assert_one_history(watched)


def test_a_copied_home_is_found_out(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    cluster = watched.cluster
    cluster.machines[1].id = cluster.machines[0].id
    cluster.begin()
    cluster.clock.run(cluster.clock.now + 7200.0)
    cluster.close()
    ended = [fields["fault"] for _, event, _, fields in watched.events if event == "ended"]
    assert any("its home was copied" in fault for fault in ended)


@pytest.mark.parametrize("members", [2, 3])
def test_who_cannot_get_its_text_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: int) -> None:
    watched = Watched(tmp_path, members)
    cluster, victim, real = watched.cluster, watched.machine(1), Contributor.pages
    closed = list[float]()
    watched.witness.on_round = lambda round: closed.append(cluster.clock.now)

    def pages(self: Contributor, *words: Any) -> Any:
        if self._ledger.me == victim.id and len(closed) > 1:
            raise StorageError("the data set's file is damaged in the bucket")
        return real(self, *words)

    monkeypatch.setattr(Contributor, "pages", pages)
    cluster.begin()
    watched.play(has_records(watched, 6))
    cluster.close()
    assert [len(record.updates) for record in watched.records()[3:]] == [members - 1] * 3
    assert closed[5] - closed[3] < 2 * 1.3 * (closed[1] - closed[0])


@pytest.mark.parametrize("gap", [0.3, 2.0, 400.0])
def test_of_two_machines_of_one_name_the_one_that_began_later_ends(tmp_path: Path, gap: float) -> None:
    """The other one goes on as if nobody had been there."""
    watched = Watched(tmp_path, 4)
    cluster, older, younger = watched.cluster, watched.machine(1), watched.machine(4)
    younger.id, younger.lives = older.id, 7
    for machine in cluster.machines[:3]:
        cluster.start(machine)
    cluster.clock.run(cluster.clock.now + gap)
    cluster.start(younger)
    watched.play(lambda: any(event[:2] == (younger.name, "ended") for event in watched.events))
    younger.down += 1
    end = len(watched.records())
    watched.play(has_records(watched, end + 3))
    cluster.close()
    assert not any(event[:2] == (older.name, "ended") for event in watched.events)
    assert [len(record.updates) for record in watched.records()[end + 1 :]] == [3, 3]
    assert watched.witness.result.disagreements == 0
