"""A cluster member that cannot go on from its own state: the bucket has lost data, or the run has another theta."""

from collections.abc import Sequence

from loguru import logger

from murmur.cluster.ledger import Ledger, UnreadableRecord
from murmur.cluster.on_disk import OnDisk
from murmur.cluster.pace import ROUNDS
from murmur.cluster.rejoin import from_checkpoint, from_genesis
from murmur.cluster.repair import Wants
from murmur.node.fetch.payloads import Lacking
from murmur.node.state.node_state import NodeState
from murmur.protocol.cluster import GROUP, ClusterTable, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.types import PeerId

LONGEST_PAUSE = 600.0
"""Seconds between two tries to come to the run's theta: each may fetch the whole model."""
LOST_SILENCES = 6.0
"""We ask other members so many times `silent_seconds` for what the bucket has lost, before we look for a checkpoint."""


class Recovery:
    """Brings one member back to the run's state. `log`: the last records on our disk."""

    def __init__(self, ledger: Ledger, state: NodeState, log: OnDisk[Record], wants: Wants) -> None:
        self._ledger, self._state, self._log, self._wants = ledger, state, log, wants
        self._lacking = (-1, 0.0)
        """The round of which we lack something, and since when."""
        self._astray, self._astray_in = 0, -1
        """How often, and in which round, we held another theta than the run."""

    def recall(self) -> list[Record]:
        """Return the last records before our round. Raises Lacking where neither the bucket nor our disk has the last
        one, and StorageError."""
        round = self._state.saved.round
        latest = [self._record(one, needed=one == round - 1) for one in range(max(0, round - ROUNDS), round)]
        if round and latest[-1] is None:
            raise Lacking(
                round - 1, [GROUP], f"the store has lost the record of round {round - 1}, and we have no copy"
            )
        return [record for record in latest if record is not None]

    def _record(self, round: int, *, needed: bool) -> Record | None:
        """The store's; where it has none, or cannot read it, our disk's. Raises StorageError if neither has one that is
        needed, and the store fails."""
        kept = self._log.find(round)
        try:
            return self._ledger.record(round) or kept
        except StorageError as fault:
            if needed and kept is None and not isinstance(fault, UnreadableRecord):
                raise
            return kept

    def ask(self, round: int, peers: Sequence[PeerId], rules: ClusterTable) -> bool:
        """Ask other members for what the bucket has lost of this round; begin from a checkpoint where that takes too
        long, or where nobody keeps it any more. Return whether we began from one. Raises StorageError."""
        time = self._ledger.time
        kept = self._ledger.closed_at(round + rules.keep_rounds) is None
        if not kept and from_checkpoint(self._ledger, self._state, round):
            return True
        if self._lacking[0] != round:
            self._lacking = round, time.now()
        self._wants.publish(round, peers)
        until = self._lacking[1] + LOST_SILENCES * rules.silent_seconds
        if time.now() < until or not from_checkpoint(self._ledger, self._state, round):
            return False
        self._lacking = -1, 0.0
        return True

    def start_over(self, why: str, rules: ClusterTable) -> None:
        """Our theta is not the run's: take a checkpoint, whatever we hold. Where that leads to the same theta again,
        another one is to come first. Raises StorageError."""
        state, round = self._state, self._state.saved.round
        logger.warning("{why}: starting again from a checkpoint", why=why)
        state.events.emit("diverged", round, why=why)
        if self._astray and self._astray_in == round:
            logger.error("this machine computes another theta than the run: check its memory, its GPU and its release")
            self._ledger.time.sleep(min(LONGEST_PAUSE, rules.silent_seconds * 2 ** min(self._astray, 10)))
        if from_checkpoint(self._ledger, state, -1):
            self._left(round)
            return
        if round > rules.keep_rounds:
            raise StorageError(
                "no member has a checkpoint, and the payloads since theta_0 are gone: keeping our own state"
            )
        from_genesis(self._ledger, state)
        self._left(round)

    def _left(self, round: int) -> None:
        """Note that we have left our theta of this round. Some of the records here are of the history that we leave."""
        self._astray = self._astray + 1 if self._astray_in == round else 1
        self._astray_in = round
        self._log.forget()
