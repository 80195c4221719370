"""The two ports to the outside, Chain and Bucket, the signing port, and the node's time. An in-memory fake can replace
everything behind them, and one contract suite runs on every implementation.

All calls block; every one has a hard time-out and raises ChainError or StorageError instead of hanging.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from murmur.protocol.types import Header, Peer, PeerId, Subnet, Uid


class Condition(Protocol):
    """A lock that can be waited on, like threading.Condition: wait and notify inside its with block only."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified; return False if `timeout` seconds have passed first."""
        ...

    def notify_all(self) -> None: ...


class Task(Protocol):
    """Work that runs in parallel with its starter."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` seconds."""
        ...

    def is_alive(self) -> bool: ...


class Time(Protocol):
    """How a node waits and runs work concurrently. A node gets one and uses no other clock, so that whole networks can
    run in modelled time: there, only these calls let time pass."""

    def now(self) -> float:
        """Return seconds of a monotonic clock with an arbitrary zero."""
        ...

    def wall(self) -> float:
        """Return Unix seconds of this machine, for people: they may jump, and no decision reads them."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def condition(self) -> Condition: ...

    def start(self, work: Callable[[], None], name: str) -> Task:
        """Start `work` in a daemon thread of this name. `work` itself must keep its errors."""
        ...


class Signer(Protocol):
    """Signs with this node's hotkey (sr25519, randomised: two signatures of one message differ)."""

    @property
    def peer(self) -> PeerId: ...

    def sign(self, message: bytes) -> bytes:
        """Return 64 signature bytes over `message`."""
        ...


class Verify(Protocol):
    """Whether `signature` is the peer's over `message`. Never raises, whatever the bytes are."""

    def __call__(self, peer: PeerId, message: bytes, signature: bytes) -> bool: ...


class Chain(Protocol):
    """One subnet of a Bittensor chain. Every read names a block and answers from finalised state at that block."""

    def genesis(self) -> bytes:
        """Return the chain's genesis hash (32 bytes)."""
        ...

    def finalized(self) -> Header:
        """Return the finalised head."""
        ...

    def header(self, block: int) -> Header:
        """Return the header of a finalised block. Raises ChainError if `block` is not final yet or unknown to the
        node."""
        ...

    def wait(self, block: int, timeout_seconds: float) -> Header:
        """Wait until `block` is finalised, return its header. Raises ChainError after `timeout_seconds`."""
        ...

    def peers(self, block: int) -> tuple[Peer, ...]:
        """Return every registered hotkey with its slot, as of the finalised `block`, sorted by uid."""
        ...

    def subnet(self, block: int) -> Subnet:
        """Return the chain's terms for the subnet's hotkeys as of the finalised `block`."""
        ...

    def balance(self) -> int:
        """Return the balance for this hotkey's fees, in rao: the free balance of the coldkey that owns it, at the
        finalised head.

        Raises ChainError with code HotKeyAccountNotExists if no coldkey owns it.
        """
        ...

    def publish(self, fields: tuple[bytes, ...]) -> int:
        """Overwrite this hotkey's commitment slot with 1 to 3 fields. Return the block that included it (read back from
        the slot if a lost connection hid it).

        Raises ChainError with the chain's error name in `code` (for instance if the quota is spent).
        """
        ...

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        """Set this validator's complete row of weights (non-negative, any scale, at least one positive): registered
        uids that are absent weigh zero. Return the block of the set, or of the sealed commit of it, read back.

        Raises ChainError with the chain's error name in `code` (rate limit, no permit, stake); under commit-reveal also
        for faults that the chain would only find at the reveal.
        """
        ...

    def stands_from(self, set_in: int) -> int | None:
        """Return the first block whose state has the weights that were set in the final block `set_in`: that block
        itself, or, if they were committed there, the block that revealed them. None while that is not final."""
        ...

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        """Return the u16 weights that `uid` had set, as of the finalised `block`; a target that weighs zero may be
        absent."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """A server's facts of an object. `modified` (Unix seconds) is a hint for people: a peer's server may lie."""

    size_bytes: int
    etag: str
    modified: float


class Multipart(Protocol):
    """An object uploaded in parts, invisible before `complete`. Thread-safe: parts may be sent concurrently and in any
    order."""

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        """Store part `number`, from 1 to 10,000. Every part except the last needs 5 MiB, on some servers one size for
        all.

        Raises ObjectMissing if the server does not know this upload (any more), AccessDenied, StorageError.
        """
        ...

    def complete(self, *, timeout_seconds: float) -> None:
        """Make the object of all stored parts, in order of number, visible at once. Also returns if only the answer was
        lost."""
        ...

    def abort(self, *, timeout_seconds: float) -> None:
        """Discard the parts; no error if the server does not know them."""
        ...


class Bucket(Protocol):
    """One bucket with one credential. Thread-safe."""

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        """Store `data` under `key` atomically: a reader sees all of it or the earlier object."""
        ...

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        """Store `data`, at most 1 MiB, under `key` if there is no object. Return whether `data` is the object there
        now. Of several concurrent writers one wins, if the store creates once (storage/behaviour.py).

        Raises StorageError if the result is unknown.
        """
        ...

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        """Return the whole object, from one version of it.

        Raises ObjectMissing, AccessDenied, StorageError. Raises ObjectTooLarge, before any body is read, if it is
        larger than `max_bytes` (with `exact`: if its size is not `max_bytes`). Never holds more than `max_bytes` + one
        part in memory, and never takes longer than `timeout_seconds` + one socket time-out.
        """
        ...

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        """Return facts of an object, None if it is missing. Raises BucketMissing if the server says so."""
        ...

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        """Return the keys that begin with `prefix`, sorted, at most `max_keys`."""
        ...

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        """Remove an object; no error if it is missing."""
        ...

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        """Start an upload in parts."""
        ...

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        """Abort every multipart upload to a key that begins with `prefix`, by any writer; return how many there
        were."""
        ...
