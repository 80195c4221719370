"""theta on disk is a snapshot and the payloads since: whatever happens to a node, it stands where the network stood."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gauntlet.agreement import Tip
from node.fetch.opening import Opened
from node.fetch.payloads import fetch_pinned
from node.fetch.sources import Sources
from node.state import node_state as node_held
from node.state.node_state import LOG_INTERVALS, NodeState
from node.state.redo_log import RedoLog
from node.state.saved import Payload, Snapshot, Step
from node.state.store import StateStore
from node.telemetry.events import Events, read_events
from protocol import keys
from protocol.errors import ConfigError
from protocol.spec import OuterSpec
from protocol.types import Digest
from sparseloco import ops, wire
from storage.exchange import Fault, cached
from storage.realtime import RealTime
from storage.seal import seal
from tests.fakes.chain import FakeSigner
from tests.network import MODEL
from tests.specs import toy_spec
from training import checkpoint
from training.replica import Replica, genesis_theta

RUN = Digest(sha256(b"run").digest())
SPEC = toy_spec({"model": MODEL, "checkpoint_rounds": 3, "compression.k": 64})
AMENDED = SPEC.model_copy(update={"outer": OuterSpec(alpha=0.3, aggregate="contributor_mean")})
VOID = {1, 6}
ROUNDS = 9
FIRST = Digest(bytes(32))


class AtOnce(RealTime):
    """What is begun is done when `start` returns: every write has its place."""

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = super().start(work, name)
        thread.join()
        return thread


@dataclass(frozen=True)
class Round:
    """An agreed round: its payloads, and the theta digest after it."""

    opened: tuple[Opened, ...]
    objects: tuple[bytes, ...]
    theta: Digest

    def link(self, number: int) -> Digest:
        return Digest(sha256(b"link %d" % number).digest())


def spec_at(number: int) -> Any:
    return AMENDED if number >= 4 else SPEC


@cache
def network() -> tuple[Replica, tuple[Round, ...]]:
    """A node that never stopped, and what it applied."""
    torch.set_num_threads(1)
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1))
    signers = [FakeSigner(name) for name in ("one", "two", "three")]
    rounds = []
    for number in range(ROUNDS):
        opened, objects = [], []
        for place, signer in enumerate(sorted(signers, key=lambda signer: signer.peer)):
            generator = torch.Generator().manual_seed(10 * number + place)
            moved = {
                name: value - 1e-2 * torch.randn(value.shape, generator=generator)
                for name, value in replica.theta.items()
            }
            update = ops.compress(replica.theta, moved, None, SPEC.layout, beta=0.95)[0]
            sealed = seal(wire.encode(replica.digest(), update), run=RUN, round=number, signer=signer)
            spoilt = number == 2 and place == 1  # does not parse: it counts with s = 0
            opened.append(
                Opened(signer.peer, sealed.digest, None if spoilt else sealed.key, None if spoilt else update)
            )
            objects.append(sealed.object)
        if number not in VOID:
            outer = spec_at(number).outer
            replica.outer_step([o.update for o in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        rounds.append(Round(tuple(opened), tuple(objects), replica.digest()))
    return replica, tuple(rounds)


@cache
def other() -> Replica:
    """The nodes' own: whatever it held, a start loads it."""
    return Replica(SPEC, genesis_theta(SPEC.model, 2))


def start(home: Path, clock: Any = None) -> NodeState:
    """A process on this home, at the start of the round that it had come to."""
    store = StateStore(home, RUN)
    held = NodeState(SPEC, RUN, other(), store, Events(home / "events.jsonl", "node"), clock or AtOnce())
    if not held.resume():
        theta_0 = Replica(SPEC, genesis_theta(SPEC.model, 1))
        state = checkpoint.save(store.snapshot, theta_0.consensus_state())
        held.load_consensus(Snapshot(0, FIRST, state))
        held.begin()
    return held


def stop(held: NodeState) -> None:
    held.snapshots.hold()
    held.store.close()


def lay_out(held: NodeState, number: int) -> None:
    """The downloads of a round: from owners, and from mirrors."""
    held.cache.mkdir(exist_ok=True)
    for place, (opened, data) in enumerate(zip(network()[1][number].opened, network()[1][number].objects, strict=True)):
        key = keys.mirror(RUN, number, opened.peer) if place else keys.payload(RUN, number)
        cached(held.cache, opened.peer, key).write_bytes(data)


def play(held: NodeState, until: int = ROUNDS) -> None:
    while (number := held.saved.round) < until:
        lay_out(held, number)
        agreed = network()[1][number]
        if number in VOID:
            decision: Any = SimpleNamespace(pair=None, selection=None, link=held.saved.link)
        else:
            decision = SimpleNamespace(selection=object(), link=agreed.link(number))
        held.apply(number, spec_at(number), decision, list(agreed.opened))
        stands(held)


def stands(held: NodeState) -> None:
    """Where the network stood at the start of this round."""
    number = held.saved.round
    expected = network()[1][number - 1].theta if number else None
    assert held.replica.digest() == held.saved.theta
    assert expected in (None, held.saved.theta)
    agreed = [n for n in range(number) if n not in VOID]
    assert held.saved.link == (network()[1][0].link(agreed[-1]) if agreed else FIRST)


def test_a_node_restarted_by_replay_holds_the_theta_of_one_that_never_stopped(tmp_path: Path) -> None:
    """Over void rounds, an amendment, and a payload that does not parse; started again before every round."""
    replayed = 0
    for number in range(1, ROUNDS + 1):
        held = start(tmp_path)
        stands(held)
        replayed += len(held.saved.consensus.log)
        play(held, number)
        stop(held)
    held = start(tmp_path)
    assert replayed > ROUNDS // 2
    straight = network()[0]
    assert held.replica.outer == straight.outer
    for name, value in straight.theta.items():
        assert torch.equal(held.replica.theta[name].view(torch.int32), value.view(torch.int32))
    stop(held)


def test_every_interval_all_write_the_same_state_and_keep_no_payload_from_before(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        held = start(tmp_path / name)
        play(held, 5)
        if name == "two":  # started again, by chance just there
            stop(held)
            held = start(tmp_path / name)
        play(held)
        found.append(held.saved.consensus.snapshot)
        named = {p.envelope.hex() for step in held.saved.consensus.log for p in step.payloads if p.key}
        assert {path.name for path in held.store.log.iterdir()} == named
        assert {path.name for path in held.store.snapshot.iterdir()} == {
            path.name for _, path in checkpoint.blobs(held.store.snapshot, found[-1].state)
        }
        assert len(held.saved.consensus.log) <= SPEC.checkpoint_rounds
        stop(held)
    assert found[0] == found[1]
    assert found[0].round > 0


def test_killed_at_any_write_a_node_stands_where_the_network_stood(tmp_path: Path) -> None:
    held = start(tmp_path / "before")
    play(held, 3)
    stop(held)
    outcomes = set()
    for at in range(200):
        home = copytree(tmp_path / "before", tmp_path / str(at))
        pid = os.fork()
        if pid == 0:
            _play_and_die(home, at)
        _, status = os.waitpid(pid, 0)
        held = start(home)
        assert held.saved.round >= 3
        stands(held)
        assert not read_events_of(home, "damaged")
        outcomes.add(held.saved.round)
        play(held, 7)
        stop(held)
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert os.waitstatus_to_exitcode(status) == 0
    assert outcomes == {3, 4, 5, 6}


def _play_and_die(home: Path, left: int) -> None:
    """In a forked child: three rounds and a snapshot, and the end without a word at the left-th change of the home."""

    def die(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and str(args[0]).startswith(str(home)) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            left -= 1
            if left < 0:
                os._exit(9)

    try:
        held = start(home)
        for number in (3, 4, 5):
            lay_out(held, number)  # what the network brings is none of our writes
        sys.addaudithook(die)
        node_held.NodeState.clear_cache = lambda self: None  # type: ignore[method-assign]
        for number in (3, 4, 5):
            agreed = network()[1][number]
            decision: Any = SimpleNamespace(selection=object(), link=agreed.link(number))
            held.apply(number, spec_at(number), decision, list(agreed.opened))
        held.take_snapshot()
        os._exit(0)
    finally:
        os._exit(1)


def read_events_of(home: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(home / "events.jsonl") if event["event"] == kind]


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [changed, cut, emptied, Path.unlink])
def test_a_payload_that_the_disk_has_lost_takes_the_node_back_to_its_round(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    held = start(tmp_path)
    play(held, 8)
    stop(held)
    lost = held.saved.consensus.log[1]
    spoil(held.store.log / lost.payloads[0].envelope.hex())
    held = start(tmp_path)
    assert held.saved.round == lost.round < 8
    stands(held)
    assert [event["lost"] for event in read_events_of(tmp_path, "damaged")] == [["log"]]
    assert (tmp_path / RUN.hex()[:16] / "damaged").exists() == (spoil is not Path.unlink)
    play(held)
    stop(held)
    assert start(tmp_path).saved.round == ROUNDS


def test_what_was_sealed_for_the_round_at_hand_is_still_there_and_what_was_decided_is_not_given_back_twice(
    tmp_path: Path,
) -> None:
    held = start(tmp_path)
    play(held, 8)
    for sealed_for, kept in ((8, True), (7, False), (4, False)):
        sealed = node_held.SealedRound(sealed_for, held.store.write(b"sealed"), bytes(32))
        held.save(sealed=sealed)
        lost = held.saved.consensus.log[-1]
        assert lost.round == 7
        path = held.store.log / lost.payloads[0].envelope.hex()
        data = path.read_bytes()
        path.unlink()
        before = held.saved
        held.restore()
        assert (held.saved.round, held.saved.sealed is not None) == (7, kept)
        path.write_bytes(data)
        held.saved = before
        held.restore()
        assert held.saved == before
    stop(held)


def test_a_missing_snapshot_has_to_come_from_others(tmp_path: Path) -> None:
    held = start(tmp_path)
    play(held, 7)
    ours, key = network()[1][7].objects[0], network()[1][7].opened[0].key
    assert key is not None
    held.save(sealed=node_held.SealedRound(7, held.store.write(ours), key))
    stop(held)
    for path in held.store.snapshot.iterdir():
        path.unlink()
    held = start(tmp_path)
    assert read_events_of(tmp_path, "damaged")[0]["lost"] == ["theta"]
    assert (held.saved.round, held.saved.consensus.log) == (0, ())
    assert held.saved.sealed is not None
    play(held)
    stop(held)


def test_a_replay_that_gives_another_theta_than_was_saved_is_never_used(tmp_path: Path) -> None:
    held = start(tmp_path)
    play(held, 5)
    (step, *rest) = held.saved.consensus.log
    log = (replace(step, alpha=step.alpha / 2), *rest)
    held.store.commit(replace(held.saved, consensus=replace(held.saved.consensus, log=log)))
    stop(held)
    held = start(tmp_path)
    assert read_events_of(tmp_path, "damaged")[0]["lost"] == ["theta"]
    assert held.saved.round == 0
    stop(held)


def test_a_payload_that_is_not_in_the_cache_costs_no_round(tmp_path: Path) -> None:
    """A disk may have refused it: then it came in memory."""
    held = start(tmp_path)
    play(held, 2)
    agreed = network()[1][2]
    held.clear_cache()
    held.apply(2, SPEC, SimpleNamespace(selection=object(), link=agreed.link(2)), list(agreed.opened))  # type: ignore[arg-type]
    stands(held)
    stop(held)
    held = start(tmp_path)
    assert held.saved.round == 2
    stands(held)
    stop(held)


# --- beside the rounds -------------------------------------------------------------------------------------------


def test_a_snapshot_slower_than_a_round_is_given_up_and_waited_for_before_the_log_is_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = start(tmp_path, RealTime())
    quick, real = threading.Event(), checkpoint._encoded

    def slow(tensors: Any) -> Iterator[Any]:
        for piece in real(tensors):
            while held.snapshots._wanted and not quick.wait(0.001):
                pass
            yield piece

    monkeypatch.setattr(checkpoint, "_encoded", slow)
    limit, seen = LOG_INTERVALS * SPEC.checkpoint_rounds, []

    def look() -> None:
        until = time.monotonic() + 60
        while len(held.consensus.log) < limit and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # what does not wait goes on
        seen.append((len(held.consensus.log), held.saved.consensus.snapshot.round))
        quick.set()

    looking = threading.Thread(target=look)
    looking.start()
    play(held)
    looking.join()
    assert seen == [(limit, 0)]
    assert held.saved.consensus.snapshot.round > 0
    stop(held)
    held = start(tmp_path)
    stands(held)
    stop(held)


def test_a_disk_that_takes_no_snapshot_stops_the_node_only_when_the_log_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = start(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("node.state.snapshots.checkpoint.save", full)
        with pytest.raises(ConfigError, match="free disk space"):
            play(held)
    assert len(held.saved.consensus.log) == LOG_INTERVALS * SPEC.checkpoint_rounds
    stop(held)
    held = start(tmp_path)
    stands(held)
    play(held)
    assert held.saved.consensus.snapshot.round > 0
    stop(held)


def test_payloads_that_are_opened_beside_each_other_are_what_one_after_the_other_gives(tmp_path: Path) -> None:
    _, rounds = network()
    log = RedoLog(tmp_path, RUN, SPEC.layout)
    opened = rounds[2].opened  # one of them does not parse
    for each, sealed in zip(opened, rounds[2].objects, strict=True):
        (tmp_path / each.envelope.hex()).write_bytes(sealed)
    payloads = tuple(Payload(each.peer, each.envelope, each.key) for each in opened) * 8
    step = Step(2, rounds[1].theta, FIRST, 0.5, "mean", payloads)
    one, many = (log.updates(step, threads, RealTime()) for threads in (1, 8))
    assert [update and (update.digest, update.norms) for update in many] == [
        update and (update.digest, update.norms) for update in one
    ]
    assert [update and update.digest for update in one] == [each.update and each.update.digest for each in opened] * 8


def test_a_catch_up_over_many_rounds_keeps_no_more_than_an_interval_of_payloads(tmp_path: Path) -> None:
    held = start(tmp_path)
    most = 0
    link = FIRST
    for number in (number for number in range(ROUNDS) if number not in VOID):
        lay_out(held, number)
        agreed = network()[1][number]
        link = agreed.link(number)
        held.step(number, spec_at(number).outer, held.replica.digest(), link, agreed.opened)
        held.write_snapshot(number + 1, link)
        most = max(most, len(list(held.store.log.iterdir())))
        assert len(list(held.store.snapshot.iterdir())) <= 4  # the saved one, and the newest
        assert held.store.load() == held.saved  # nothing of it is saved yet
    assert most <= 3 * (SPEC.checkpoint_rounds - 1)
    held.stand(link, Tip(ROUNDS, link))
    stands(held)
    stop(held)
    held = start(tmp_path)
    stands(held)
    stop(held)


def test_a_catch_up_that_fails_leaves_the_saved_state_in_place(tmp_path: Path) -> None:
    held = start(tmp_path)
    play(held, 3)
    saved = held.saved
    for number in (3, 4, 5):
        lay_out(held, number)
        agreed = network()[1][number]
        held.step(number, SPEC.outer, held.replica.digest(), agreed.link(number), agreed.opened)
        held.write_snapshot(number + 1, agreed.link(number))
    held.restore()
    held.store.commit(held.saved)
    assert held.saved == saved
    stands(held)
    play(held)
    stop(held)


def test_a_node_can_take_each_state_again_that_it_held_since_its_snapshot(tmp_path: Path) -> None:
    held = start(tmp_path)
    play(held, 6)
    at_link = {FIRST: Replica(SPEC, genesis_theta(SPEC.model, 1)).digest()}
    at_link |= {held_then.link(number): held_then.theta for number, held_then in enumerate(network()[1])}
    saved = held.saved
    assert len(saved.consensus.links) > 2
    for link in saved.consensus.links:
        held.step_back(link)
        assert held.replica.digest() == at_link[link]
        assert held.consensus.link == link
        assert held.saved == saved
    held.restore()
    stands(held)
    held.step_back(saved.consensus.links[1])
    held.stand(saved.consensus.links[1], Tip(saved.round, saved.consensus.links[1]))
    stop(held)
    held = start(tmp_path)
    assert held.replica.digest() == at_link[saved.consensus.links[1]]
    stop(held)


def test_a_download_counts_whoever_has_left_and_whichever_bucket_it_came_from(tmp_path: Path) -> None:
    """A hotkey that is not registered any more has no bucket."""
    held = start(tmp_path)
    lay_out(held, 0)
    pairs = [(opened.peer, opened.envelope) for opened in network()[1][0].opened]
    nobody = Sources((), lambda pointer: pytest.fail("nobody has a bucket"))
    found = fetch_pinned(SPEC, RUN, 0, pairs, nobody, 1.0, held.cache)
    assert [bytes(found[peer]) for peer, _ in pairs] == list(network()[1][0].objects)  # type: ignore[arg-type]
    changed(next(held.cache.iterdir()))
    lost = [
        peer
        for peer, data in fetch_pinned(SPEC, RUN, 0, pairs, nobody, 1.0, held.cache).items()
        if isinstance(data, Fault)
    ]
    assert len(lost) == 1
    stop(held)


def test_what_only_this_disk_has_is_still_there_when_a_step_did_not_last(tmp_path: Path) -> None:
    """A catch-up that broke off later, or a process killed before the step was saved."""
    held = start(tmp_path)
    lay_out(held, 0)
    agreed = network()[1][0]
    held.step(0, SPEC.outer, held.replica.digest(), agreed.link(0), agreed.opened)
    held.restore()
    held.store.commit(held.saved)
    pairs = [(opened.peer, opened.envelope) for opened in agreed.opened]
    nobody = Sources((), lambda pointer: pytest.fail("nobody has a bucket"))
    found = fetch_pinned(SPEC, RUN, 0, pairs, nobody, 1.0, held.cache)
    assert [bytes(found[peer]) for peer, _ in pairs] == list(agreed.objects)  # type: ignore[arg-type]
    play(held, 1)
    assert not held.cache.exists()
    stop(held)


def test_what_lies_damaged_where_a_payload_is_kept_is_written_over(tmp_path: Path) -> None:
    held = start(tmp_path)
    for opened in network()[1][0].opened:
        (held.redo.folder / opened.envelope.hex()).write_bytes(b"of an earlier try")
    play(held, 1)
    stop(held)
    held = start(tmp_path)
    assert held.saved.round == 1
    assert not read_events_of(tmp_path, "damaged")
    stands(held)
    stop(held)
