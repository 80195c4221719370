"""The two doors to the outside, Chain and Bucket, the signing port, and the time that a node lives in. Everything
behind them can be replaced by an in-memory fake, and one contract suite runs on every implementation.

All calls block; every one has a hard time-out and raises ChainError or StorageError instead of hanging.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from protocol.types import Header, Peer, PeerId, Subnet, Uid


class Condition(Protocol):
    """A lock that can be waited on, as threading.Condition: wait and notify inside its with block only."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Until notified; False when `timeout` seconds have passed first."""
        ...

    def notify_all(self) -> None: ...


class Task(Protocol):
    """What runs beside its starter."""

    def join(self, timeout: float | None = None) -> None:
        """Until it has ended, at most `timeout` seconds."""
        ...

    def is_alive(self) -> bool: ...


class Time(Protocol):
    """How a node waits and runs things beside each other. A node is given one and knows no other clock, so that whole
    networks can live in a modelled time: there, nothing but these calls lets time pass."""

    def now(self) -> float:
        """Seconds of a clock that never goes back. Its zero means nothing."""
        ...

    def wall(self) -> float:
        """Unix seconds of this machine, for people: it may jump, and no decision reads it."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def condition(self) -> Condition: ...

    def start(self, work: Callable[[], None], name: str) -> Task:
        """Begin `work` in a daemon thread of this name. What it raises must be kept by `work` itself."""
        ...


class Signer(Protocol):
    """Signs with this node's hotkey (sr25519, randomised: two signatures of one message differ)."""

    @property
    def peer(self) -> PeerId: ...

    def sign(self, message: bytes) -> bytes:
        """64 signature bytes over `message`."""
        ...


class Verify(Protocol):
    """True when `signature` is the peer's over `message`. Never raises, whatever the bytes are."""

    def __call__(self, peer: PeerId, message: bytes, signature: bytes) -> bool: ...


class Chain(Protocol):
    """One subnet of a Bittensor chain. Every read names a block and answers from finalised state at that block."""

    def genesis(self) -> bytes:
        """The chain's genesis hash (32 bytes)."""
        ...

    def finalized(self) -> Header:
        """The finalised head."""
        ...

    def header(self, block: int) -> Header:
        """Header of a finalised block. Raises ChainError when `block` is not final yet or unknown to the node."""
        ...

    def wait(self, block: int, timeout_seconds: float) -> Header:
        """Wait until `block` is finalised, return its header. Raises ChainError after `timeout_seconds`."""
        ...

    def peers(self, block: int) -> tuple[Peer, ...]:
        """Every registered hotkey with its slot, as of the finalised `block`, sorted by uid."""
        ...

    def subnet(self, block: int) -> Subnet:
        """What the chain demands of the subnet's hotkeys as of the finalised `block`."""
        ...

    def balance(self) -> int:
        """What pays this hotkey's fees, in rao: the free balance of the coldkey that owns it, at the finalised head.

        Raises ChainError with code HotKeyAccountNotExists when no coldkey owns it.
        """
        ...

    def publish(self, fields: tuple[bytes, ...]) -> int:
        """Overwrite this hotkey's commitment slot with 1 to 3 fields; return the block that included it (read
        back from the slot when a lost connection hid it).

        Raises ChainError with the chain's error name in `code` (for instance when the quota is spent).
        """
        ...

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        """Set this validator's complete row of weights (non-negative, any scale, at least one positive): registered
        uids that are absent weigh zero. Returns the block of the set, or of the sealed commit of it, read back.

        Raises ChainError with the chain's error name in `code` (rate limit, no permit, stake); under commit-reveal
        also for what the chain would only find out at the reveal.
        """
        ...

    def stands_from(self, set_in: int) -> int | None:
        """The first block whose state holds the weights that were set in the final block `set_in`: that block itself,
        or, when they were committed there, the block that revealed them. None while that is not final."""
        ...

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        """The u16 weights that `uid` had set, as of the finalised `block`; a target that weighs zero may be absent."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a server says of an object. `modified` (Unix seconds) is a hint for people: a peer's server may lie."""

    size_bytes: int
    etag: str
    modified: float


class Multipart(Protocol):
    """An object on its way in parts, seen by nobody before `complete`. Thread-safe: parts may travel beside each other
    and in any order."""

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        """Store part `number`, from 1 to 10,000. Every part but the last needs 5 MiB, on some servers one size for all.

        Raises ObjectMissing when the server does not know this upload (any more), AccessDenied, StorageError.
        """
        ...

    def complete(self, *, timeout_seconds: float) -> None:
        """Make the object of all parts that are stored, in order of number, visible at once. Returns also when only the
        answer was lost."""
        ...

    def abort(self, *, timeout_seconds: float) -> None:
        """Forget the parts; not an error when the server knows nothing of them."""
        ...


class Bucket(Protocol):
    """One bucket with one credential. Thread-safe."""

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        """Store `data` under `key` atomically: a reader sees all of it or what was there before."""
        ...

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        """Store `data`, at most 1 MiB, under `key` where nothing stands under it; whether this is what stands there
        now. Of several writers at once one wins, where the store creates once (storage/behaviour.py).

        Raises StorageError where nobody can tell.
        """
        ...

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        """The whole object, from one version of it.

        Raises ObjectMissing, AccessDenied, StorageError; ObjectTooLarge, before any body is read, when it is larger
        than `max_bytes` (with `exact`: when its size is not `max_bytes`). Never holds more than `max_bytes` + one
        part in memory, and never takes longer than `timeout_seconds` + one socket time-out.
        """
        ...

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        """Facts of an object, None when it is not there. Raises BucketMissing where the server tells."""
        ...

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        """Keys that begin with `prefix`, sorted, at most `max_keys`."""
        ...

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        """Remove an object; not an error when it is not there."""
        ...

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        """Begin to store an object in parts."""
        ...

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        """Abort every multipart upload to a key that begins with `prefix`, whoever began it; how many there were."""
        ...
