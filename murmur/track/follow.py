"""A tracker's process: it follows a node's events file and shows their numbers. The node does not wait for it, and does
not notice how it ends."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from loguru import logger

from murmur.node.telemetry.events import parsed
from murmur.track.scalars import scalars
from murmur.track.trackers import Tracker

LOOK_SECONDS = 1.0
MOST_BYTES = 1 << 20
"""Of events in one look."""


def follow(path: Path, tracker: Tracker, goes_on: Callable[[], bool], first_byte: int = 0) -> int:
    """Show the events of this file from `first_byte` on, and those that come, while `goes_on`. Return how many were
    shown. What the tracker's library raises is raised."""
    shown, at, rest = 0, first_byte, b""
    while True:
        more = goes_on()  # before the look: what was written until then is shown
        for line in _lines(path, at):
            at += len(line)
            rest += line
            if not rest.endswith(b"\n"):
                continue  # the node has not written the rest yet
            event, rest = parsed(rest), b""
            values = scalars(event) if event is not None else {}
            if event is not None and values:
                tracker.log(int(event.get("round", 0)), float(event.get("time", 0.0)), values)
                shown += 1
        if not more:
            return shown
        time.sleep(LOOK_SECONDS)


def _lines(path: Path, first: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(first)
            while (end := file.tell()) - first < MOST_BYTES or end == first:
                if not (line := file.readline(MOST_BYTES)):
                    return
                yield line
    except FileNotFoundError:
        return


class Until:
    """Whether a tracker goes on: until a signal, or until the node that started it is gone (its process id)."""

    def __init__(self, node: int | None) -> None:
        self._node, self._asked = node, False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def __call__(self) -> bool:
        return not self._asked and (self._node is None or os.getppid() == self._node)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        logger.info("showing what is left")
