"""A node's own record of its actions: append-only JSON lines, one event a line (docs/events.md lists the kinds).

Events are for people and tools; no decision reads them. A killed node, or a full disk, leaves at most one torn line,
which readers skip.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from murmur.protocol.errors import one_line
from murmur.protocol.ports import Time
from storage.realtime import REAL

EVENTS = "events.jsonl"
"""Their file in a node's home."""
SHORTEST_SECONDS = 1e-3
TAIL_BYTES = 8 << 20
AGAIN_BYTES = TAIL_BYTES // 2
"""After so many bytes a node says anew who it is: each tail has that."""
TEXT_CHARACTERS = 2000
"""Longest text in an event: strangers write some."""
MOST = 1e18
"""Far beyond any number in an event: a larger one is none."""

See = Callable[[dict[str, Any]], None]


class Events:
    """Writer of one node's events file."""

    def __init__(self, path: Path, node: str, time: Time = REAL, see: See = lambda event: None) -> None:
        """`see` is called with every event."""
        self._time, self._see = time, see
        path.parent.mkdir(parents=True, exist_ok=True)
        self._node = node
        self._lock = Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._started: tuple[Any, Any] | None = None
        """Run and hotkey."""
        self._since = 0
        """Bytes since they were said."""

    def emit(self, event: str, round: int, **fields: Any) -> None:
        """Append one event. Field values are JSON values; texts are cut, and made printable; `time` (Unix seconds of
        this machine) is added. Raises OSError if the disk does not take it; `see` has not seen it then."""
        with self._lock:
            line = cleaned(
                {"time": round_seconds(self._time.wall()), "node": self._node, "event": event, "round": round, **fields}
            )
            self._append((json.dumps(line, separators=(",", ":")) + "\n").encode())
            self._see(line)
        if event == "started":
            self._started, self._since = (fields.get("run"), fields.get("hotkey")), 0
        elif self._started is not None and self._since > AGAIN_BYTES:
            self._since = 0
            run, hotkey = self._started
            self.emit("goes_on", round, run=run, hotkey=hotkey)

    def _append(self, line: bytes) -> None:
        """Append a line whole. What a full disk has taken of another one is closed first."""
        left = b"\n" + line if self._torn else line
        self._torn = True
        while left:
            left = left[os.write(self._file, left) :]
        self._torn = False
        self._since += len(line)

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
    """Yield all whole events of a file as they stand there; torn lines are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            event = parsed(line)
            if event is not None:
                yield event


def last_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events at the end of a file, of TAIL_BYTES at most, with texts as `emit` writes them. A line that is no
    event with the fields of its kind on which a reader relies is skipped, whoever has written it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - TAIL_BYTES))
        if size > TAIL_BYTES:
            file.readline()
        for line in file:
            event = parsed(line, cleaned)
            if event is not None and _has(event, _ALL) and _has(event, _KINDS.get(event["event"], {})):
                yield event


def parsed(line: str | bytes, take: Callable[[Any], Any] = lambda value: value) -> dict[str, Any] | None:
    """Return the event in this line; None for a torn one. take: cleans what was read."""
    try:
        event = take(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def cleaned(value: Any) -> Any:
    """Return a JSON value with every text as a short line of printable characters."""
    if isinstance(value, str):
        fine = len(value) <= TEXT_CHARACTERS and value.isprintable()
        return value if fine else one_line(value, TEXT_CHARACTERS)
    if isinstance(value, Mapping):
        return {cleaned(key): cleaned(inner) for key, inner in value.items()}
    return [cleaned(inner) for inner in value] if isinstance(value, list | tuple) else value


Is = Callable[[Any], bool]


def _has(event: Any, fields: Mapping[str, Is]) -> bool:
    return isinstance(event, dict) and all(name in event and right(event[name]) for name, right in fields.items())


def _whole(value: Any) -> bool:
    return type(value) is int and -MOST <= value <= MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -MOST <= value <= MOST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _phases(value: Any) -> bool:
    return _list(value) and all(_has(phase, _PHASE) for phase in value)


def _or_null(right: Is) -> Is:
    return lambda value: value is None or right(value)


_PHASE: Mapping[str, Is] = {"phase": _text, "began": _number, "seconds": _number}
_ALL: Mapping[str, Is] = {"time": _number, "node": _text, "event": _text, "round": _whole}
_IDENTITY: Mapping[str, Is] = {"run": _text, "hotkey": _or_null(_text)}
_KINDS: Mapping[str, Mapping[str, Is]] = {
    "started": _IDENTITY,
    "goes_on": _IDENTITY,
    "stopped": {"fault": _or_null(_text)},
    "trouble": dict.fromkeys(("about", "cause", "owner", "says", "detail", "costs", "do"), _text),
    "mended": {"about": _text},
    "damaged": {"lost": _list},
    "unobserved": {"why": _text},
    "applied": {"void": _flag, "contributing": _list, "after": _or_null(_number)},
    "phases": {"phases": _phases},
    "trained": {"loss": _or_null(_number)},
    "published": {"payload_bytes": _number},
    "claimed": {"steps": _number},
    "closed": {"waited_for": _list},
    "held_out": {"val_loss": _number},
    "weights": {"block": _number},
    "round_outcome": {
        **dict.fromkeys(("outcome", "why"), _text),
        **dict.fromkeys(("selected", "active"), _number),
        **dict.fromkeys(("loss", "pay", "next_set", "margin"), _or_null(_number)),
        "sure": _or_null(_text),
    },
    "judged": {
        **dict.fromkeys(("active", "evaluated", "selected", "unrevealed"), _number),
        **dict.fromkeys(("loss", "set_in", "next_set"), _or_null(_number)),
        "unobserved": _or_null(_text),
        "rejected": _counts,
    },
}
"""The fields on which readers of last_events rely: `murmur status`, `doctor` and `explain`, and the metrics."""
