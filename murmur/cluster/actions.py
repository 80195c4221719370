"""What a member may do next (murmur/cluster/decide.py decides, murmur/cluster/member.py does it)."""

from dataclasses import dataclass

from murmur.cluster.state import ObjectLost
from murmur.protocol.cluster import Drain, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class Recall:
    """Read what the records before our round say."""


@dataclass(frozen=True, slots=True)
class Train:
    """Train. seconds: None for all inner steps. passed: seconds since most of the others began."""

    seconds: float | None
    passed: float


@dataclass(frozen=True, slots=True)
class Skip:
    """Send nothing in this round."""


@dataclass(frozen=True, slots=True)
class Send:
    """Upload our sealed update and claim it."""


@dataclass(frozen=True, slots=True)
class ClaimAgain:
    """Put back our claim, which the store has lost; look again in so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Create:
    """Close the round with this record. without: the living members that have not claimed."""

    record: Record
    without: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the round's record."""

    record: Record


@dataclass(frozen=True, slots=True)
class AskFor:
    """Ask the other members for what the bucket has lost."""

    lost: ObjectLost


@dataclass(frozen=True, slots=True)
class FindRecord:
    """The others have gone on from this round: have its record, or know that the store has lost it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Leave our state for the run's."""

    why: str


@dataclass(frozen=True, slots=True)
class TrainAfterAll:
    """Nobody is left to claim: train after all, in so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitStore:
    """Wait for the store."""

    fault: StorageError


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for the others; look again in so many seconds. waiting: how many living members have not claimed."""

    seconds: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Yield:
    """End: an earlier process plays as this member."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End, as we were asked to."""

    asked: Drain


@dataclass(frozen=True, slots=True)
class Finish:
    """End: the run is closed."""


Action = (
    Recall
    | Train
    | Skip
    | Send
    | ClaimAgain
    | Create
    | Apply
    | AskFor
    | FindRecord
    | Restart
    | TrainAfterAll
    | AwaitStore
    | Sleep
    | Yield
    | Leave
    | Finish
)
