"""A member's heartbeats: written by a thread of its own for as long as its process lives."""

import secrets
from collections.abc import Callable
from contextlib import suppress

from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.cluster.state import Round
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.cluster import Beat
from murmur.protocol.errors import StorageError

LEAVE_SECONDS = 2.0
"""Time-out of the last beat, so that it does not delay the end of the process."""


class Heartbeat:
    """Writes one member's place again and again. round, beat_seconds: return the present values."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        round: Callable[[], Round],
        beat_seconds: Callable[[], float],
        process: str = "",
    ) -> None:
        """process: 16 hexadecimal digits, unique among this member's processes, in the order in which they began; made
        if empty, from this machine's clock and at random."""
        self._ledger, self._name, self._round, self._seconds = ledger, name, round, beat_seconds
        self.process = process or f"{int(ledger.time.wall()) % 2**32:08x}{secrets.token_hex(4)}"
        self._changed, self._writing = ledger.time.condition(), False
        self._count = 0
        self._left = False

    def start(self) -> None:
        self._ledger.time.start(self._go_on, "heartbeat")

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
            self._ledger.time.sleep(max(0.0, began + self._seconds() - self._ledger.time.now()))

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
        round, now = self._round(), self._ledger.time.now()
        beat = Beat(
            name=self._name,
            process=self.process,
            count=self._count,
            round=round.number,
            step=round.step,
            phase=round.standing,
            theta=round.theta,
            passed=round_seconds(now - round.began) if round.began is not None else 0.0,
            leaving=self._left,
        )
        self._ledger.beat(beat, timeout_seconds)
