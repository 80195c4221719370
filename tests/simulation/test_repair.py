"""What a cluster's bucket has lost or shows wrongly: payloads and records, put back from members' disks."""

from pathlib import Path

import pytest

from protocol import keys
from protocol.cluster import parse_claim
from protocol.types import PeerId
from simulation.cluster import BUCKET, SECRET, Group, Machine
from simulation.store import Objects
from storage.seal import matches
from tests.simulation.test_cluster import Watched, assert_one_history, has_records


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def objects_of(watched: Watched) -> Objects:
    found = watched.cluster.store.buckets[BUCKET]
    assert isinstance(found, Objects)
    return found


def payloads(watched: Watched, round: int) -> list[str]:
    return [key for key in objects_of(watched) if f"/payload/{round:08d}" in key]


def caught_up(watched: Watched, machine: Machine) -> bool:
    return (machine.name, "caught_up") in [event[:2] for event in watched.events]


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
    assert late.id.hex() in {update.member for update in watched.records()[7].updates}
    assert not [key for key in objects if key.startswith(f"{cluster.run.hex()[:16]}/wanted/")]


def test_what_was_claimed_is_never_replaced_by_its_owner(tmp_path: Path) -> None:
    """It has lost what it sealed, and its claim cannot be seen: it seals the round anew."""
    watched = Watched(tmp_path, members=1)
    cluster, owner = watched.cluster, watched.machine(1)
    objects, claimed = objects_of(watched), list[bytes]()

    def forget(machine: Machine, event: str, round: int) -> None:
        if machine is owner and (event, round) == ("claimed", 1) and not claimed:
            key = keys.claims(cluster.run, 1) + owner.id.hex()
            claimed.append(objects.pop(key).data)
            assert owner.program is not None
            sealed = owner.program.held.saved.sealed
            assert sealed is not None
            cluster.kill(owner)
            (owner.program.held.store.files / sealed.object.hex()).write_bytes(b"damaged")
            cluster.start_later(owner)

    watched.hook = forget
    watched.witness.fault("home damaged", owner, 3600.0)
    cluster.begin()
    watched.play(lambda: sum(e[:3] == (owner.name, "published", 1) for e in watched.events) == 2)
    claim = parse_claim(claimed[0], cluster.run, 1, PeerId(owner.id), Group(SECRET).verify)
    envelope = bytes.fromhex(claim.envelope)
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
    key = keys.record(cluster.run, 6 if newest else 5)
    lost = objects_of(watched).pop(key).data
    cluster.start(late)
    watched.play(lambda: key in objects_of(watched))
    assert objects_of(watched)[key].data == lost
    watched.play(has_records(watched, 9))
    cluster.close()
    assert_one_history(watched)
    assert not caught_up(watched, late)
    assert late.id.hex() in {update.member for update in watched.records()[8].updates}
