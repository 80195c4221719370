"""What the holder of a token wishes of a cluster, in modelled time: other settings, a member that leaves, the last
round; and what kills and strangers make of that."""

from functools import partial
from pathlib import Path

import pytest

from murmur.cluster.deletion import delete_payloads
from murmur.cluster.group_keys import Group
from murmur.cluster.ledger import Ledger
from murmur.cluster.rejoin import last_round, usable
from murmur.lab.simulation.cluster import BUCKET, SECRET, STEPS, Cluster
from murmur.lab.simulation.store import Call
from murmur.protocol import keys
from murmur.protocol.cluster import Amendment, Drain, amended
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.messages import link_of
from murmur.protocol.ports import ObjectFacts
from murmur.protocol.types import PeerId
from storage.realtime import REAL
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records

SLOWER = Amendment(changes={"outer": {"alpha": 0.5}, "cluster": {"beat_seconds": 4.0}, "inner": {"steps": STEPS + 5}})
LAST = Amendment(last=True)


def owner(cluster: Cluster, secret: str = SECRET) -> Ledger:
    return Ledger(cluster.store.bucket(BUCKET), cluster.run, Group(secret), PeerId(bytes(32)), REAL)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def counts(watched: Watched) -> list[int]:
    return [record.amendments for record in watched.records()]


def test_an_amendment_holds_from_the_round_after_the_record_that_names_it(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    assert owner(cluster).amend(1, SLOWER)
    assert not owner(cluster).amend(1, LAST)  # somebody was faster
    watched.play(has_records(watched, 4))
    cluster.kill(watched.machine(1))
    cluster.start(watched.machine(1))
    watched.play(has_records(watched, 7))
    found = counts(watched)
    first = found.index(1)
    assert 1 < first < 4
    assert found == [0] * first + [1] * (len(found) - first)
    for machine in cluster.machines:
        assert machine.program is not None
        spec = machine.program.play.spec
        assert (spec.outer.alpha, spec.inner.steps, spec.cluster.beat_seconds) == (0.5, STEPS + 5, 4.0)
    for number, record in enumerate(watched.records()):
        assert {update.steps for update in record.updates} <= set(range(1, STEPS + 1 + 5 * (number > first)))
    assert any(update.steps == STEPS + 5 for record in watched.records()[first + 1 :] for update in record.updates)
    cluster.close()
    assert_one_history(watched)


@pytest.mark.parametrize("number", range(1, 18, 2))
def test_a_member_killed_while_an_amendment_comes_follows_it_like_the_others(tmp_path: Path, number: int) -> None:
    watched = Watched(tmp_path)
    cluster = watched.cluster
    killer = watched.kill_at_call(watched.machine(1), 1, number)
    cluster.begin()
    watched.play(has_records(watched, 1))
    owner(cluster).amend(1, Amendment(changes={"outer": {"alpha": 0.5}}))
    watched.play(has_records(watched, 5))
    assert killer.killed
    programs = [machine.program for machine in cluster.machines if machine.program is not None]
    assert {program.play.spec.outer.alpha for program in programs} == {0.5}
    cluster.close()
    assert_one_history(watched)
    assert counts(watched)[-1] == 1


def test_what_is_no_amendment_holds_for_nobody_and_stops_nobody(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 1))
    cluster.store.bucket(BUCKET).put(keys.amendment(cluster.run, 1), b"junk", timeout_seconds=1)
    watched.play(has_records(watched, 3))
    cluster.store.bucket(BUCKET).delete(keys.amendment(cluster.run, 1), timeout_seconds=1)
    owner(cluster, "99" * 32).amend(1, LAST)
    watched.play(has_records(watched, 5))
    cluster.store.bucket(BUCKET).delete(keys.amendment(cluster.run, 1), timeout_seconds=1)
    owner(cluster).amend(1, Amendment(changes={"cluster": {"keep_rounds": 1}}))  # less than members need to join
    watched.play(has_records(watched, 7))
    assert counts(watched) == [0] * len(counts(watched))
    cluster.close()
    assert_one_history(watched)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"inner": {"optimizer": "muon"}}, "inner.optimizer"),
        ({"inner": {"stepps": 1}}, "unknown fields of inner"),
        ({"outer": {"momentum": 0.9}}, "outer.momentum"),
        ({"cluster": {"exchange": "int8"}}, "cluster.exchange"),
        ({"cluster": {"silent_seconds": 1.0}}, "three beats"),
    ],
)
def test_what_cannot_change_is_refused(tmp_path: Path, changes: dict[str, dict[str, object]], why: str) -> None:
    spec = Watched(tmp_path).cluster.spec
    with pytest.raises(ConfigError, match=why):
        amended(spec, Amendment.model_validate({"changes": changes}))


def test_a_member_that_died_after_the_request_still_leaves(watched: Watched) -> None:
    cluster, leaver = watched.cluster, watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 2))
    cluster.kill(leaver)
    owner(cluster).drain(leaver.id, Drain(request="ab" * 8))
    watched.play(has_records(watched, 5))
    cluster.start(leaver)
    watched.play(lambda: not leaver.up)
    assert owner(cluster).beats()[leaver.id].leaving
    cluster.close()


def test_a_member_that_dies_as_the_round_of_the_request_ends_leaves_when_it_comes_back(watched: Watched) -> None:
    """It is killed after the round's outer step, before it reads the request."""
    cluster, leaver, killed = watched.cluster, watched.machine(1), list[int]()
    key = keys.drain(cluster.run, leaver.id)
    serve = cluster.store.before

    def before(call: Call) -> None:
        if call.reader == leaver.name and call.key == key and call.verb == "get" and not killed:
            stored = cluster.store.buckets[BUCKET]
            if key in stored and leaver.program is not None and leaver.program.state.saved.round > began:
                killed.append(began)
                cluster.kill(leaver)
                cluster.start(leaver)
                raise StorageError("get: no connection to the endpoint")
        serve(call)

    cluster.begin()
    watched.play(has_records(watched, 2))
    began = owner(cluster).rounds()
    cluster.store.before = before
    owner(cluster).drain(leaver.id, Drain(request="ab" * 8))
    watched.play(lambda: not leaver.up and bool(killed))
    watched.play(has_records(watched, began + 4))
    assert not leaver.up
    assert owner(cluster).beats()[leaver.id].leaving
    cluster.close()


def test_a_drained_member_ends_after_its_round_and_may_come_back(watched: Watched) -> None:
    cluster, leaver = watched.cluster, watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 2))
    owner(cluster).drain(leaver.id, Drain(request="ab" * 8))
    stored = cluster.store.buckets[BUCKET]
    watched.play(lambda: keys.drain(cluster.run, leaver.id) in stored)
    request = stored[keys.drain(cluster.run, leaver.id)]
    watched.play(lambda: not leaver.up)
    done = len(watched.records())
    assert done <= 4
    assert leaver.id in {update.member for update in watched.records()[done - 1].updates}
    assert keys.drain(cluster.run, leaver.id) not in cluster.store.buckets[BUCKET]
    assert owner(cluster).beats()[leaver.id].leaving
    began = cluster.clock.now
    watched.play(has_records(watched, done + 2))
    alone = (cluster.clock.now - began) / 2
    assert all(len(record.updates) == 2 for record in watched.records()[done:])
    cluster.start(leaver)
    began = cluster.clock.now
    watched.play(lambda: leaver.id in {update.member for update in watched.records()[-1].updates})
    stored[keys.drain(cluster.run, leaver.id)] = request  # its deletion was lost, or somebody puts it back
    watched.play(has_records(watched, len(watched.records()) + 3))
    assert leaver.up
    assert len(watched.records()[-1].updates) == 3
    assert alone < 1.2 * (cluster.clock.now - began)  # nobody has waited for it
    cluster.close()
    assert_one_history(watched)


def closed(watched: Watched) -> int:
    """Play until all have ended of themselves, and look at what they leave; how many have put the last theta up."""
    cluster = watched.cluster
    watched.play(lambda: not any(machine.up or machine.down for machine in cluster.machines))
    records = watched.records()
    end = len(records) - 1
    assert counts(watched) == [0] * end + [1]
    assert len({machine.program.state.saved.theta for machine in cluster.machines if machine.program is not None}) == 1
    link = link_of(records[end].selection(cluster.run, end))
    found = [checkpoint for _, checkpoint in usable(owner(cluster)) if checkpoint.link == link]
    assert {checkpoint.round for checkpoint in found} == {end + 1}
    assert last_round(owner(cluster), cluster.spec) == end
    assert_one_history(watched)
    return len(found)


def test_a_closed_clusters_members_all_end_after_the_same_round_with_its_theta_in_the_bucket(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    assert last_round(owner(cluster), cluster.spec) is None
    owner(cluster).amend(1, LAST)
    assert closed(watched) == 1
    assert not [event for event in watched.events if event[1] == "ended"]  # none by a fault
    count = len(watched.records())
    cluster.start(watched.machine(1))  # past the look of murmur/cluster/start.py, it ends again
    watched.play(lambda: not watched.machine(1).up)
    assert len(watched.records()) == count
    cluster.close()


@pytest.mark.parametrize("number", range(1, 120, 13))
def test_a_member_killed_while_the_run_closes_ends_with_the_others(tmp_path: Path, number: int) -> None:
    """At a call after the wish: each is started again until it ends of itself."""
    watched = Watched(tmp_path)
    cluster, victim, calls = watched.cluster, watched.machine(1), 0
    serve = cluster.store.before

    def before(call: Call) -> None:
        nonlocal calls
        if call.reader == victim.name and watched.witness.round >= 1 and call.verb != "list":
            calls += 1
            if calls == number:
                cluster.kill(victim)
                victim.down += 1
                cluster.clock.at(cluster.clock.now + 20, partial(back, victim))
        serve(call)

    def back(machine: object) -> None:
        victim.down -= 1
        cluster.start(victim)

    cluster.store.before = before
    cluster.begin()
    watched.play(has_records(watched, 1))
    owner(cluster).amend(1, LAST)
    assert closed(watched) in (1, 2)  # who comes back has seen nobody yet, and takes it for its turn
    cluster.close()


def test_a_strangers_object_before_ours_stops_no_deletion(watched: Watched) -> None:
    """Such as a folder's marker."""
    cluster, ledger = watched.cluster, owner(watched.cluster)
    cluster.begin()
    watched.play(has_records(watched, 3))
    cluster.close()
    stored = cluster.store.buckets[BUCKET]
    prefixes = (keys.all_claims(cluster.run), keys.payloads(cluster.run))
    for prefix in prefixes:
        cluster.store.bucket(BUCKET).put(prefix, b"", timeout_seconds=1)
        cluster.store.bucket(BUCKET).put(f"{prefix}!", b"", timeout_seconds=1)
    delete_payloads(ledger, 2)
    for prefix in prefixes:
        rounds = {key.removeprefix(prefix)[:8] for key in stored if key.startswith(prefix)}
        assert {"", "!", "00000002"} <= rounds
        assert not {"00000000", "00000001"} & rounds


def test_a_store_that_shows_every_record_is_not_searched_for_ever(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, looks = owner(watched.cluster), list[str]()

    def head(key: str, *, timeout_seconds: float) -> ObjectFacts:
        looks.append(key)
        return ObjectFacts(10, "etag", 0.0)

    monkeypatch.setattr(ledger.bucket, "head", head)
    with pytest.raises(StorageError, match="no run reaches that"):
        ledger.rounds()
    assert len(looks) < 40
