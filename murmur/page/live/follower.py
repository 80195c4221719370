"""A run elsewhere that the page follows: a thread of its own reads it, so that the page never waits for it."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from queue import Empty, Full, Queue
from typing import Any, Self

from murmur.page.rounds import Rounds
from murmur.page.source import PORTION_BYTES, Stage
from murmur.protocol.errors import MurmurError

RETRY_SECONDS = 5.0
SHORTEST_LOOK_SECONDS = 1.0
QUEUED = 64
"""Events that are read ahead; the largest, a report of 256 hotkeys, has 150 kB."""


class Follower(ABC):
    """Most of a source of the page (murmur/page/source.py): `look` finds new events, in the thread; `read` folds them.
    what: in words; rounds_kept: older rounds are forgotten."""

    what: str
    rounds_kept: int

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.names: Mapping[str, str] = {}
        self._told: Queue[tuple[str, dict[str, Any]]] = Queue(QUEUED)
        self._trouble: str | None = None
        self._grew = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"{self.what} reader", daemon=True)

    @abstractmethod
    def open(self) -> None:
        """Find the run, once, synchronously. Raises ConfigError for faults that the operator has to fix, and other
        errors; following the run tries again."""

    @abstractmethod
    def look(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Open the run if that is still to do; yield the new events, each with its node. Raises MurmurError."""

    @abstractmethod
    def pause(self) -> float:
        """Return the seconds until the next look."""

    @abstractmethod
    def waits_for(self) -> str | None:
        """Return what the first round waits for; None once there is one."""

    def ended(self) -> bool:
        """Return whether the run is over."""
        return False

    def troubles(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Return what is wrong with what the run depends on, with its name."""
        return ()

    def taken(self, node: str, event: Mapping[str, Any]) -> int:
        """Note an event that was folded; return its bytes, if it is a large one."""
        return 0

    def let_go(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what the thread has opened."""

    def follow(self) -> Self:
        """Keep up with the run until `close`."""
        self._thread.start()
        return self

    def close(self) -> None:
        self._ending.set()

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        while max_bytes > 0:
            try:
                node, event = self._told.get_nowait()
            except Empty:
                break
            self.rounds.take(node, event)
            max_bytes -= self.taken(node, event)
        self.rounds.keep(self.rounds_kept)
        return not self._told.empty()

    def stage(self) -> Stage:
        trouble = self._trouble
        if (
            trouble is None
            and self._thread.ident is not None
            and not (self._thread.is_alive() or self._ending.is_set())
        ):
            trouble = (
                f"The page stopped reading the {self.what}, by a fault of its own: see the terminal. Start the page "
                "again."
            )
        silent = time.monotonic() - self._grew
        return Stage(self.waits_for(), self.ended(), silent, trouble, troubles=self.troubles())

    def grew(self) -> None:
        """Note a sign of life."""
        self._grew = time.monotonic()

    def described(self, fault: MurmurError) -> str:
        """Return the fault in words that the page may show."""
        return str(fault)

    # --- the thread --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ending.wait(self._look()):
            pass
        self.let_go()

    def _look(self) -> float:
        """Read new events; return the seconds until the next look."""
        try:
            for told in self.look():
                self._put(told)
        except MurmurError as fault:
            shown = self.described(fault)
            self._trouble = f"{shown}. The page shows older data and tries again every {RETRY_SECONDS:.0f} s."
            return RETRY_SECONDS
        self._trouble = None
        return self.pause()

    def _put(self, told: tuple[str, dict[str, Any]]) -> None:
        while not self._ending.is_set():
            try:
                return self._told.put(told, timeout=1.0)
            except Full:
                continue
