"""What a cluster's store loses or damages in a bad moment, in modelled time: checkpoints, amendments, claims, one
read. And what members leave behind that are gone for good."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from murmur.cli.cluster.requests import standing
from murmur.cluster import start
from murmur.cluster.amendments import AmendmentLost
from murmur.cluster.checkpoint_turns import MemberShelf, newest_shown
from murmur.cluster.group_keys import Token
from murmur.cluster.ledger import UnreadableRecord
from murmur.cluster.rejoin import last_round
from murmur.lab.simulation.cluster import BUCKET, SECRET, Cluster, MemberMachine
from murmur.lab.simulation.store import Call
from murmur.node.config.settings import ClusterConfig
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.sync.checkpoints import Checkpoint, Shown
from murmur.protocol import keys
from murmur.protocol.cluster import Amendment
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.lab.simulation.test_cluster_requests import LAST, SLOWER, owner

NOW = 1_000_000
"""A round that no run reaches."""


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def blobs(cluster: Cluster) -> set[str]:
    prefix = keys.all_states(cluster.run)
    return {key.rsplit("/")[-1] for key in cluster.store.buckets[BUCKET] if key.startswith(prefix)}


def named(cluster: Cluster) -> set[str]:
    """Files of the shown checkpoints."""
    return {file.hex() for _, one in newest_shown(owner(cluster).shown(), NOW) for file in one.files}


def is_state(key: str) -> bool:
    return "/state/" in key


def for_good(cluster: Cluster, machine: MemberMachine) -> None:
    cluster.kill(machine)
    machine.down += 1


def watch(cluster: Cluster, see: Callable[[Call], None]) -> None:
    serve = cluster.store.before

    def before(call: Call) -> None:
        see(call)
        serve(call)

    cluster.store.before = before


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ours is hidden", "the others are hidden", "all are damaged", "all but one are"])
def test_what_a_store_hides_for_a_moment_is_no_reason_to_delete_checkpoints(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cluster, documents, done = watched.cluster, keys.members_checkpoints(watched.cluster.run), list[str]()
    real = MemberShelf.clear

    def clear(shelf: MemberShelf, published: Shown) -> None:
        ours, objects = shelf.document_key, cluster.store.buckets[BUCKET]
        before = {key: objects[key] for key in objects if key.startswith(documents)}
        if done or len({member for member, _ in newest_shown(owner(cluster).shown(), NOW)}) < 2:
            real(shelf, published)
            return
        done.append(kind)
        for key in list(before)[kind == "all but one are" :]:
            if (kind == "ours is hidden" and key == ours) or (kind == "the others are hidden" and key != ours):
                del objects[key]
            elif kind.startswith("all"):
                objects[key] = replace(before[key], data=before[key].data[:-1] + b"x")
        try:
            real(shelf, published)
        finally:
            objects.update(before)

    monkeypatch.setattr(MemberShelf, "clear", clear)
    cluster.begin()
    watched.play(lambda: bool(done))
    watched.play(has_records(watched, len(watched.records()) + 1))
    assert len(named(cluster)) > 2
    assert named(cluster) <= blobs(cluster)
    watched.play(has_records(watched, len(watched.records()) + 9))
    assert named(cluster) == blobs(cluster)  # the older ones are gone after all
    cluster.close()


@pytest.mark.parametrize("members", [1, 3])
def test_shown_checkpoints_are_there_and_nothing_else_is(tmp_path: Path, members: int) -> None:
    watched = Watched(tmp_path, members=members)
    cluster = watched.cluster
    cluster.begin()
    for rounds in (11, 15, 19, 23):  # checkpoints are of every fourth round
        watched.play(has_records(watched, rounds))
        shown = {checkpoint.round for _, checkpoint in newest_shown(owner(cluster).shown(), NOW)}
        assert shown == {rounds - 7, rounds - 3}
        assert named(cluster) == blobs(cluster)
    cluster.close()


@pytest.mark.parametrize("kind", ["gone for good", "starts again", "starts again without its document"])
def test_files_of_a_member_that_died_while_it_uploaded_go_with_their_round(watched: Watched, kind: str) -> None:
    cluster, dead = watched.cluster, list[MemberMachine]()

    def see(call: Call) -> None:
        if call.verb == "put" and is_state(call.key) and blobs(cluster) - named(cluster) and not dead:
            dead.append(cluster._by_name[call.reader])
            place = call.key.partition("blob/")[0]
            cluster.store.bucket(BUCKET).begin(place + "blob/cut off", timeout_seconds=1)
            for_good(cluster, dead[0])

    watch(cluster, see)
    cluster.begin()
    watched.play(lambda: bool(dead))
    if kind == "starts again without its document":
        del cluster.store.buckets[BUCKET][keys.members_checkpoints(cluster.run) + dead[0].id.hex()]
    if kind != "gone for good":
        dead[0].down -= 1
        cluster.start_later(dead[0])
    assert cluster.store.unfinished[BUCKET]
    watched.play(has_records(watched, len(watched.records()) + 13))
    assert named(cluster) == blobs(cluster)
    assert not cluster.store.unfinished[BUCKET]
    cluster.close()


def test_checkpoints_of_rounds_that_a_backup_takes_back_hide_no_others() -> None:
    """Members that were ahead go on showing them."""
    ahead, behind = (
        Shown(tuple(Checkpoint(round, Digest(bytes(32)), Digest(bytes(32)), ()) for round in rounds))
        for rounds in ((72, 68), (48, 44))
    )
    shown = {PeerId(b"1" * 32): ahead, PeerId(b"2" * 32): behind}
    assert [one.round for _, one in newest_shown(shown, 50)] == [48, 44]
    assert [one.round for _, one in newest_shown(shown, 70)] == [68, 48]


def test_one_lost_record_of_long_ago_hides_no_checkpoint_from_a_newcomer(watched: Watched) -> None:
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 13))
    for_good(cluster, late)
    cluster.wipe(late)
    records = len(watched.records())
    cluster.store.buckets[BUCKET].pop(keys.record(cluster.run, 3))
    late.down -= 1
    cluster.start(late)
    newest = keys.record(cluster.run, records + 2)
    watched.play(lambda: newest in cluster.store.buckets[BUCKET])
    origins = [
        fields["origin"] for name, event, _, fields in watched.events if (name, event) == (late.name, "caught_up")
    ]
    assert origins
    assert origins[0] in ("the checkpoint of round 12", "the checkpoint of round 8")
    cluster.close()


def test_where_an_uploader_of_the_last_theta_dies_for_good_another_one_uploads_it(watched: Watched) -> None:
    cluster, dead = watched.cluster, list[MemberMachine]()

    def see(call: Call) -> None:
        if call.verb == "put" and is_state(call.key) and not dead:
            machine = cluster._by_name.get(call.reader)
            if machine is not None and machine.program is not None and machine.program.play.amended.closed:
                dead.append(machine)
                for_good(cluster, machine)

    watch(cluster, see)
    cluster.begin()
    watched.play(has_records(watched, 2))
    owner(cluster).amend(1, LAST)
    watched.play(lambda: not any(machine.up for machine in cluster.machines), hours=5)
    assert len(dead) == 1
    shown = {checkpoint.round for _, checkpoint in newest_shown(owner(cluster).shown(), NOW)}
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


@pytest.mark.parametrize(("damaged", "killed"), [(False, 1), (True, 3)])
def test_an_amendment_that_the_store_loses_is_put_back_and_nobody_writes_another_in_its_place(
    watched: Watched, damaged: bool, killed: int
) -> None:
    cluster, again = watched.cluster, watched.cluster.machines[-killed:]
    cluster.begin()
    watched.play(has_records(watched, 1))
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 4))
    objects, key = cluster.store.buckets[BUCKET], keys.amendment(cluster.run, 1)
    if damaged:
        objects[key] = replace(objects[key], data=b"?")
    else:
        del objects[key]
    for machine in again:
        cluster.kill(machine)
    with pytest.raises(StorageError, match="amendment 1"):
        standing(owner(cluster), cluster.spec)
    with pytest.raises(AmendmentLost):  # what a start asks first
        last_round(owner(cluster), cluster.spec)
    for machine in again:
        cluster.start(machine)  # its disk has it
    watched.play(has_records(watched, 8), hours=2)
    assert owner(cluster).amendment(1) == SLOWER
    assert standing(owner(cluster), cluster.spec).count == 1
    assert {machine.id for machine in again} <= set(watched.records()[-1].claims)
    owner(cluster).amend(2, Amendment(changes={"outer": {"alpha": 0.9}}))
    watched.play(has_records(watched, 11), hours=2)
    programs = [machine.program for machine in cluster.machines if machine.program is not None]
    assert {program.play.spec.outer.alpha for program in programs} == {0.9}
    cluster.close()
    assert_one_history(watched)


def test_an_amendment_that_is_lost_as_soon_as_a_record_names_it_is_put_back_by_who_wrote_that_record(
    watched: Watched,
) -> None:
    cluster, lost = watched.cluster, list[str]()
    objects, key = cluster.store.buckets[BUCKET], keys.amendment(cluster.run, 1)

    def see(call: Call) -> None:
        if not lost and key in objects and watched.records()[-1].amendments:
            lost.append(key)
            del objects[key]

    cluster.begin()
    watched.play(has_records(watched, 1))
    assert owner(cluster).amend(1, SLOWER)
    watch(cluster, see)
    watched.play(lambda: bool(lost))
    named = len(watched.records())
    watched.play(has_records(watched, named + 3), hours=2)
    assert owner(cluster).amendment(1) == SLOWER
    assert [len(record.claims) for record in watched.records()[named + 1 : named + 3]] == [3, 3]
    cluster.close()
    assert_one_history(watched)


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("fault", [UnreadableRecord, StorageError])
def test_a_start_goes_on_without_what_its_own_disk_may_have(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: bool, fault: type[StorageError]
) -> None:
    """A newcomer ends instead: nobody may be there who puts it back."""
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 2))
    objects, key = cluster.store.buckets[BUCKET], keys.record(cluster.run, len(watched.records()) - 1)
    objects[key] = replace(objects[key], data=b"?")
    cluster.close()

    def see(call: Call) -> None:
        if call.verb == "get" and call.key == key and fault is StorageError:
            raise StorageError("get: the server answered with status 500")

    watch(cluster, see)
    monkeypatch.setattr(start, "open_shared", lambda token: cluster.store.bucket(BUCKET))
    monkeypatch.setattr(start, "find_spec", lambda *rest: cluster.spec)
    monkeypatch.setattr(start, "open_data", lambda *rest: "the data set")
    where = {"endpoint": "https://host", "bucket": BUCKET, "access_key": "key", "secret_key": "key"}
    token = Token(**where, run=cluster.run.hex(), secret=SECRET)
    config, folder = ClusterConfig(name="m", token_file=tmp_path / "token"), tmp_path / "home"
    if joined:
        StateStore(folder, cluster.run)
    with nullcontext() if joined else pytest.raises(fault):
        assert start._found(config, token, folder)[2] is not None, "not that the run is closed"


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


def test_what_a_member_asked_for_that_is_gone_for_good_is_not_uploaded_again_and_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path, seed=3)
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


@pytest.mark.parametrize("what", ["payloads", "the list"])
def test_a_member_gets_what_it_asks_for_within_some_looks(watched: Watched, what: str) -> None:
    """Also payloads that are damaged in their size, and where the store loses its list as well."""
    cluster, late = watched.cluster, watched.machine(3)
    parts, wanted = ("/payload/00000001/", "/payload/00000002/"), keys.wanted_by(cluster.run) + late.id.hex()
    asked, back, lost = list[float](), dict[str, float](), list[str]()
    objects = cluster.store.buckets[BUCKET]
    cluster.begin()
    watched.play(has_records(watched, 1))
    for_good(cluster, late)
    watched.play(has_records(watched, 3))
    payloads = [key for key in objects if any(part in key for part in parts)]
    for key in payloads:
        objects[key] = replace(objects[key], data=bytes(len(objects[key].data)))

    def see(call: Call) -> None:
        if call.key == wanted and call.verb == "put":
            asked.append(cluster.clock.now)
        if call.key in payloads and call.verb == "put":
            back[call.key] = cluster.clock.now
        if what == "the list" and asked and not lost and objects.pop(wanted, None) is not None:
            lost.append(wanted)

    watch(cluster, see)
    late.down -= 1
    cluster.start(late)
    watched.play(lambda: len(back) == len(payloads) and late.id in watched.records()[-1].claims, hours=1)
    assert bool(lost) == (what == "the list")
    silent = cluster.spec.cluster.silent_seconds
    assert min(back.values()) - asked[0] < 4 * silent + 20.0 * len(lost), "seconds, and a pause between two tries"
    cluster.close()
    assert_one_history(watched)


def test_who_lost_a_round_on_its_disk_while_it_asked_for_a_payload_applies_no_record_to_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shown checkpoint cannot be had, and the round before cannot be made again."""
    monkeypatch.setattr(NodeState, "sealed_file", lambda self, round, peer, envelope: None)  # nobody puts it back
    watched = Watched(tmp_path)
    cluster, late, hidden = watched.cluster, watched.machine(3), dict[str, Any]()
    objects = cluster.store.buckets[BUCKET]
    cluster.begin()
    watched.play(lambda: (late.name, "applied", 6) in [event[:3] for event in watched.events])
    cluster.kill(late)
    watched.play(has_records(watched, 14))
    payloads = {key: objects.pop(key) for key in [key for key in objects if "/payload/00000007/" in key]}
    assert payloads

    def see(machine: MemberMachine, event: str, round: int) -> None:
        if machine is late and event == "joined" and not hidden and late.program is not None:
            hidden.update({key: objects.pop(key) for key in [key for key in objects if "/state" in key]})
            state = late.program.state
            newest = [payload for step in state.saved.consensus.log for payload in step.payloads][-1]
            state.redo._path(newest).unlink()

    watched.hook = see
    cluster.start(late)
    began = len(watched.events)
    cluster.clock.run(cluster.clock.now + 400.0)
    assert late.program is not None
    assert late.program.state.saved.round == late.program.play.round.number == 7
    assert (late.name, "applied", 6) in [event[:3] for event in watched.events[began:]], "it has lost round 6"
    objects.update(payloads)
    objects.update(hidden)
    watched.play(lambda: late.program is not None and late.program.state.saved.round > 14)
    cluster.close()
    assert_one_history(watched)
    assert watched.witness.result.broken == []
