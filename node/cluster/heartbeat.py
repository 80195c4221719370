"""A member's beats: written beside everything else, for as long as its process lives."""

import secrets
from contextlib import suppress

from node.cluster.ledger import CALL_SECONDS, Ledger
from protocol.cluster import Beat
from protocol.errors import StorageError

LEAVE_SECONDS = 2.0
"""A process that ends says so, and does not wait for it longer."""


class Heartbeat:
    """Where one member is, said again and again. `round`, `step` and `phase` are set by whoever plays its rounds."""

    def __init__(self, ledger: Ledger, name: str, beat_seconds: float, process: str = "") -> None:
        """process: 16 hexadecimal digits that no other process of this member has; drawn where none are given."""
        self._ledger, self._name, self.beat_seconds = ledger, name, beat_seconds
        self.process = process or secrets.token_hex(8)
        self._lock = ledger.time.condition()
        self._count = 0
        self._left = False
        self.round, self.step = 0, 0
        self.phase = "join"

    def start(self) -> None:
        self._ledger.time.start(self._go_on, "pulse")

    def leave(self) -> None:
        """The last beat: nobody waits for us any more."""
        self._left = True
        with suppress(StorageError):
            self._beat(LEAVE_SECONDS)

    def _go_on(self) -> None:
        while not self._left:
            began = self._ledger.time.now()
            with suppress(StorageError):  # whoever needs the store tells that it is down
                self._beat(CALL_SECONDS)
            self._ledger.time.sleep(max(0.0, began + self.beat_seconds - self._ledger.time.now()))

    def _beat(self, timeout_seconds: float) -> None:
        with self._lock:  # the last one is the one that says that we leave
            self._write(timeout_seconds)

    def _write(self, timeout_seconds: float) -> None:
        self._count += 1
        beat = Beat.model_validate(
            {
                "name": self._name,
                "process": self.process,
                "count": self._count,
                "round": self.round,
                "step": self.step,
                "phase": self.phase,
                "leaving": self._left,
            }
        )
        self._ledger.beat(beat, timeout_seconds)
