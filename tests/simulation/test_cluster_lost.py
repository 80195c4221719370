"""What a cluster's store loses or damages in a bad moment, in modelled time: checkpoints, amendments, claims, one
read. And what members leave behind that are gone for good."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from murmur.cluster.requests import standing
from node.cluster.ledger import Ledger
from node.cluster.rejoin import newest_shown
from protocol import keys
from protocol.cluster import Amendment
from protocol.errors import StorageError
from simulation.cluster import BUCKET, Cluster, Machine
from simulation.store import Call
from tests.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.simulation.test_cluster_requests import LAST, SLOWER, owner


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def blobs(cluster: Cluster) -> set[str]:
    prefix = keys.states(cluster.run) + "blob/"
    return {key.removeprefix(prefix) for key in cluster.store.buckets[BUCKET] if key.startswith(prefix)}


def named(cluster: Cluster) -> set[str]:
    """Files of the shown checkpoints."""
    return {file.hex() for _, one in newest_shown(owner(cluster).shown()) for file in one.files}


def for_good(cluster: Cluster, machine: Machine) -> None:
    cluster.kill(machine)
    machine.down += 1


def watch(cluster: Cluster, see: Callable[[Call], None]) -> None:
    serve = cluster.store.before

    def before(call: Call) -> None:
        see(call)
        serve(call)

    cluster.store.before = before


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["an old listing", "damaged", "damaged for all but one"])
def test_what_a_store_hides_for_a_moment_is_no_reason_to_delete_checkpoints(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cluster, documents, done = watched.cluster, keys.members_checkpoints(watched.cluster.run), list[str]()
    real = Ledger.shown

    def shown(ledger: Ledger, needed: tuple[bytes, ...] = ()) -> object:
        whole = real(ledger, needed)  # type: ignore[arg-type]
        if not needed or done or {owner for owner, _ in newest_shown(whole)} <= {ledger.me}:
            return whole
        done.append(kind)
        objects = cluster.store.buckets[BUCKET]
        before = {key: objects[key] for key in objects if key.startswith(documents)}
        for key in list(before)[kind == "damaged for all but one" :]:
            if kind == "an old listing":
                if key.endswith(ledger.me.hex()):
                    del objects[key]
            else:
                objects[key] = replace(before[key], data=before[key].data[:-1] + b"x")
        try:
            return real(ledger, needed)  # type: ignore[arg-type]
        finally:
            objects.update(before)

    monkeypatch.setattr(Ledger, "shown", shown)
    cluster.begin()
    watched.play(lambda: bool(done))
    watched.play(has_records(watched, len(watched.records()) + 1))
    assert len(named(cluster)) > 2
    assert named(cluster) <= blobs(cluster)
    cluster.close()


@pytest.mark.parametrize("members", [1, 3])
def test_shown_checkpoints_are_there_and_nothing_else_is(tmp_path: Path, members: int) -> None:
    watched = Watched(tmp_path, members=members)
    cluster = watched.cluster
    cluster.begin()
    for rounds in (11, 15, 19, 23):  # checkpoints are of every fourth round
        watched.play(has_records(watched, rounds))
        shown = {checkpoint.round for _, checkpoint in newest_shown(owner(cluster).shown())}
        assert shown == {rounds - 7, rounds - 3}
        assert named(cluster) == blobs(cluster)
    cluster.close()


def test_where_an_uploader_of_the_last_theta_dies_for_good_another_one_uploads_it(watched: Watched) -> None:
    cluster, dead = watched.cluster, list[Machine]()

    def see(call: Call) -> None:
        if call.verb == "put" and "/state/blob/" in call.key and not dead:
            machine = cluster._by_name.get(call.reader)
            if machine is not None and machine.program is not None and machine.program.amended.closed:
                dead.append(machine)
                for_good(cluster, machine)

    watch(cluster, see)
    cluster.begin()
    watched.play(has_records(watched, 2))
    owner(cluster).amend(1, LAST)
    watched.play(lambda: not any(machine.up for machine in cluster.machines), hours=5)
    assert len(dead) == 1
    shown = {checkpoint.round for _, checkpoint in newest_shown(owner(cluster).shown())}
    assert shown == {len(watched.records())}
    assert named(cluster) <= blobs(cluster)
    assert_one_history(watched)


def test_one_failed_read_after_a_checkpoint_gives_a_closed_run_no_further_round(watched: Watched) -> None:
    cluster, late, failed = watched.cluster, watched.machine(3), list[str]()
    cluster.begin()
    watched.play(has_records(watched, 2))
    for_good(cluster, late)
    watched.play(has_records(watched, 6))
    owner(cluster).amend(1, LAST)
    watched.play(lambda: not any(machine.up for machine in cluster.machines[:2]), hours=5)
    rounds, objects = len(watched.records()), cluster.store.buckets[BUCKET]
    for key in [key for key in objects if "/payload/" in key]:
        del objects[key]  # nobody is there to put them back, so it takes a checkpoint

    def see(call: Call) -> None:
        program = late.program if call.reader == late.name else None
        if program is None or program.state.round != rounds or failed:
            return
        if call.verb == "get" and call.key == keys.record(cluster.run, rounds - 1):
            failed.append(call.key)
            raise StorageError("get: out of time")

    watch(cluster, see)
    late.down -= 1
    cluster.start(late)
    watched.play(lambda: not late.up, hours=3)
    assert failed
    assert len(watched.records()) == rounds
    assert len({machine.program.state.saved.theta for machine in cluster.machines if machine.program is not None}) == 1


# --- amendments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_an_amendment_that_the_store_loses_is_put_back_and_nobody_writes_another_in_its_place(
    watched: Watched, damaged: bool
) -> None:
    cluster, again = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 1))
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 4))
    objects, key = cluster.store.buckets[BUCKET], keys.amendment(cluster.run, 1)
    if damaged:
        objects[key] = replace(objects[key], data=b"?")
    else:
        del objects[key]
    cluster.kill(again)
    with pytest.raises(StorageError, match="amendment 1"):
        standing(owner(cluster), cluster.spec)
    cluster.start(again)  # its disk has it
    watched.play(has_records(watched, 8), hours=2)
    assert owner(cluster).amendment(1) == SLOWER
    assert standing(owner(cluster), cluster.spec).count == 1
    assert again.id in watched.records()[-1].claims
    owner(cluster).amend(2, Amendment(changes={"outer": {"alpha": 0.9}}))
    watched.play(has_records(watched, 11), hours=2)
    assert {machine.program.spec.outer.alpha for machine in cluster.machines if machine.program is not None} == {0.9}
    cluster.close()
    assert_one_history(watched)


# --- claims and wishes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "lost"), [(1, 1), (3, 3), (2, 1)])
def test_claims_that_the_store_loses_are_made_again(tmp_path: Path, members: int, lost: int) -> None:
    """As one that is started again without its last writes."""
    watched = Watched(tmp_path, members=members)
    cluster, gone = watched.cluster, list[str]()

    def see(call: Call) -> None:
        objects = cluster.store.buckets[BUCKET]
        claims = [key for key in objects if key.startswith(keys.claims(cluster.run, 2))]
        if len(claims) >= lost and not gone:
            for key in claims:
                gone.append(key)
                del objects[key]

    watch(cluster, see)
    cluster.begin()
    watched.play(has_records(watched, 4), hours=1)
    assert len(gone) == lost
    assert len(watched.records()[2].claims) == members
    assert not watched.witness.result.unexplained_waits
    cluster.close()
    assert_one_history(watched)


def test_what_a_member_asked_for_that_is_gone_for_good_is_not_uploaded_again_and_again(watched: Watched) -> None:
    cluster, late = watched.cluster, watched.machine(3)
    lost, puts, wanted = ("/payload/00000001/", "/payload/00000002/"), list[str](), keys.wanted_by(cluster.run)
    cluster.begin()
    watched.play(has_records(watched, 1))
    for_good(cluster, late)
    watched.play(has_records(watched, 3))
    objects = cluster.store.buckets[BUCKET]
    for key in [key for key in objects if any(part in key for part in lost)]:
        del objects[key]

    def see(call: Call) -> None:
        if call.verb == "put" and any(part in call.key for part in lost):
            puts.append(call.key)

    watch(cluster, see)
    late.down -= 1
    cluster.start(late)
    while wanted + late.id.hex() not in objects:
        cluster.clock.run(cluster.clock.now + 1.0)
    for_good(cluster, late)
    watched.play(lambda: wanted + late.id.hex() not in objects, hours=12)
    assert len(set(puts)) == 2
    assert len(puts) <= 10 * 2, "in more than an hour"
    cluster.close()
