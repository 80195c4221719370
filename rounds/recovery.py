"""A cluster member that cannot go on from its own state: the bucket has lost data, or the run has another theta."""

from typing import TYPE_CHECKING

from loguru import logger

from node.cluster.rejoin import from_checkpoint, from_genesis
from node.fetch.payloads import Lacking
from protocol.errors import OutOfSync, StorageError

if TYPE_CHECKING:
    from rounds.member import Member

LONGEST_PAUSE = 600.0
"""Seconds between two tries to come to the run's theta: each may fetch the whole model."""
LOST_SILENCES = 6.0
"""We ask other members so many times `silent_seconds` for what the bucket has lost, before we look for a checkpoint."""


class RunElsewhere(OutOfSync):
    """The run has another theta than we."""


class Recovery:
    """Brings one member back to the run's state."""

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._lacking = (-1, 0.0)
        """The round of which we lack something, and since when."""
        self._astray, self._astray_in = 0, -1
        """How often, and in which round, we held another theta than the run."""

    def ask(self, fault: Lacking) -> None:
        """Ask other members for what the bucket has lost; begin from a checkpoint where that takes too long. Raises
        what it was given while there is none."""
        member = self._member
        if self._lacking[0] != fault.round:
            self._lacking = fault.round, member.time.now()
        member.pulse.phase = "join"
        member.upkeep.ask(fault.round, fault.peers)
        until = self._lacking[1] + LOST_SILENCES * member.spec.cluster.silent_seconds
        if member.time.now() < until or not from_checkpoint(member.ledger, member.state, fault.round):
            raise fault
        member.recall()
        self._lacking = -1, 0.0

    def start_over(self, why: str) -> None:
        """Our theta is not the run's: take a checkpoint, whatever we hold. Where that leads to the same theta again,
        another one is to come first."""
        member = self._member
        member.pulse.phase, round = "join", member.state.saved.round
        self._astray = self._astray + 1 if self._astray_in == round else 0
        self._astray_in = round
        logger.warning("{why}: starting again from a checkpoint", why=why)
        member.state.events.emit("diverged", round, why=why)
        if self._astray:
            logger.error("this machine computes another theta than the run: check its memory, its GPU and its release")
            member.time.sleep(min(LONGEST_PAUSE, member.spec.cluster.silent_seconds * 2 ** min(self._astray, 10)))
        if from_checkpoint(member.ledger, member.state, -1):
            member.recall()
            return
        if round > member.spec.cluster.keep_rounds:
            raise StorageError(
                "no member has a checkpoint, and the payloads since theta_0 are gone: keeping our own state"
            )
        from_genesis(member.ledger, member.state)
        member.recall()
