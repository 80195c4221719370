"""Snapshots are written while rounds go on; states in between can be had again."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gauntlet.agreement import Tip
from murmur.node.fetch.payloads import fetch_pinned
from murmur.node.fetch.sources import Sources
from murmur.node.state.node_state import LOG_INTERVALS
from murmur.node.state.redo_log import RedoLog
from murmur.node.state.saved import Payload, Step
from murmur.protocol.errors import DiskFull
from murmur.training import checkpoint
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from storage.exchange import FetchFault
from storage.realtime import RealTime
from tests.node.played_rounds import (
    FIRST,
    ROUNDS,
    RUN,
    SPEC,
    VOID,
    lay_out,
    network,
    play,
    read_events_of,
    spec_at,
    stands,
    start,
    stop,
)
from tests.node.test_redo_log import changed


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
        context.setattr("murmur.node.state.snapshots.checkpoint.save", full)
        with pytest.raises(DiskFull, match="free disk space"):
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
    log = RedoLog(tmp_path, RUN, SPEC.layout, 0)
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
    held.commit_at_tip(link, Tip(ROUNDS, link))
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
    held.commit_at_tip(saved.consensus.links[1], Tip(saved.round, saved.consensus.links[1]))
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
        if isinstance(data, FetchFault)
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
