"""theta on disk is a snapshot and the payloads since: whatever happens to a node, it stands where the network stood."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from murmur.node.state import node_state as node_held
from murmur.training import checkpoint
from tests.forked import exit_code
from tests.node.played_rounds import (
    ROUNDS,
    RUN,
    SPEC,
    lay_out,
    network,
    play,
    read_events_of,
    spec_at,
    stands,
    start,
    stop,
)


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
        exited = exit_code(_play_and_die, home, at)
        held = start(home)
        assert held.saved.round >= 3
        stands(held)
        assert not read_events_of(home, "damaged")
        outcomes.add(held.saved.round)
        play(held, 7)
        stop(held)
        rmtree(home)
        if exited == 0:
            break
    assert exited == 0
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
