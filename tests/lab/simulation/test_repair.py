"""What a cluster's bucket has lost or shows wrongly: payloads and records, put back from members' disks."""

from pathlib import Path

import pytest

from murmur.lab.simulation.cluster import BUCKET, SECRET, Group, MemberMachine
from murmur.lab.simulation.store import Call, Objects
from murmur.protocol import keys
from murmur.protocol.cluster import Claim
from murmur.protocol.types import PeerId
from storage.seal import matches
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records

ELSEWHERE = Claim(
    theta="11" * 32, previous="22" * 32, envelope="33" * 32, key="44" * 32, steps=60, seconds=600.0, sending=1.0
)
"""A claim that builds on a record that the store does not have."""


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def objects_of(watched: Watched) -> Objects:
    found = watched.cluster.store.buckets[BUCKET]
    assert isinstance(found, Objects)
    return found


def payloads(watched: Watched, round: int) -> list[str]:
    return [key for key in objects_of(watched) if f"/payload/{round:08d}" in key]


def caught_up(watched: Watched, machine: MemberMachine) -> bool:
    return (machine.name, "caught_up") in [event[:2] for event in watched.events]


def stands_at(machine: MemberMachine) -> int:
    """The round at which it stands."""
    assert machine.program is not None
    return machine.program.state.saved.round


@pytest.mark.parametrize("damaged", [False, True])
def test_a_payload_that_the_bucket_has_lost_comes_from_a_members_disk(watched: Watched, damaged: bool) -> None:
    cluster, late, owner = watched.cluster, watched.machine(3), watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 4))
    watched.witness.fault("away", late, 1e9)
    cluster.kill(late)
    watched.play(has_records(watched, 6))
    watched.witness.fault("away", owner, 1e9)
    cluster.kill(owner)
    objects, lost = objects_of(watched), [key for round in (4, 5) for key in payloads(watched, round)]
    assert lost
    for key in lost:
        found = objects.pop(key)
        if damaged:
            objects[key] = type(found)(bytes(len(found.data)), found.modified)
    cluster.start(late)
    watched.play(has_records(watched, 8))
    cluster.close()
    assert_one_history(watched)
    assert not caught_up(watched, late)
    assert late.id in {update.member for update in watched.records()[7].updates}
    assert not [key for key in objects if key.startswith(f"{cluster.run.hex()[:16]}/wanted/")]


def test_what_was_claimed_is_never_replaced_by_its_owner(tmp_path: Path) -> None:
    """It has lost what it sealed, and its claim cannot be seen: it seals the round anew."""
    watched = Watched(tmp_path, members=1)
    cluster, owner = watched.cluster, watched.machine(1)
    objects, claimed = objects_of(watched), list[bytes]()

    def forget(machine: MemberMachine, event: str, round: int) -> None:
        if machine is owner and (event, round) == ("claimed", 1) and not claimed:
            key = keys.claims(cluster.run, 1) + owner.id.hex()
            claimed.append(objects.pop(key).data)
            assert owner.program is not None
            sealed = owner.program.state.saved.sealed
            assert sealed is not None
            cluster.kill(owner)
            (owner.program.state.store.files / sealed.object.hex()).write_bytes(b"damaged")
            cluster.start_later(owner)

    watched.hook = forget
    watched.witness.fault("home damaged", owner, 3600.0)
    cluster.begin()
    watched.play(lambda: sum(e[:3] == (owner.name, "published", 1) for e in watched.events) == 2)
    claim = Claim.parse(claimed[0], cluster.run, 1, PeerId(owner.id), Group(SECRET).verify)
    envelope = claim.envelope
    there = [objects[key].data for key in payloads(watched, 1) if owner.id.hex() in key]
    cluster.close()
    assert any(matches(envelope)(data) for data in there)


@pytest.mark.parametrize("newest", [False, True])
def test_a_record_that_the_store_has_lost_comes_from_a_members_disk(watched: Watched, newest: bool) -> None:
    """Nobody else closes its round meanwhile, though somebody comes that stands before it."""
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 4))
    watched.witness.fault("away", late, 1e9)
    cluster.kill(late)
    watched.play(has_records(watched, 7))
    watched.play(lambda: all(stands_at(machine) >= 7 for machine in cluster.machines if machine is not late))
    key = keys.record(cluster.run, 6 if newest else 5)
    lost = objects_of(watched).pop(key).data
    cluster.start(late)
    watched.play(lambda: key in objects_of(watched))
    assert objects_of(watched)[key].data == lost
    watched.play(has_records(watched, 9))
    cluster.close()
    assert_one_history(watched)
    assert not caught_up(watched, late)
    assert late.id in {update.member for update in watched.records()[8].updates}


def test_a_record_that_store_and_own_disk_have_lost_comes_from_another_member(watched: Watched) -> None:
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 6))
    watched.play(lambda: all(stands_at(machine) >= 6 for machine in cluster.machines))
    watched.witness.fault("away", late, 1e9)
    cluster.kill(late)
    key = keys.record(cluster.run, 5)
    lost = objects_of(watched).pop(key).data
    for record in late.home.rglob("records/*"):
        record.unlink()
    cluster.start(late)
    watched.play(lambda: key in objects_of(watched))
    assert objects_of(watched)[key].data == lost
    watched.play(has_records(watched, 8))
    cluster.close()
    assert_one_history(watched)
    assert not caught_up(watched, late)
    assert late.id in {update.member for update in watched.records()[7].updates}
    assert not [key for key in objects_of(watched) if key.startswith(f"{cluster.run.hex()[:16]}/wanted/")]


def test_a_damaged_record_is_replaced_by_a_member_that_has_it(watched: Watched) -> None:
    """A member that stands before it asks for it, as for a lost one."""
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 4))
    watched.witness.fault("away", late, 1e9)
    cluster.kill(late)
    watched.play(has_records(watched, 7))
    watched.play(lambda: all(stands_at(machine) >= 7 for machine in cluster.machines if machine is not late))
    objects, key = objects_of(watched), keys.record(cluster.run, 5)
    whole = objects[key]
    objects[key] = type(whole)(b"damaged", whole.modified)
    cluster.start(late)
    watched.play(lambda: objects[key].data == whole.data)
    watched.play(has_records(watched, 10))
    cluster.close()
    assert_one_history(watched)
    assert not caught_up(watched, late)
    assert late.id in {update.member for update in watched.records()[9].updates}


@pytest.mark.parametrize("readable", [True, False])
def test_who_has_claimed_on_a_lost_record_claims_anew_and_asks_no_more_than_others(
    tmp_path: Path, readable: bool
) -> None:
    """It is alone, and its own claim of its round is of another history, or damaged."""
    watched = Watched(tmp_path, members=1)
    cluster, alone = watched.cluster, watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 4))
    watched.witness.fault("away", alone, 1e9)
    cluster.kill(alone)
    round, objects = len(watched.records()), objects_of(watched)
    data = ELSEWHERE.encode(cluster.run, round, Group(SECRET).signer(alone.id)) if readable else b"damaged"
    some = next(iter(objects.values()))
    objects[keys.claims(cluster.run, round) + alone.id.hex()] = type(some)(data, some.modified)
    calls, serve = list[Call](), cluster.store.before

    def count(call: Call) -> None:
        calls.append(call)
        serve(call)

    cluster.store.before = count
    cluster.start(alone)
    began = cluster.clock.now
    if readable:
        watched.play(has_records(watched, round + 2))
    else:
        cluster.clock.run(began + 3600.0)
    cluster.close()
    assert len(calls) < 10 * (cluster.clock.now - began)


def test_a_dead_members_claim_of_another_history_decides_nothing(tmp_path: Path) -> None:
    """The bucket was put back from a backup: a member that is gone has claimed on records that are gone, too."""
    watched = Watched(tmp_path, members=2)
    cluster, gone, alone = watched.cluster, watched.machine(1), watched.machine(2)
    cluster.begin()
    watched.play(has_records(watched, 4))
    for machine in (gone, alone):
        watched.witness.fault("away", machine, 1e9)
        cluster.kill(machine)
    round = len(watched.records())
    data = ELSEWHERE.encode(cluster.run, round, Group(SECRET).signer(gone.id))
    objects = objects_of(watched)
    some = next(iter(objects.values()))
    objects[keys.claims(cluster.run, round) + gone.id.hex()] = type(some)(data, some.modified)
    cluster.start(alone)
    watched.play(has_records(watched, round + 3))
    cluster.close()
    later = watched.records()[round:]
    assert all({update.member for update in record.updates} == {alone.id} for record in later)
    assert min(update.steps for record in later for update in record.updates) > 40
    assert not [event for event in watched.events if event[1] == "diverged"]


# --- checkpoints -------------------------------------------------------------------------------------------------


def files_of_states(watched: Watched) -> list[str]:
    return [key for key in objects_of(watched) if "blob/" in key and not key.startswith("blob/")]


def uploads(watched: Watched) -> dict[str, list[str]]:
    """Who has sent the files of checkpoints, by key, from now on."""
    found: dict[str, list[str]] = {}
    serve = watched.cluster.store.before

    def before(call: Call) -> None:
        if call.verb == "put" and "blob/" in call.key:
            found.setdefault(call.key, []).append(call.reader)
        serve(call)

    watched.cluster.store.before = before
    return found


def test_members_put_up_a_state_once_and_the_newest_two_stay(watched: Watched) -> None:
    sent = uploads(watched)
    watched.cluster.begin()
    watched.play(has_records(watched, 24), hours=20)
    watched.cluster.close()
    assert len(sent) >= 2 * 5
    assert all(len(senders) == 1 for senders in sent.values())
    assert 2 * 2 <= len(files_of_states(watched)) <= 2 * 3


def test_the_next_in_order_puts_up_a_state_whose_first_one_dies_at_it_and_sends_no_file_twice(
    watched: Watched,
) -> None:
    cluster, sent, dead = watched.cluster, uploads(watched), list[str]()
    serve = cluster.store.before

    def before(call: Call) -> None:
        serve(call)
        if call.verb == "put" and "blob/" in call.key and len(sent) == 2 and not dead:
            dead.append(call.reader)
            machine = next(machine for machine in cluster.machines if machine.name == call.reader)
            watched.witness.fault("away", machine, 1e9)
            cluster.kill(machine)

    cluster.store.before = before
    cluster.begin()
    watched.play(has_records(watched, 8))
    cluster.close()
    first, second = list(sent)[:2]
    assert sent[first] == dead
    assert len(sent[second]) == 2  # the first of which never came to its end
    assert {first, second} <= set(files_of_states(watched))


def test_a_member_that_leaves_for_good_leaves_nothing(watched: Watched) -> None:
    cluster, gone = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 6))
    watched.witness.fault("away", gone, 1e9)
    cluster.kill(gone)
    assert [key for key in objects_of(watched) if gone.id.hex() in key]
    watched.play(lambda: not [key for key in objects_of(watched) if gone.id.hex() in key], hours=30)
    cluster.close()
    assert len(watched.records()) < 60
    assert len(files_of_states(watched)) <= 2 * 3


def test_who_comes_new_starts_from_a_checkpoint_whoever_has_put_it_up(watched: Watched) -> None:
    cluster, new = watched.cluster, watched.machine(3)
    for machine in cluster.machines[:2]:
        cluster.start(machine)
    watched.play(has_records(watched, 30), hours=30)
    cluster.start(new)
    watched.play(has_records(watched, 33), hours=3)
    cluster.close()
    assert_one_history(watched)
    assert caught_up(watched, new)
    assert new.id in {update.member for update in watched.records()[32].updates}
