"""A cluster member that cannot go on from its own state: the bucket has lost data, or the run has another theta."""

from loguru import logger

from murmur.cluster.decisions import ROUNDS
from murmur.cluster.ledger import UnreadableRecord
from murmur.cluster.membership import Membership
from murmur.cluster.rejoin import from_checkpoint, from_genesis
from murmur.node.fetch.payloads import Lacking
from murmur.protocol.cluster import GROUP, Record
from murmur.protocol.errors import OutOfSync, StorageError

LONGEST_PAUSE = 600.0
"""Seconds between two tries to come to the run's theta: each may fetch the whole model."""
LOST_SILENCES = 6.0
"""We ask other members so many times `silent_seconds` for what the bucket has lost, before we look for a checkpoint."""


class RunElsewhere(OutOfSync):
    """The run has another theta than we."""


class Recovery:
    """Brings one member back to the run's state."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self.recalled = False
        """Whether we know what the records before our round say."""
        self._lacking = (-1, 0.0)
        """The round of which we lack something, and since when."""
        self._astray, self._astray_in = 0, -1
        """How often, and in which round, we held another theta than the run."""

    def resume(self) -> None:
        """After a start: read the records before our round, and ask other members for what neither the bucket nor our
        disk has. Raises StorageError while that is to come."""
        member = self._member
        try:
            self.recall()
        except Lacking as fault:
            self.ask(fault)
        member.maintenance.clear_wanted()
        member.announce_position()
        member.state.events.emit("joined", member.state.saved.round)

    def recall(self) -> None:
        """Take what the last records before our round say: what steps take, and which amendments hold. Raises Lacking,
        StorageError."""
        member = self._member
        round = member.state.saved.round
        latest = [self._record(one, needed=one == round - 1) for one in range(max(0, round - ROUNDS), round)]
        if round and latest[-1] is None:
            raise Lacking(
                round - 1, [GROUP], f"the store has lost the record of round {round - 1}, and we have no copy"
            )
        member.records = [record for record in latest if record is not None]
        member.adopt_amendments(member.amended.at(member.records[-1].amendments if member.records else 0))
        self.recalled = True

    def _from_checkpoint(self, later_than: int) -> bool:
        """Load the newest usable checkpoint of a round after `later_than`, and recall. Return whether there was one.
        Raises StorageError; if a checkpoint was loaded before that, our next round begins with `recall`."""
        before, self.recalled = self.recalled, False
        if not from_checkpoint(self._member.ledger, self._member.state, later_than):
            self.recalled = before
            return False
        self.recall()
        return True

    def _record(self, round: int, *, needed: bool) -> Record | None:
        """The store's; where it has none, or cannot read it, our disk's. Raises StorageError if neither has one that is
        needed, and the store fails."""
        kept = self._member.log.find(round)
        try:
            return self._member.ledger.record(round) or kept
        except StorageError as fault:
            if needed and kept is None and not isinstance(fault, UnreadableRecord):
                raise
            return kept

    def ask(self, fault: Lacking) -> None:
        """Ask other members for what the bucket has lost; begin from a checkpoint where that takes too long, or where
        nobody keeps it any more. Raises what it was given while there is none."""
        member = self._member
        kept = member.ledger.closed_at(fault.round + member.spec.cluster.keep_rounds) is None
        if not kept and self._from_checkpoint(fault.round):
            return
        if self._lacking[0] != fault.round:
            self._lacking = fault.round, member.time.now()
        member.heartbeat.phase = "join"
        member.maintenance.publish_wanted(fault.round, fault.peers)
        until = self._lacking[1] + LOST_SILENCES * member.spec.cluster.silent_seconds
        if member.time.now() < until or not self._from_checkpoint(fault.round):
            raise fault
        self._lacking = -1, 0.0

    def start_over(self, why: str) -> None:
        """Our theta is not the run's: take a checkpoint, whatever we hold. Where that leads to the same theta again,
        another one is to come first."""
        member = self._member
        member.heartbeat.phase, round = "join", member.state.saved.round
        member.claimed, member.skipped = None, -1
        self._astray = self._astray + 1 if self._astray_in == round else 0
        self._astray_in = round
        member.log.forget()  # some are of the history that we leave
        logger.warning("{why}: starting again from a checkpoint", why=why)
        member.state.events.emit("diverged", round, why=why)
        if self._astray:
            logger.error("this machine computes another theta than the run: check its memory, its GPU and its release")
            member.time.sleep(min(LONGEST_PAUSE, member.spec.cluster.silent_seconds * 2 ** min(self._astray, 10)))
        if self._from_checkpoint(-1):
            return
        if round > member.spec.cluster.keep_rounds:
            raise StorageError(
                "no member has a checkpoint, and the payloads since theta_0 are gone: keeping our own state"
            )
        self.recalled = False
        from_genesis(member.ledger, member.state)
        self.recall()
