"""What training asks of strangers' buckets for the files of a data set: whole ones, or parts of them. No network here:
node/sync/dataset.py answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.types import Digest


@dataclass(frozen=True, slots=True)
class File:
    """The blob with this sha256, of `num_bytes` (`exact` False: of at most as many), to be stored at `path`."""

    blob: Digest
    num_bytes: int
    path: Path
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes first .. first + num_bytes - 1 of the blob with this sha256, which has `blob_bytes` in all. `accept` tells
    the right bytes from others."""

    blob: Digest
    blob_bytes: int
    first: int
    num_bytes: int
    accept: Callable[[bytes | memoryview], bool]


class Remote(Protocol):
    """Where blobs are to be had. What is wanted in one call travels beside each other; of several sources another one
    is asked when one has nothing, stalls, or has something else. Raises StorageError when none has it, and what the
    chain raises where that has to be asked for the sources."""

    def read(self, parts: Sequence[Part]) -> list[bytes]:
        """The parts, in this order, in memory."""
        ...

    def fetch(self, files: Sequence[File]) -> None:
        """Store the files, each whole or not at all; that they hash to their digests is seen to. Raises ConfigError
        when the disk does not take them."""
        ...
