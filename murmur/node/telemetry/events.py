"""A node's own record of its actions: append-only JSON lines, one event a line (docs/events.md lists the kinds).

Events are for people and tools; no decision reads them. Every line is one write, so a killed node leaves at most one
torn last line, which readers skip.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from murmur.protocol.ports import Time
from storage.realtime import REAL

EVENTS = "events.jsonl"
"""Their file in a node's home."""
SHORTEST_SECONDS = 1e-3
TAIL_BYTES = 8 << 20

See = Callable[[dict[str, Any]], None]


class Events:
    """Writer of one node's events file."""

    def __init__(self, path: Path, node: str, time: Time = REAL, see: See = lambda event: None) -> None:
        """`see` is called with every event."""
        self._time, self._see = time, see
        path.parent.mkdir(parents=True, exist_ok=True)
        self._node = node
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.fstat(self._file).st_size and path.read_bytes()[-1:] != b"\n":
            os.write(self._file, b"\n")

    def emit(self, event: str, round: int, **fields: Any) -> None:
        """Append one event. Field values are JSON values; `time` (Unix seconds of this machine) is added."""
        line = {"time": round_seconds(self._time.wall()), "node": self._node, "event": event, "round": round, **fields}
        os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())
        self._see(line)

    def close(self) -> None:
        """Close the file; nothing can be emitted any more."""
        os.close(self._file)


class Stopwatch:
    """Seconds of one phase: `with Stopwatch() as watch: ...; watch.seconds`."""

    seconds: float = 0.0

    def __init__(self, time: Time = REAL) -> None:
        self._time = time

    def __enter__(self) -> Self:
        self._began = self._time.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = self._time.now() - self._began


class Phase(Stopwatch):
    """A named phase of a round. It may end in another thread than it began in: call `end`, or use a with block."""

    def __init__(self, name: str, time: Time = REAL) -> None:
        super().__init__(time)
        self.name = name
        self.began = time.now()
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the phase, unless it has ended."""
        if not self.ended:
            self.seconds = self._time.now() - self.began
            self.ended = True


class Timeline:
    """How a node spent a round's time. Phases may overlap; the timeline exists to show that."""

    def __init__(self, time: Time = REAL) -> None:
        self._time = time
        self._phases: list[Phase] = []

    def begin(self, name: str) -> Phase:
        """Begin a phase; the caller ends it."""
        phase = Phase(name, self._time)
        self._phases.append(phase)
        return phase

    def take(self) -> list[dict[str, Any]]:
        """Return the ended phases, in the order in which they began, as an event's field; then start anew. Phases of
        less than a millisecond are left out: mostly waits for something that was ready."""
        phases, self._phases = self._phases, []
        told = [phase for phase in phases if phase.ended and phase.seconds >= SHORTEST_SECONDS]
        told.sort(key=lambda phase: phase.began)
        return [
            {
                "phase": phase.name,
                "began": round_seconds(phase.began - told[0].began),
                "seconds": round_seconds(phase.seconds),
            }
            for phase in told
        ]


def round_seconds(seconds: float) -> float:
    """Seconds to the millisecond."""
    return round(seconds, 3)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all whole events of a file; torn lines are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            event = parse_event(line)
            if event is not None:
                yield event


def last_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole events at the end of a file, of TAIL_BYTES at most."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - TAIL_BYTES))
        if size > TAIL_BYTES:
            file.readline()
        for line in file:
            event = parse_event(line)
            if event is not None:
                yield event


def parse_event(line: str | bytes) -> dict[str, Any] | None:
    """Parse a line of an events file; None if it is torn or no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
