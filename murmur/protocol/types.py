"""The nouns that all packages share (docs/glossary.md). Values only: frozen, comparable, no behaviour beyond naming.

`PeerId` is the identity of a peer (its hotkey's 32 public-key bytes); all state is keyed by it. `Uid` is only the
slot on the subnet that the peer holds at the moment and is recycled when it leaves.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, NewType

Uid = NewType("Uid", int)
PeerId = NewType("PeerId", bytes)
Digest = NewType("Digest", bytes)

DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
MAX_UIDS = 256
"""Bits in a vote's bitmap (docs/protocol.md section 6)."""

SS58_FORMAT = 42
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@lru_cache(maxsize=4 * MAX_UIDS)
def hotkey(peer: PeerId) -> str:
    """Return the peer's SS58 address (format 42, as Bittensor prints it), for tables, logs and reports."""
    payload = bytes([SS58_FORMAT]) + peer
    payload += blake2b(b"SS58PRE" + payload).digest()[:2]
    number, text = int.from_bytes(payload, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return text


def peer_id(address: str) -> PeerId:
    """Inverse of `hotkey`. Raises ValueError for anything else; its message omits the text, which may be a secret
    pasted into the wrong field."""
    number = 0
    for character in address:
        digit = _BASE58.find(character)
        if digit < 0 or len(address) > 64:
            raise ValueError("not an SS58 address: too long, or a character outside base58")
        number = number * 58 + digit
    peer = PeerId(number.to_bytes(48, "big")[-34:-2])
    if hotkey(peer) != address:
        raise ValueError(f"not an SS58 address of format {SS58_FORMAT}: length, prefix or checksum differ")
    return peer


class Reason(StrEnum):
    """Why a submission was rejected, in the order of the fast checks: the first that fails is the reason."""

    MISSING = "MISSING"
    LATE = "LATE"
    WRONG_SIZE = "WRONG_SIZE"
    UNSIGNED = "UNSIGNED"
    WRONG_RUN = "WRONG_RUN"
    UNREVEALED = "UNREVEALED"
    BAD_KEY = "BAD_KEY"
    OUT_OF_SYNC = "OUT_OF_SYNC"
    MALFORMED = "MALFORMED"
    NORM = "NORM"
    COPY = "COPY"


class Standing(StrEnum):
    """Why a peer whose submission passed does not contribute. No fault is implied."""

    NOT_ELIGIBLE = "NOT_ELIGIBLE"
    LOW_SCORE = "LOW_SCORE"
    NOT_SELECTED = "NOT_SELECTED"


@dataclass(frozen=True, slots=True)
class Header:
    """A block of the chain. `time` is the chain's own timestamp in Unix seconds: for display, never for a decision."""

    block: int
    hash: Digest
    time: float


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a peer's bucket is and the read-only credential that the peer publishes for it.

    `endpoint` is an https URL, or http on a local run. The secret is public by design (it is on chain), but logs omit
    it nevertheless, so that no log line sets an example of printing secrets.
    """

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PublicPointer:
    """The address of a peer's public bucket, which needs no credential: KEY is at `endpoint`/KEY.

    `endpoint` as a Pointer's: scheme, host and port, nothing else.
    """

    endpoint: str


@dataclass(frozen=True, slots=True)
class Commitment:
    """A miner's statement on chain: in `round`, my sealed submission is the object whose envelope hashes to
    `envelope`."""

    round: int
    envelope: Digest


class StateRef(NamedTuple):
    """The run's state at the start of a round, as votes name it: the digest of theta, and the link of the last agreed
    selection."""

    theta: Digest
    link: Digest


@dataclass(frozen=True, slots=True)
class Vote:
    """A validator's vote on a round: the state (theta, previous) that it holds at the round's start, and in `bitmap` a
    bit for the uid of each peer that it names. Zeros in both digests, and no names: it abstains."""

    round: int
    bitmap: int
    theta: Digest
    previous: Digest

    @property
    def state_ref(self) -> StateRef | None:
        """None for an abstention."""
        return StateRef(self.theta, self.previous) if any(self.theta) or any(self.previous) else None


@dataclass(frozen=True, slots=True)
class Slot:
    """A hotkey's commitment slot at some height, already parsed; fields that did not parse are None.

    `block` is the block that wrote it; no other number decides about lateness.
    """

    block: int
    pointer: Pointer | PublicPointer | None = None
    statement: Commitment | Vote | None = None
    amendment: Digest | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A registered hotkey at one finalised height. `stake` in rao; `validates` is the chain's validator permit;
    `last_update` is the block of its last set_weights, or of its registration; `incentive` (u16) is the chain's result
    of all validators' weights for it in the last epoch."""

    id: PeerId
    uid: Uid
    stake: int
    validates: bool
    last_update: int = 0
    slot: Slot | None = None
    incentive: int = 0


@dataclass(frozen=True, slots=True)
class Subnet:
    """The chain's terms for a subnet's hotkeys as of one height. Lengths in blocks.

    `tempo` is an epoch, in which each hotkey may post `post_bytes` bytes; between two sets of its weights a validator
    waits `weights_rate_limit`. With `commit_reveal`, weights are committed sealed and take effect on chain
    `reveal_epochs` epochs later. `owner` is the hotkey of the subnet's owner, which always holds a validator permit;
    None if there is none. `max_uids` hotkeys may be registered, and each is judged by `mechanisms` rows of weights.
    """

    tempo: int
    post_bytes: int
    weights_rate_limit: int
    commit_reveal: bool
    owner: PeerId | None
    max_uids: int = MAX_UIDS
    mechanisms: int = 1
    reveal_epochs: int = 1


@dataclass(frozen=True, slots=True)
class Rejection:
    """A peer's fault as a value. `detail` is our own words and numbers, never text that the peer chose."""

    peer: PeerId
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Page:
    """A contiguous run of `num_tokens` tokens of the training split that begins at token `first`."""

    first: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class LossScore:
    """Fall of the loss (nats a token) that a peer's bounded update causes, on the data assigned to it and on unassigned
    data. Positive is good (Gauntlet, Eq. 2)."""

    assigned: float
    unassigned: float


@dataclass(frozen=True, slots=True)
class Selection:
    """The agreed selection of a round, read back from finalised chain state: the updates that every node aggregates.

    `theta` is the digest at the round's start, `previous` the link of the selection before, `head` that of the
    amendments in force (Run.head_at). `contributing` is sorted by PeerId; each digest is the sha256 of the envelope
    that the peer committed to on chain.
    """

    round: int
    theta: Digest
    previous: Digest
    head: Digest
    contributing: tuple[tuple[PeerId, Digest], ...]
