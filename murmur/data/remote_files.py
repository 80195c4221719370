"""The interface through which training requests a data set's files from strangers' buckets, whole or in part. No
network here: murmur/node/sync/dataset.py implements it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from murmur.protocol.types import Digest


@dataclass(frozen=True, slots=True)
class File:
    """The blob with this sha256, of `num_bytes` (`exact` False: at most that many), to be stored at `path`."""

    blob: Digest
    num_bytes: int
    path: Path
    exact: bool = True


@dataclass(frozen=True, slots=True)
class BlobRange:
    """Bytes first .. first + num_bytes - 1 of the blob with this sha256, which has `blob_bytes` in all. `accept`
    verifies the bytes."""

    blob: Digest
    blob_bytes: int
    first: int
    num_bytes: int
    accept: Callable[[bytes | memoryview], bool]


class Remote(Protocol):
    """A source of blobs. The items of one call are fetched concurrently. When a source has nothing, stalls or returns
    wrong bytes, another one is asked. Raises StorageError when none has the blob, and the chain's errors where the
    chain has to be asked for the sources."""

    def read(self, parts: Sequence[BlobRange]) -> list[bytes]:
        """Return the parts, in this order, in memory."""
        ...

    def fetch(self, files: Sequence[File]) -> None:
        """Store the files, each whole or not at all, verified against their digests. Raises ConfigError when the disk
        rejects them."""
        ...
