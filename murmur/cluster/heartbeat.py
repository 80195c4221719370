"""A member's heartbeats: written by a thread of its own for as long as its process lives."""

import secrets
from contextlib import suppress

from murmur.cluster.ledger import CALL_SECONDS, Ledger
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.cluster import Beat
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest

LEAVE_SECONDS = 2.0
"""Time-out of the last beat, so that it does not delay the end of the process."""


class Heartbeat:
    """Writes one member's position again and again. The player of its rounds sets `round`, `step`, `phase` and
    `began`."""

    def __init__(self, ledger: Ledger, name: str, beat_seconds: float, process: str = "") -> None:
        """process: 16 hexadecimal digits, unique among this member's processes; drawn if empty."""
        self._ledger, self._name, self.beat_seconds = ledger, name, beat_seconds
        self.process = process or secrets.token_hex(8)
        self._changed, self._writing = ledger.time.condition(), False
        self._count = 0
        self._left = False
        self.round, self.step = 0, 0
        self.phase = "join"
        self.theta: Digest | None = None
        self.began: float | None = None
        """When the round's inner steps began, by our clock; None where we do not know."""

    def start(self) -> None:
        self._ledger.time.start(self._go_on, "heartbeat")

    def set_position(self, round: int, theta: Digest) -> None:
        """Be at the start of this round, with this theta."""
        if round != self.round:
            self.began = None
        self.round, self.step, self.theta = round, 0, theta

    def leave(self) -> None:
        """Write the last beat: the other members stop waiting for us. Write none if the one before it is stuck."""
        self._left = True
        time = self._ledger.time
        until = time.now() + LEAVE_SECONDS
        with self._changed:
            while self._writing and (left := until - time.now()) > 0:
                self._changed.wait(left)
            if self._writing:
                return
        with suppress(StorageError):
            self._beat(LEAVE_SECONDS)

    def _go_on(self) -> None:
        while not self._left:
            began = self._ledger.time.now()
            with suppress(StorageError):  # the store's users report that it is down
                self._beat(CALL_SECONDS)
            self._ledger.time.sleep(max(0.0, began + self.beat_seconds - self._ledger.time.now()))

    def _beat(self, timeout_seconds: float) -> None:
        with self._changed:
            self._writing = True
        try:
            self._write(timeout_seconds)
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _write(self, timeout_seconds: float) -> None:
        self._count += 1
        began, now = self.began, self._ledger.time.now()
        beat = Beat.model_validate(
            {
                "name": self._name,
                "process": self.process,
                "count": self._count,
                "round": self.round,
                "step": self.step,
                "phase": self.phase,
                "theta": self.theta,
                "passed": round_seconds(now - began) if began is not None else 0.0,
                "leaving": self._left,
            }
        )
        self._ledger.beat(beat, timeout_seconds)
