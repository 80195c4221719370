"""What a member may do next (murmur/cluster/decide.py decides, murmur/cluster/member.py does it)."""

from dataclasses import dataclass
from enum import Enum, auto

from murmur.cluster.state import Missing
from murmur.protocol.cluster import Drain, Record


class Do(Enum):
    """What needs no further words."""

    RECALL = auto()
    """Read what the records before our round say."""
    SKIP = auto()
    """Send nothing in this round."""
    SEND = auto()
    """Upload our sealed update and claim it."""
    CLAIM_AGAIN = auto()
    """Put back our claim, which the store has lost."""
    FIND_RECORD = auto()
    """The others have gone on from this round: have its record, or know that the store has lost it."""
    TRAIN_AFTER_ALL = auto()
    """Nobody is left to claim: do not skip the round."""
    YIELD = auto()
    """End: an earlier process plays as this member."""
    FINISH = auto()
    """End: the run is closed."""


@dataclass(frozen=True, slots=True)
class Train:
    """Train and seal. seconds: None for all inner steps. passed: seconds since most of the others began."""

    seconds: float | None
    passed: float


@dataclass(frozen=True, slots=True)
class Create:
    """Close the round with this record. waited_for: the living members that have not claimed."""

    record: Record
    waited_for: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the round's record."""

    record: Record


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for so many living members that have not claimed."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Leave:
    """End, as we were asked to."""

    asked: Drain


Action = Do | Train | Create | Apply | Sleep | Leave | Missing
"""What is missing is mended: wait for the store, ask the other members for an object, or leave our state for theirs."""
