"""Bugs that are planted on purpose: a simulation that cannot find them proves nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from gauntlet import agreement
from gauntlet.book import eligible
from gauntlet.checks import Checked
from gauntlet.selection import Ranking
from murmur.cli.main import main
from murmur.node.fetch.opening import Opened
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import SealedRound
from murmur.node.sync.prefetch import Prefetch
from murmur.protocol.types import Digest, Peer, PeerId
from murmur.rounds.miner import Miner
from murmur.rounds.score import Scores
from murmur.rounds.votes import Votes

Broken = dict[str, Any]


def broken(capsys: pytest.CaptureFixture[str], *flags: str) -> Broken:
    """What a short simulation finds."""
    import json

    main(["simulate", "--json", *flags])
    return dict(json.loads(capsys.readouterr().out))


@contextmanager
def exactly_half() -> Iterator[None]:
    """A majority is half."""

    def is_most(self: Any, peers: Sequence[PeerId]) -> bool:
        return bool(peers) and 2 * sum(self.stakes[peer] for peer in peers) >= sum(self.stakes.values())

    with patch.object(agreement._Tally, "_is_most", is_most):
        yield


@contextmanager
def veto() -> Iterator[None]:
    """Whoever finds anybody worthless that sent something names nobody."""
    real = Votes.cast

    def cast(self: Votes, round: int, ranking: Ranking, at_commit: Sequence[Peer], checked: Checked) -> None:
        book, rules = self.scores.book, self.node.run.spec_at(round).gauntlet
        doubts = any(r.evaluations and not eligible(r, rules) for p, r in book.peers.items() if p in checked.committed)
        real(self, round, Ranking((), (), (), {}) if doubts else ranking, at_commit, checked)

    with patch.object(Votes, "cast", cast):
        yield


@contextmanager
def skipped() -> Iterator[None]:
    """One validator leaves a payload out when there are four."""
    real = NodeState.step

    def step(self: NodeState, round: int, outer: Any, theta: Digest, link: Digest, opened: Sequence[Opened]) -> None:
        ours = self.store.folder.parts
        real(self, round, outer, theta, link, opened[1:] if "validator-1" in ours and len(opened) > 3 else opened)

    with patch.object(NodeState, "step", step):
        yield


@contextmanager
def blind_pay() -> Iterator[None]:
    """Every round counts as observed."""
    with patch.object(Scores, "unobserved", lambda self, round, seen, checked: None):
        yield


@contextmanager
def retraction() -> Iterator[None]:
    """What a hotkey writes over its vote takes that vote back."""

    def add(self: Any, post: agreement.Post) -> None:
        peer, vote = post.peer, post.vote
        if peer in self.stakes:
            self.voted.add(peer)
            self.refs.pop(peer, None)
            if vote.state_ref is not None:
                self.refs[peer], self.names[peer] = vote.state_ref, vote.bitmap

    with patch.object(agreement._Tally, "add", add):
        yield


@contextmanager
def guess_at_v() -> Iterator[None]:
    """A guess waits for keys until the reveal deadline."""
    with patch("murmur.node.sync.prefetch.guess_seconds", lambda clock: 1e9):
        yield


@contextmanager
def endless_join() -> Iterator[None]:
    """A guess waits for every payload that is on its way."""

    def wait(self: Prefetch, round: int) -> None:
        for collection in self._fetching:
            collection.outcome()

    with patch.object(Prefetch, "wait", wait):
        yield


@contextmanager
def eager_commits() -> Iterator[None]:
    """A miner whose upload fails commits anew at each try."""
    real = Miner.promise

    def promise(self: Miner, round: int, sealed: SealedRound) -> None:
        self.upload_failed, self.taken_back = False, -1
        real(self, round, sealed)

    with patch.object(Miner, "promise", promise):
        yield


STORM = ("--rounds", "40", "--validators", "3", "--miners", "6", "--faults-per-hour", "125")
WITHHELD = ("--rounds", "20", "--miners", "8", "--withhold", "3", "--faults-per-hour", "12", "--clock", "fitted")
BUGS: Mapping[str, tuple[Any, tuple[str, ...], str]] = {
    "exactly half": (
        exactly_half,
        ("--rounds", "30", "--validators", "2", "--miners", "4", "--seed", "1"),
        "disagreements",
    ),
    "a book that vetoes": (
        veto,
        ("--rounds", "12", "--validators", "3", "--miners", "13", "--two-faced", "6", "--faults-per-hour", "0"),
        "void_unexplained",
    ),
    "a retraction that counts": (retraction, (*STORM, "--hostile-stake", "0.33", "--seed", "3"), "disagreements"),
    "a skipped payload": (skipped, STORM, "disagreements"),
    "pay from an unobserved round": (blind_pay, STORM, "unobserved_weights"),
    "a guess at the reveal deadline": (guess_at_v, WITHHELD, "honest_late"),
    "commitments that are burnt": (eager_commits, STORM, "wasteful"),
    "a join without a bound": (endless_join, WITHHELD, "honest_late"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bug, flags, where = BUGS[name]
    with bug():
        found = broken(capsys, "--seed", "0", *flags)
    assert found[where] > 0, found["broken"][:3]


@pytest.mark.parametrize("flags", dict.fromkeys(flags for _, flags, _ in BUGS.values()), ids=" ".join)
def test_without_it_nothing_is_found(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert broken(capsys, "--seed", "0", *flags)["broken"] == []
