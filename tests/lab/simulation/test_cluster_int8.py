"""Clusters of the int8 exchange in modelled time: momentum is part of the one theta of a round, whatever dies."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.cluster import mean_parts
from murmur.lab.simulation.cluster import BUCKET, SECRET, Cluster, Group, MemberMachine
from murmur.lab.simulation.cluster_faults import play
from murmur.lab.simulation.store import Call
from murmur.node.fetch.opening import open_payload
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import SealedRound
from murmur.protocol import keys
from murmur.protocol.cluster import Claim, Contribution, MeanPart, Record
from murmur.protocol.layout import DenseLayout
from murmur.protocol.types import PeerId
from murmur.rounds.contribution import RoundWork
from murmur.training.replica import VELOCITY
from sparseloco import ops
from sparseloco.dense import DenseUpdate
from sparseloco.update import Update
from storage import seal
from storage.seal import BLOCK_BYTES
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.lab.simulation.test_cluster_requests import owner


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, exchange="int8")


def test_a_storm_leaves_one_theta_a_round(tmp_path: Path) -> None:
    witness = play(tmp_path, 5, 6, 20, 60.0, exchange="int8")
    assert witness.result.broken == []
    assert witness.result.disagreements == 0
    assert witness.result.faults > 25
    assert witness.result.participation > 0.85  # 20 rounds: one left out is 0.01
    assert not witness.result.given_back


PART = ("put payload 1", "create mean 1", "after create mean 1")
COMMITS = (*PART, "put payload 2", "put blocks 2", "put claim 2", "after put claim 2", "create record 2")
"""The calls by which a member makes its part of the mean of round 1, takes part in round 2, and closes it."""


@pytest.mark.parametrize("at", [*range(1, 26, 8), *COMMITS])
def test_a_member_killed_at_any_call_to_the_store_comes_back_to_the_same_theta_and_momentum(
    tmp_path: Path, at: int | str
) -> None:
    watched = Watched(tmp_path, exchange="int8")
    killer = watched.kill_at_call(watched.machine(1) if isinstance(at, int) else None, 2, at)
    watched.cluster.begin()
    watched.play(has_records(watched, 6))
    watched.cluster.close()
    victim = killer.victim
    assert killer.killed, "nobody was killed: a round has fewer calls"
    assert victim is not None
    assert_one_history(watched)
    assert victim.id in {update.member for update in watched.records()[5].updates}


def test_who_joins_late_takes_momentum_from_a_checkpoint_and_is_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeState, "sealed_file", lambda self, round, peer, envelope: None)  # nobody puts them back
    watched = Watched(tmp_path, exchange="int8")
    cluster, late = watched.cluster, watched.machine(3)
    for machine in cluster.machines[:2]:
        cluster.start(machine)
    watched.play(has_records(watched, 10))
    objects = cluster.store.buckets[BUCKET]
    for key in [key for round in range(6) for key in objects if f"/payload/{round:08d}/" in key]:
        objects.pop(key)  # the records alone do not lead on from theta_0
    cluster.start(late)
    watched.play(has_records(watched, 14))
    program = late.program
    assert program is not None
    assert any(name.startswith(VELOCITY) for name in program.state.replica.consensus_state().tensors)
    cluster.close()
    assert_one_history(watched)
    assert late.id in {update.member for update in watched.records()[13].updates}
    assert (late.name, "caught_up") in [event[:2] for event in watched.events]


def test_all_dead_at_once_replay_their_rounds_to_the_same_momentum(tmp_path: Path) -> None:
    watched = Watched(tmp_path, exchange="int8")
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 7))  # three rounds since the last snapshot
    for machine in cluster.machines:
        cluster.kill(machine)
    for machine in cluster.machines:
        cluster.start(machine)
    watched.play(has_records(watched, 9))
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[7:9]] == [3, 3]


def test_who_dies_before_its_own_state_is_saved_starts_again(watched: Watched) -> None:
    """Its sealed update is on the disk, and the inner state is from before it."""
    cluster, victim, sealed = watched.cluster, watched.machine(1), RoundWork.seal
    cluster.begin()
    watched.play(has_records(watched, 2))

    def killed(work: RoundWork, round: int, update: Update, left: Callable[[], float]) -> SealedRound:
        found = sealed(work, round, update, left)
        if work.signer.peer == victim.id and victim.up:
            watched.witness.fault("killed", victim, 60.0)
            cluster.kill(victim)
            cluster.start_later(victim)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RoundWork, "seal", killed)
        watched.play(has_records(watched, 3))
    watched.play(has_records(watched, 5))
    cluster.close()
    assert_one_history(watched)
    assert victim.id in watched.records()[4].claims


# --- parts of the mean -------------------------------------------------------------------------------------------


def dies_when_closed(
    watched: Watched, round: int, also: Callable[[MemberMachine], None] = lambda machine: None
) -> MemberMachine:
    """Kill a member as soon as this round is closed; `also` happens at that moment."""
    victim = watched.machine(1)

    def kill(machine: MemberMachine, event: str, of: int) -> None:
        if (event, of) == ("closed", round) and victim.up:
            watched.witness.fault("killed", victim, 1e9)
            watched.cluster.kill(victim)
            also(victim)

    watched.hook = kill
    return victim


def test_each_contributor_sums_a_part(watched: Watched) -> None:
    cluster, serve, calls = watched.cluster, watched.cluster.store.before, list[Call]()

    def before(call: Call) -> None:
        calls.append(call)
        serve(call)

    cluster.store.before = before
    cluster.begin()
    watched.play(has_records(watched, 5))
    cluster.close()
    assert_one_history(watched)
    for round in range(1, 4):
        owners = {update.member: update for update in watched.records()[round].updates}
        assert len(owners) == 3
        for machine in cluster.machines:
            pointed = pointer(watched, round, machine)
            assert {call.reader for call in calls if (call.verb, call.key) == ("create", pointed)} == {machine.name}


def pointer(watched: Watched, round: int, owner: MemberMachine) -> str:
    """The key under which the part of a member is pointed to."""
    link = watched.records()[round].link(watched.cluster.run, round)
    return keys.mean_part(watched.cluster.run, round, owner.id, link)


def owner_key(cluster: Cluster, round: int, update: Claim) -> str:
    """The key of a claimed payload."""
    group = Group(SECRET)
    key = group.wrap(bytes.fromhex(update.key), update.envelope)
    assert isinstance(update, Contribution)
    return keys.members_payload(cluster.run, round, update.member, sha256(key).digest())


def test_the_part_of_a_member_that_died_is_made_by_another(watched: Watched) -> None:
    victim = dies_when_closed(watched, 2)
    watched.cluster.begin()
    watched.play(has_records(watched, 5))
    watched.cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[1:5]] == [3, 3, 2, 2]
    assert victim.id in watched.records()[2].claims


def test_the_part_of_a_slow_member_is_made_by_another(watched: Watched) -> None:
    cluster, slow, calls = watched.cluster, watched.machine(1), list[Call]()
    serve = cluster.store.before

    def before(call: Call) -> None:
        calls.append(call)
        serve(call)

    def slow_down(machine: MemberMachine, event: str, round: int) -> None:
        if (event, round) == ("closed", 2) and not slow.slow:
            watched.witness.fault("link slow", slow, 1e9)
            slow.slow.append(100.0)

    cluster.store.before, watched.hook = before, slow_down
    cluster.begin()
    watched.play(lambda: any(event[1:3] == ("applied", 2) for event in watched.events))
    cluster.close()
    pointed = pointer(watched, 2, slow)
    makers = [call.reader for call in calls if (call.verb, call.key) == ("create", pointed)]
    assert makers
    assert makers[0] != slow.name


def test_a_payload_that_is_lost_with_its_member_counts_as_zeros(watched: Watched) -> None:
    def lose(victim: MemberMachine) -> None:
        objects = watched.cluster.store.buckets[BUCKET]
        update = watched.records()[2].claims[victim.id]
        del objects[owner_key(watched.cluster, 2, update)]

    victim = dies_when_closed(watched, 2, lose)
    watched.cluster.begin()
    watched.play(has_records(watched, 5), hours=2)
    assert victim.id in watched.records()[2].claims
    watched.hook = lambda machine, event, round: None
    watched.cluster.start(victim)
    watched.play(has_records(watched, 8))
    watched.cluster.close()
    assert_one_history(watched)
    assert victim.id in watched.records()[7].claims  # it reads what the others have made of that round


@pytest.mark.parametrize("what", ["pointers", "objects", "both", "garbage"])
def test_parts_that_the_store_loses_are_put_back(watched: Watched, what: str) -> None:
    cluster, late = watched.cluster, watched.machine(3)
    cluster.begin()
    watched.play(has_records(watched, 2))
    cluster.kill(late)
    watched.play(has_records(watched, 5))
    objects = cluster.store.buckets[BUCKET]
    for key in [key for key in objects if f"/payload/{3:08d}/" in key]:
        if what == "garbage" and "/mean-" in key:
            objects[key] = replace(objects[key], data=b"no pointer")
        elif (what in ("pointers", "both") and "/mean-" in key) or (
            what in ("objects", "both") and "/mean-" not in key
        ):
            del objects[key]
    watched.witness.fault("store loses", None, 1800.0)
    began = len(watched.events)
    cluster.start(late)
    watched.play(lambda: late.id in watched.records()[-1].claims, hours=1)
    cluster.close()
    assert_one_history(watched)
    assert (late.name, "applied", 3) in [event[:3] for event in watched.events[began:]]


@pytest.mark.parametrize("block_bytes", [BLOCK_BYTES, 16])
def test_the_parts_are_the_mean_of_all_payloads(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """Also where a part lies in several blocks, and is summed piece by piece."""
    for module in (seal, mean_parts):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(mean_parts, "PIECE_BYTES", 2 * block_bytes)
    cluster, objects = watched.cluster, watched.cluster.store.buckets[BUCKET]
    cluster.begin()
    watched.play(has_records(watched, 4))
    cluster.close()
    layout, ledger = cluster.spec.layout, owner(cluster)
    assert isinstance(layout, DenseLayout)
    assert block_bytes > 16 or layout.records_bytes > 5 * block_bytes
    for round, record in enumerate(watched.records()[:3]):
        parts = ledger.mean_parts(round, record.link(cluster.run, round), list(record.claims))

        def opened(peer: PeerId, claim: Claim | MeanPart, layout: DenseLayout, round: int = round) -> Update:
            key = ledger.key_of(claim)
            return open_payload(layout, peer, round, key, objects[ledger.payload_key(round, peer, key)].data)

        whole = ops.dense_mean([opened(peer, claim, layout) for peer, claim in record.claims.items()], layout)
        cut = [
            opened(peer, parts[peer], part)
            for peer, part in zip(record.claims, layout.parts(len(record.updates)), strict=True)
        ]
        assert b"".join(part.records for part in cut) == bytes(whole.records)


def left_out(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every piece that is summed from now on: whether an update counts as zeros in it."""
    found, mean = list[bool](), ops.dense_mean

    def seen(updates: Sequence[Update | None], layout: DenseLayout) -> DenseUpdate:
        found.append(None in updates)
        return mean(updates, layout)

    monkeypatch.setattr(mean_parts.ops, "dense_mean", seen)
    return found


@pytest.mark.parametrize("owner_dead", [False, True])
def test_a_round_that_is_closed_anew_has_another_mean(watched: Watched, owner_dead: bool) -> None:
    """Two of three have a record and have begun to sum, and die; the store loses it, and the third closes the round."""
    cluster, objects = watched.cluster, watched.cluster.store.buckets[BUCKET]
    third = max(cluster.machines, key=lambda machine: machine.id)
    cluster.begin()
    watched.play(has_records(watched, 3))
    serve, lost, claimed = cluster.store.before, list[Record](), keys.claims(cluster.run, 3) + third.id.hex()

    def before(call: Call) -> None:
        if (call.reader, call.verb, call.key) == (third.name, "put", claimed):
            while not lost and third.life is not None:
                third.life.sleep(0.5)  # its claim is under way
        serve(call)
        summed = any("/mean-" in key and "/payload/00000003/" in key for key in objects)
        if not lost and summed and call.reader != third.name:
            lost.append(watched.records()[3])
            watched.witness.fault("store loses", None, 1e6)
            for machine in cluster.machines:
                if machine is not third:
                    cluster.kill(machine)
            del objects[keys.record(cluster.run, 3)]

    cluster.store.before = before
    watched.play(lambda: bool(lost) and keys.record(cluster.run, 3) in objects)
    anew = watched.records()[3]
    assert len(lost[0].updates) == 2
    assert third.id in anew.claims
    for machine in cluster.machines:
        if not machine.up and not (owner_dead and machine.id == min(lost[0].claims)):
            cluster.start(machine)
    watched.play(has_records(watched, 6), hours=3)
    cluster.close()
    assert_one_history(watched)


def test_a_part_that_is_lost_with_its_maker_is_made_again(watched: Watched) -> None:
    cluster, victim, objects = watched.cluster, watched.machine(1), watched.cluster.store.buckets[BUCKET]
    serve, done = cluster.store.before, list[str]()

    def before(call: Call) -> None:
        serve(call)
        if not done and len(watched.records()) == 3 and (pointed := pointer(watched, 2, victim)) in objects:
            done.append(pointed)
            ledger = owner(cluster)
            [part] = ledger.mean_parts(2, watched.records()[2].link(cluster.run, 2), [victim.id]).values()
            objects.pop(ledger.payload_key(2, victim.id, ledger.key_of(part)))
            watched.witness.fault("killed", victim, 1e9)
            cluster.kill(victim)

    cluster.store.before = before
    cluster.begin()
    watched.play(has_records(watched, 5), hours=3)
    cluster.close()
    assert done
    assert_one_history(watched)


@pytest.mark.parametrize("what", ["payload", "blocks"])
def test_what_the_store_loses_of_the_living_is_put_back_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    watched = Watched(tmp_path, members=8, exchange="int8")
    cluster, objects, zeros = watched.cluster, watched.cluster.store.buckets[BUCKET], left_out(monkeypatch)
    lost = set[int]()

    def lose(machine: MemberMachine, event: str, round: int) -> None:
        if event == "closed" and round >= 2 and round not in lost:
            lost.add(round)
            record = watched.records()[round]
            key = owner_key(cluster, round, record.claims[sorted(record.claims)[round % 8]])
            objects.pop(key if what == "payload" else keys.blocks(key))
            watched.witness.fault("store loses", None, 60.0)

    watched.hook = lose
    cluster.begin()
    watched.play(has_records(watched, 6))
    cluster.close()
    assert_one_history(watched)
    assert lost
    assert zeros
    assert not any(zeros)
