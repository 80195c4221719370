"""A cluster member's standing as values: its round, what the bucket showed, and what it lacks. They are replaced, never
changed, so any thread may read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from murmur.cluster.presence import Presence
from murmur.protocol.cluster import Claim, Drain, Record, Standing
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store does not serve us."""

    fault: StorageError


@dataclass(frozen=True, slots=True)
class ObjectLost:
    """The bucket has lost payloads of these members in the round, or its record (GROUP)."""

    round: int
    peers: tuple[PeerId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The run has another theta than we."""

    why: str


Missing = StoreAway | ObjectLost | Elsewhere


@dataclass(frozen=True, slots=True)
class Round:
    """One member's round. link, theta: the state at its start. sealed: digest of our update of the round, if it is on
    this disk. claimed: whether we have claimed it since our start. spoken: whether the bucket held a claim of ours
    before our start. skips: whether we send nothing. step: the number of inner steps done. began: when they began, by
    our clock; None where we do not know. enough_for: seconds since more than half have claimed, in looks that the store
    answered."""

    number: int
    link: Digest
    theta: Digest | None = None
    standing: Standing = Standing.JOINING
    recalled: bool = False
    """Whether we know what the records before this round say."""
    sealed: Digest | None = None
    claimed: bool = False
    spoken: bool = False
    unsent: bool = False
    """Whether sending has failed: the round may have ended meanwhile."""
    skips: bool = False
    step: int = 0
    began: float | None = None
    enough_for: float = 0.0
    looked: float | None = None
    closed: bool = False
    """Whether the record before this round was the run's last."""
    drained: Drain | None = None
    missing: Missing | None = None
    """What the last action lacked."""


@dataclass(frozen=True, slots=True)
class View:
    """What the bucket showed of a round at our last look. at: when that ended, by our clock. claims: those that count.
    twin: a process that began before ours plays as the same member."""

    at: float
    number: int
    presence: Presence
    record: Record | None = None
    claims: Mapping[PeerId, Claim] = field(default_factory=dict)
    twin: bool = False
    missing: Missing | None = None


def after_look(round: Round, view: View, *, enough: bool, longest: float) -> Round:
    """Return the round after a look, while we wait for its record. A look that the store did not answer is nobody's
    delay. enough: whether more than half have claimed. longest: seconds that count between two looks."""
    if view.missing is not None:
        return replace(round, looked=view.at)
    passed = 0.0 if round.looked is None else min(view.at - round.looked, longest)
    return replace(round, looked=view.at, enough_for=round.enough_for + passed if enough else 0.0)
