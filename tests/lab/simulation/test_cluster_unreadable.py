"""What a cluster's store has and does not bring (a broken disk answers with 500), in modelled time; deletion of much;
and a machine that computes the last outer step wrongly."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.cli.cluster.requests import _create
from murmur.cluster.deletion import delete_states
from murmur.cluster.mean import MeanRound
from murmur.cluster.rejoin import theta_of_most
from murmur.export.cluster_states import ClusterStates
from murmur.lab.simulation.cluster import BUCKET, MemberMachine
from murmur.lab.simulation.store import Call
from murmur.node.fetch.payloads import Lacking
from murmur.protocol import keys
from murmur.protocol.cluster import Amendment
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.types import Digest, PeerId
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records
from tests.lab.simulation.test_cluster_lost import watch
from tests.lab.simulation.test_cluster_requests import LAST, SLOWER, counts, owner


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def breaks(watched: Watched, broken: set[str]) -> None:
    """Reads of these objects are answered with 500."""

    def see(call: Call) -> None:
        if call.verb == "get" and call.key in broken:
            raise StorageError("get: the server answered with status 500")

    watch(watched.cluster, see)


@pytest.mark.parametrize("what", ["the last record", "an older record", "the amendment"])
def test_a_member_starts_again_from_its_disk_where_the_store_cannot_read_what_it_has_applied(
    watched: Watched, what: str
) -> None:
    cluster, broken, again = watched.cluster, set[str](), watched.machine(1)
    breaks(watched, broken)
    cluster.begin()
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 4))
    assert counts(watched)[-1] == 1
    cluster.kill(again)
    assert again.program is not None
    round = again.program.state.saved.round
    key = {
        "the last record": keys.record(cluster.run, round - 1),
        "an older record": keys.record(cluster.run, round - 2),
        "the amendment": keys.amendment(cluster.run, 1),
    }[what]
    broken.add(key)
    cluster.start(again)
    watched.play(has_records(watched, len(watched.records()) + 3), hours=2)
    assert again.id in {update.member for update in watched.records()[-1].updates}
    cluster.close()
    assert_one_history(watched)


def test_an_amendment_that_cannot_be_read_yet_holds_no_round_up(watched: Watched) -> None:
    cluster, broken = watched.cluster, set[str]()
    breaks(watched, broken)
    cluster.begin()
    watched.play(has_records(watched, 1))
    broken.add(keys.amendment(cluster.run, 1))
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 4), hours=2)
    assert set(counts(watched)) == {0}
    broken.clear()
    watched.play(lambda: counts(watched)[-1] == 1)
    cluster.close()
    assert_one_history(watched)


def test_who_cannot_be_read_is_not_taken_for_silent(watched: Watched) -> None:
    """One machine of the store is down: two of three beats come."""
    cluster, other, broken = watched.cluster, watched.machine(1), set[str]()
    breaks(watched, broken)
    cluster.begin()
    watched.play(has_records(watched, 1))
    key = keys.beats(cluster.run) + other.id.hex()
    broken.add(key)
    beats, unread = owner(cluster).read_beats()
    assert (other.id in beats, unread) == (False, {other.id})
    watched.play(has_records(watched, 2))
    for machine in cluster.machines:
        program = machine.program
        assert program is not None
        assert other.id in program.view.value.presence.running()
    cluster.close()


def test_many_files_of_an_old_checkpoint_are_all_deleted(watched: Watched) -> None:
    cluster, ledger = watched.cluster, owner(watched.cluster)
    bucket, stored = ledger.states(0), cluster.store.buckets[BUCKET]
    for number in range(600):
        bucket.put(keys.blob(Digest(number.to_bytes(32, "big"))), b"", timeout_seconds=1)
    ledger.states(1).put(keys.blob(Digest(bytes(32))), b"", timeout_seconds=1)
    prefix = keys.all_states(cluster.run)
    assert sum(key.startswith(prefix) for key in stored) == 601
    delete_states(ledger, 1)
    assert sum(key.startswith(prefix) for key in stored) == 1


def test_an_amendment_is_checked_with_the_one_that_somebody_wrote_meanwhile(watched: Watched) -> None:
    cluster, ledger = watched.cluster, owner(watched.cluster)
    shorter, rarer = (
        Amendment(changes={"cluster": {"silent_seconds": 15.0}}),
        Amendment(changes={"cluster": {"beat_seconds": 5.5}}),
    )
    assert ledger.amend(1, shorter)
    with pytest.raises(ConfigError, match="three beats"):
        _create(ledger, cluster.spec, rarer)
    assert ledger.amendment(2) is None
    assert ledger.amend(2, rarer)  # as an earlier release does
    with pytest.raises(ConfigError, match="Delete this object"):
        _create(ledger, cluster.spec, LAST)


def test_an_update_is_not_given_up_for_the_time_of_an_outage() -> None:
    """Nobody was asked for it, since the store is away."""
    away, peer, now = True, PeerId(bytes(32)), 0.0

    def ask(round: int, peers: list[PeerId]) -> None:
        if away:
            raise StorageError("put: no connection to the endpoint")

    def make(*_: Any) -> None:
        raise Lacking(1, [peer], "its payload cannot be read")

    mean: Any = MeanRound.__new__(MeanRound)
    mean._ledger = SimpleNamespace(time=SimpleNamespace(now=lambda: now))
    presence = SimpleNamespace(running=lambda: {peer})
    mean._view = SimpleNamespace(value=SimpleNamespace(presence=presence), rules=SimpleNamespace(silent_seconds=20.0))
    mean._wants = SimpleNamespace(publish=ask)
    mean._maker, mean._lacking, mean._on_piece = SimpleNamespace(make=make), {}, lambda: None
    away = False
    assert not mean._make(1, None, peer)
    away = True
    with pytest.raises(StorageError):
        mean._make(1, None, peer)
    now = 1000.0
    assert mean._without(1) == []
    away = False
    assert not mean._make(1, None, peer)
    now = 1200.0
    assert mean._without(1) == []
    now = 1301.0
    assert mean._without(1) == [peer]


def test_a_machine_that_computes_the_last_theta_wrongly_does_not_decide_it(watched: Watched, tmp_path: Path) -> None:
    """It uploads its own first; the others upload theirs, and an export takes what most members hold."""
    cluster, wrong = watched.cluster, watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 2))
    computes_wrongly(wrong, cluster.spec.layout.num_parameters)
    owner(cluster).amend(1, LAST)
    watched.play(lambda: not any(machine.up or machine.down for machine in cluster.machines), hours=5)
    end = len(watched.records())
    thetas = {one.name: one.program.state.saved.theta for one in cluster.machines if one.program is not None}
    [right] = {theta for name, theta in thetas.items() if name != wrong.name}
    assert thetas[wrong.name] != right
    assert theta_of_most(owner(cluster), end) == right
    shown = {one.state for document in owner(cluster).shown().values() for one in document.checkpoints}
    held = {one.program.state.saved.consensus.snapshot.state for one in cluster.machines if one.program is not None}
    assert len(held) == 2
    assert held <= shown
    states = ClusterStates(cluster.spec, owner(cluster), lambda line: None)
    assert (states.newest, states.at(end).theta) == (end, right)
    assert states.rebuild(states.at(end), tmp_path / "export").digest == right


def computes_wrongly(machine: MemberMachine, count: int) -> None:
    """From its next round after the amendment on: one value of theta is off."""
    program = machine.program
    assert program is not None
    step = program.state.replica.outer_step

    def broken(*words: Any, **named: Any) -> Any:
        done = step(*words, **named)
        if program.play.amended.coming(program.ledger.amendment).count > program.play.amended.count:
            next(iter(program.state.replica.theta.values())).view(-1)[0] += 1.0
        return done

    program.state.replica.outer_step = broken  # type: ignore[method-assign]


@pytest.mark.parametrize("dies", [False, True])
def test_an_update_that_is_in_the_bucket_is_not_sent_again_where_the_claim_failed(watched: Watched, dies: bool) -> None:
    cluster, machine, sent, failed, claimed = watched.cluster, watched.machine(1), list[str](), list[str](), list[str]()
    times = 1 if dies else 3
    claim = keys.claims(cluster.run, 2) + machine.id.hex()

    def see(call: Call) -> None:
        if call.verb != "put":
            return
        if call.reader != machine.name:
            if call.key.startswith(keys.claims(cluster.run, 2)) and not claimed:
                raise StorageError("put: out of time")  # the round has to wait for this member
            return
        if f"/payload/00000002/{machine.id.hex()}" in call.key:
            sent.append(call.key)
        if call.key == claim and len(failed) < times:
            failed.append(call.key)
            if dies:
                cluster.kill(machine)
                cluster.start(machine)
            raise StorageError("put: out of time")
        if call.key == claim:
            claimed.append(call.key)

    watch(cluster, see)
    cluster.begin()
    watched.play(has_records(watched, 4))
    assert len(failed) == times
    assert len(sent) == 1
    assert machine.id in {update.member for update in watched.records()[2].updates}
    cluster.close()


def test_the_stores_record_says_what_is_in_force_and_not_one_that_lost_a_race(watched: Watched) -> None:
    """Two records of the same claims have one link, whatever amendments they name."""
    cluster, machine = watched.cluster, watched.machine(1)
    cluster.begin()
    assert owner(cluster).amend(1, SLOWER)
    watched.play(has_records(watched, 4))
    cluster.kill(machine)
    program = machine.program
    assert program is not None
    round = program.state.saved.round
    record = watched.records()[round - 1]
    assert record.amendments == 1
    program.play.log.keep(round - 1, record.model_copy(update={"amendments": 0}))
    cluster.start(machine)
    watched.play(has_records(watched, round + 4))
    cluster.close()
    assert_one_history(watched)
    assert not [event for event in watched.events if event[1] == "diverged"]


def test_an_amendment_that_is_refused_stays_on_no_disk(watched: Watched) -> None:
    cluster = watched.cluster
    cluster.begin()
    assert owner(cluster).amend(1, Amendment(changes={"cluster": {"silent_seconds": 1.0}}))  # below three beats
    watched.play(has_records(watched, 3))
    assert set(counts(watched)) == {0}
    for machine in cluster.machines:
        assert machine.program is not None
        assert machine.program.play.amendments._disk.find(1) is None
    cluster.close()


def test_a_member_that_starts_in_a_closed_run_still_tells_its_theta(watched: Watched) -> None:
    cluster, machine = watched.cluster, watched.machine(1)
    cluster.begin()
    watched.play(has_records(watched, 1))
    owner(cluster).amend(1, LAST)
    watched.play(lambda: not any(one.up or one.down for one in cluster.machines), hours=5)
    before = owner(cluster).beats()[machine.id]
    cluster.start(machine)
    watched.play(lambda: not machine.up)
    after = owner(cluster).beats()[machine.id]
    assert before.theta is not None
    assert (after.round, after.theta) == (before.round, before.theta)
    assert after.process != before.process
    cluster.close()


def test_a_newcomer_does_without_an_older_record(watched: Watched) -> None:
    """It says what steps take, and nothing that must be known."""
    cluster, broken, machine = watched.cluster, set[str](), watched.machine(1)
    breaks(watched, broken)
    cluster.begin()
    watched.play(has_records(watched, 9))
    cluster.kill(machine)
    cluster.wipe(machine)
    newest = max(one.round for document in owner(cluster).shown().values() for one in document.checkpoints)
    broken.add(keys.record(cluster.run, newest - 2))
    cluster.start(machine)
    watched.play(has_records(watched, len(watched.records()) + 3), hours=2)
    assert machine.id in {update.member for update in watched.records()[-1].updates}
    cluster.close()


def test_one_document_that_cannot_be_read_stops_no_checkpoints(watched: Watched) -> None:
    """Not even its own member's: others publish."""
    cluster, broken = watched.cluster, set[str]()
    breaks(watched, broken)
    cluster.begin()
    watched.play(has_records(watched, 6))
    shown = owner(cluster).shown()
    newest, uploader = max((document.newest, member) for member, document in shown.items())
    broken.add(keys.members_checkpoints(cluster.run) + uploader.hex())
    watched.play(has_records(watched, 20))
    found = {document.newest for member, document in owner(cluster).shown().items() if member != uploader}
    assert max(found) >= newest + 8
    broken.add(keys.beats(cluster.run) + uploader.hex())
    with pytest.raises(StorageError, match="which theta most hold"):
        theta_of_most(owner(cluster), 20)
    cluster.close()
