"""The events file and the timeline of a round."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from murmur.node.telemetry.events import Events, Timeline, read_events
from storage.realtime import RealTime


class Clock(RealTime):
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_phases_are_told_from_the_first_ones_beginning_and_may_overlap(clock: Clock) -> None:
    timeline = Timeline(clock)
    upload = timeline.begin("upload")
    clock.seconds += 1
    with timeline.begin("swap") as swap:
        clock.seconds += 2
    clock.seconds += 4
    upload.end()
    assert swap.seconds == 2
    assert timeline.take() == [
        {"phase": "upload", "began": 0.0, "seconds": 7.0},
        {"phase": "swap", "began": 1.0, "seconds": 2.0},
    ]


def test_a_phase_ends_once_also_when_it_fails_and_in_another_thread(clock: Clock) -> None:
    timeline = Timeline(clock)
    phase = timeline.begin("prefetch")
    clock.seconds += 1
    ends = threading.Thread(target=phase.end)
    ends.start()
    ends.join()
    clock.seconds += 1
    phase.end()
    with suppress(ZeroDivisionError), timeline.begin("apply"):
        clock.seconds += 3
        raise ZeroDivisionError
    assert [(told["phase"], told["seconds"]) for told in timeline.take()] == [("prefetch", 1.0), ("apply", 3.0)]


def test_what_was_told_what_goes_on_and_what_took_no_time_is_left_out(clock: Clock) -> None:
    timeline = Timeline(clock)
    with timeline.begin("told"):
        clock.seconds += 1
    assert [told["phase"] for told in timeline.take()] == ["told"]
    timeline.begin("goes on")
    with timeline.begin("wait"):
        clock.seconds += 0.0004
    with timeline.begin("work"):
        clock.seconds += 0.5
    assert timeline.take() == [{"phase": "work", "began": 0.0, "seconds": 0.5}]
    assert timeline.take() == []


def test_events_come_back_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "home" / "events.jsonl"
    Events(path, "cold/hot").emit("phases", 3, phases=[])
    with path.open("a") as file:
        file.write('{"torn": ')
    Events(path, "cold/hot").emit("revealed", 4)
    assert [(event["event"], event["round"]) for event in read_events(path)] == [("phases", 3), ("revealed", 4)]
