"""What a member sees, by real threads: one looks, all others read while it does."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.cluster.pace import Pace
from murmur.cluster.state import Round, StoreAway
from murmur.cluster.view import TWIN_BEATS, ClusterView
from murmur.protocol.cluster import Beat, Claim, ClusterSpec, ClusterTable, Record, Standing
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId
from storage.realtime import REAL
from tests.cluster.test_decisions import LINK, beat, claim, member, record

VIEWS = 400
ME = member(1)
PROCESS = 100
SPEC: Any = SimpleNamespace(
    cluster=ClusterTable.model_construct(beat_seconds=1e-9, silent_seconds=1e9),
    inner=SimpleNamespace(steps=1),
    exchange="sparse",
)


class Bucket:
    """A ledger's documents: members come and go at every look."""

    def __init__(self) -> None:
        self.me, self.time, self.looks = ME, REAL, count(1)
        self.away = False
        self.closed: Record | None = None
        self.mine: Beat | None = None

    def record(self, round: int) -> Record | None:
        return self.closed

    def claims(self, round: int) -> dict[PeerId, Claim]:
        if self.away:
            raise StorageError("list: no connection")
        return {member(2): claim()}

    def read_beats(self) -> tuple[dict[PeerId, Beat], set[PeerId]]:
        look = next(self.looks)
        beats = {member(number): beat(look) for number in range(look % 7, look % 7 + 40)}
        return (beats | {ME: self.mine} if self.mine else beats), set()


class Watching:
    """A member's view, and what it stands on."""

    def __init__(self, standing: Standing = Standing.WAITING) -> None:
        self.bucket, self.round = Bucket(), Round(3, LINK, Digest(bytes(32)), standing=standing, recalled=True)
        self.fetched: list[set[PeerId]] = []
        fetcher: Any = SimpleNamespace(fetch_updates=lambda spec, round, claims: self.fetched.append(set(claims)))
        heartbeat: Any = SimpleNamespace(process=f"{PROCESS:016x}")
        ledger: Any = self.bucket
        spec: ClusterSpec = SPEC
        self.view = ClusterView(ledger, heartbeat, fetcher, lambda: self.round, lambda: spec, lambda: Pace(1))


@pytest.fixture
def died() -> Iterator[list[str]]:
    """Threads that died of an exception."""
    found, before, every = list[str](), threading.excepthook, sys.getswitchinterval()
    threading.excepthook = lambda words: found.append(repr(words.exc_value))
    sys.setswitchinterval(1e-6)
    yield found
    sys.setswitchinterval(every)
    threading.excepthook = before


def test_none_of_400_watchers_dies_while_another_thread_looks_and_reads(died: list[str]) -> None:
    for _ in range(VIEWS):
        watching = Watching(Standing.TRAINING)
        view = watching.view
        view.start()
        for _ in range(10):
            presence = view.refresh().presence
            assert presence.can_claim() >= {member(number) for number in range(7, 40)} - {ME}
            assert view.value.presence.running()
        view.end()
    assert died == []


def test_a_look_begins_after_it_was_asked_for_and_shows_a_fault_as_a_value() -> None:
    watching = Watching()
    watching.view.start()
    assert watching.view.refresh().record is None
    watching.bucket.closed = closed = record((member(2), 10, 100.0))
    assert watching.view.refresh().record == closed
    watching.bucket.closed, watching.bucket.away = None, True
    shown = watching.view.refresh()
    assert isinstance(shown.missing, StoreAway)
    assert shown.claims, "what was seen before stands"
    watching.bucket.away = False
    assert watching.view.refresh().missing is None
    watching.view.end()


def test_the_claims_of_another_round_are_not_taken_for_those_of_this_one() -> None:
    watching = Watching()
    watching.view.start()
    assert watching.view.refresh().claims
    watching.bucket.away = True
    watching.round = Round(4, LINK, recalled=True)
    assert (watching.view.refresh().number, watching.view.value.claims) == (4, {})
    watching.view.end()


@pytest.mark.parametrize(
    ("process", "round", "twin"), [("older", 4, True), ("younger", 4, False), ("older", 3, False), ("ours", 4, False)]
)
def test_the_younger_of_two_processes_of_one_member_gives_way(process: str, round: int, twin: bool) -> None:
    """What an earlier process has left is of no later round than our first."""
    watching = Watching(Standing.JOINING)
    watching.view.start()
    watching.view.refresh()
    watching.round = replace(watching.round, standing=Standing.WAITING)
    for number in range(TWIN_BEATS):
        assert not watching.view.refresh().twin
        began = PROCESS + {"older": -1, "younger": 1, "ours": 0}[process]
        watching.bucket.mine = beat(number, process=began, round=round)
    assert watching.view.refresh().twin == twin
    watching.view.end()


def test_who_waits_for_a_looking_thread_that_died_is_told(died: list[str]) -> None:
    """A machine that can start no more threads."""
    watching = Watching()

    def broken() -> tuple[dict[PeerId, Beat], set[PeerId]]:
        raise RuntimeError("can't start new thread")

    watching.bucket.read_beats = broken  # type: ignore[method-assign]
    watching.view.start()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            watching.view.refresh()
    assert len(died) == 1
