"""A member that beats when a test asks it to."""

from dataclasses import replace
from typing import Any

from murmur.cluster.heartbeat import Heartbeat
from murmur.cluster.ledger import Ledger
from murmur.cluster.state import Round
from murmur.protocol.cluster import Standing
from murmur.protocol.types import Digest


class Beats:
    """One member's beats, in a round of a run."""

    def __init__(self, ledger: Ledger, name: str, process: str = "", round: int = 0) -> None:
        self.round = Round(round, Digest(bytes(32)), standing=Standing.TRAINING)
        self._heartbeat = Heartbeat(ledger, name, lambda: self.round, lambda: 5.0, process)

    def beat(self, **changes: Any) -> None:
        """Beat, with these fields of the round changed."""
        self.round = replace(self.round, **changes)
        self._heartbeat._beat(10.0)

    def leave(self) -> None:
        self._heartbeat.leave()
