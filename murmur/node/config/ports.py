"""A node's connections to the outside. Importing this module needs no library of a chain."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from murmur.protocol.ports import Chain, Signer, Time, Verify
from murmur.protocol.types import Pointer, PublicPointer
from murmur.proxies import is_loopback
from storage.realtime import REAL
from storage.s3 import RangedBucket

Opener = Callable[[Pointer | PublicPointer], RangedBucket]


@dataclass(frozen=True, slots=True)
class Ports:
    """All connections of a node in a run. `pointer` is the published pointer to its own bucket; `open_pointer` opens a
    peer's bucket by the peer's published pointer; `time` is its only clock. `store_time` asks its store for the time in
    Unix seconds, None where the store says none; it raises StorageError."""

    chain: Chain
    signer: Signer
    verify: Verify
    bucket: RangedBucket
    pointer: Pointer | PublicPointer
    open_pointer: Opener
    time: Time = REAL
    store_time: Callable[[], float | None] = lambda: None


def is_local(network: str) -> bool:
    """Whether the chain is on this machine. It may still be a node of a public chain. Whether a run is local, and
    peers' buckets may be on private addresses, is set by its spec."""
    return network == "local" or is_loopback(urlsplit(network).hostname or "")
