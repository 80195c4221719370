"""A member's last beat, over stores that answer and stores that do not: its process ends in time."""

from typing import cast

import pytest

from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.heartbeat import LEAVE_SECONDS, Heartbeat
from murmur.cluster.ledger import Ledger
from murmur.cluster.state import Round
from murmur.lab.simulation.clock import Life
from murmur.protocol.cluster import Beat, Standing
from murmur.protocol.errors import StorageError
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest

BEAT_SECONDS = 5.0


class Stalling:
    """A store that answers after `stall` seconds, if it is waited for that long. `time`: as a Ledger's."""

    def __init__(self, time: Time, stall: float) -> None:
        self.time, self.stall = time, stall
        self.tried: list[Beat] = []
        self.beats: list[Beat] = []

    def beat(self, beat: Beat, timeout_seconds: float) -> None:
        self.tried.append(beat)
        self.time.sleep(min(self.stall, timeout_seconds))
        if self.stall > timeout_seconds:
            raise StorageError("out of time")
        self.beats.append(beat)


def begin(life: Life, stall: float) -> tuple[Stalling, Heartbeat]:
    """The heartbeat of a member that trains."""
    store = Stalling(life, stall)
    round = Round(3, Digest(bytes(32)), standing=Standing.TRAINING)
    heartbeat = Heartbeat(cast(Ledger, store), "lab-a", lambda: round, lambda: BEAT_SECONDS)
    heartbeat.start()
    return store, heartbeat


def leave(life: Life, heartbeat: Heartbeat) -> float:
    """How long it takes to leave."""
    began = life.now()
    heartbeat.leave()
    return life.now() - began


def test_the_last_beat_says_that_the_member_leaves_and_no_other_follows(life: Life) -> None:
    store, heartbeat = begin(life, 0.1)
    life.sleep(2.5 * BEAT_SECONDS)
    assert [beat.leaving for beat in store.beats] == [False] * 3
    assert leave(life, heartbeat) < 0.2
    life.sleep(5 * BEAT_SECONDS)
    assert [beat.leaving for beat in store.beats] == [False] * 3 + [True]
    assert store.beats[-1].phase == "train"


@pytest.mark.parametrize("before", [1.0, CALL_SECONDS + 1.0])
def test_a_store_that_stalls_holds_up_nobody_who_leaves(life: Life, before: float) -> None:
    """The beat before is stuck, in the first call or in a later one."""
    store, heartbeat = begin(life, 1e9)
    life.sleep(before)
    tried = len(store.tried)
    assert leave(life, heartbeat) <= LEAVE_SECONDS
    assert len(store.tried) == tried, "a stuck store is not asked again"


def test_a_store_that_stalls_between_two_beats_holds_up_nobody_who_leaves(life: Life) -> None:
    store, heartbeat = begin(life, 0.1)
    life.sleep(0.5 * BEAT_SECONDS)
    store.stall = 1e9
    assert leave(life, heartbeat) <= LEAVE_SECONDS
    assert store.tried[-1].leaving


def test_a_beat_that_is_on_its_way_is_waited_for_so_that_it_is_not_the_last(life: Life) -> None:
    store, heartbeat = begin(life, 1.5)
    life.sleep(1.0)
    assert leave(life, heartbeat) <= 2 * LEAVE_SECONDS
    assert [beat.leaving for beat in store.beats] == [False, True]


def test_a_store_that_answers_the_beat_before_and_then_stalls_costs_one_time_out_more(life: Life) -> None:
    store, heartbeat = begin(life, 1.5)
    life.sleep(1.0)

    def stall() -> None:
        store.stall = 1e9

    life.clock.at(life.clock.now + 0.2, stall)
    assert leave(life, heartbeat) <= LEAVE_SECONDS + 0.5
    assert [beat.leaving for beat in store.tried] == [False, True]
