"""The events file and the timeline of a round."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from murmur.node.telemetry.events import Events, Timeline, last_events, read_events
from storage.realtime import RealTime
from tests.network import FakeNetwork


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


def test_a_line_that_a_full_disk_takes_in_part_is_a_fault_and_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path, "cold/hot")
    events.emit("revealed", 1)
    write, room = os.write, 40

    def written(file: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, data[:room])
        room -= count
        return count

    monkeypatch.setattr(os, "write", written)
    with pytest.raises(OSError, match="No space left"):
        events.emit("revealed", 2)
    room = 10**6
    events.emit("revealed", 3)
    assert [event["round"] for event in read_events(path)] == [1, 3]
    room = 0
    with pytest.raises(OSError, match="No space left"):
        events.emit("revealed", 4)
    room = 10**6
    Events(path, "cold/hot").emit("revealed", 5)
    assert [event["round"] for event in read_events(path)] == [1, 3, 5]


def test_a_write_that_takes_a_line_in_pieces_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "events.jsonl", os.write
    events = Events(path, "cold/hot")
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    events.emit("revealed", 1)
    events.emit("revealed", 2)
    assert [event["round"] for event in read_events(path)] == [1, 2]


HOSTILE = "no answer\n12:00:00 ERROR \x1b[2J\x07\x08\x00 \u202egnp.exe " + "A" * 9_000_000


def test_a_strangers_text_is_a_short_printable_line_in_the_file_and_for_who_sees_it(tmp_path: Path) -> None:
    path, seen = tmp_path / "events.jsonl", list[dict[str, Any]]()
    events = Events(path, "cold/hot", see=seen.append)
    events.emit("interrupted", 1, fault=HOSTILE)
    events.emit("reported", 1, peers={"5F\x1b": {"detail": HOSTILE, "all": (HOSTILE, 3)}})
    assert path.stat().st_size < 10_000
    for found in (seen, list(last_events(path))):
        fault, peers = found[0]["fault"], found[1]["peers"]
        assert fault.startswith("no answer 12:00:00 ERROR ")
        for text in (fault, peers["5F"]["detail"], peers["5F"]["all"][0]):
            assert text.isprintable()
            assert len(text) <= 2000


def test_what_an_earlier_version_has_written_is_read_as_printable_text(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"time": 1.0, "node": "n", "event": "interrupted", "round": 1, "fault": "a\\u001b[2J\\ud800\\nb"}\n'
    )
    assert [event["fault"] for event in last_events(path)] == ["a [2J b"]


def test_every_event_of_a_network_has_the_fields_that_readers_rely_on(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(3)
    for name in network.members:
        path = network[name].home / "events.jsonl"
        kinds = Counter(event["event"] for event in last_events(path))
        assert kinds.total() == len(path.read_text().splitlines())
        assert kinds["phases"] == kinds["applied"] == 3
