"""The validator's mirror: its own copies of sealed submissions and reveals, from which nodes repair a selected peer's
missing objects (docs/protocol.md sections 6 and 8).

May not decide whom to copy: the caller has checked every object.
"""

from dataclasses import dataclass
from pathlib import Path

from murmur.protocol import keys
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, PeerId
from storage.exchange import publish
from storage.realtime import REAL, seconds_until
from storage.s3 import RangedBucket

_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Mirror:
    """This validator's copies for one run, in its own bucket."""

    bucket: RangedBucket
    run: Digest
    time: Time = REAL

    def has(self, round: int, peer: PeerId, size_bytes: int, *, timeout_seconds: float) -> bool:
        """Whether a copy of this size exists: an upload becomes visible only as a whole. Raises StorageError."""
        facts = self.bucket.head(keys.mirror(self.run, round, peer), timeout_seconds=timeout_seconds)
        return facts is not None and facts.size_bytes == size_bytes

    def copy(self, round: int, peer: PeerId, sealed: bytes | Path, *, timeout_seconds: float) -> None:
        """Store an accepted sealed object. Raises StorageError at the deadline, OSError when the file is gone."""
        publish(
            self.bucket,
            keys.mirror(self.run, round, peer),
            sealed,
            timeout_seconds=timeout_seconds,
            time=self.time,
        )

    def copy_reveal(self, round: int, peer: PeerId, reveal: bytes, *, timeout_seconds: float) -> None:
        """Store the reveal that belongs to a copy."""
        publish(
            self.bucket,
            keys.mirror_reveal(self.run, round, peer),
            reveal,
            timeout_seconds=timeout_seconds,
            time=self.time,
        )

    def prune(self, before_round: int, *, timeout_seconds: float) -> int:
        """Delete the copies of rounds before `before_round`, oldest first, at most 1000 of each kind; return how many
        were deleted.

        Raises StorageError.
        """
        until = self.time.now() + timeout_seconds
        pruned = 0
        for key_of in (keys.mirror, keys.mirror_reveal):
            # Keys sort by round, so everything older sorts before the first possible key of `before_round`.
            end = key_of(self.run, before_round, PeerId(b""))
            prefix = key_of(self.run, 0, PeerId(b"")).removesuffix("00000000/")
            for key in self.bucket.list(prefix, max_keys=_LISTED, timeout_seconds=seconds_until(until, self.time)):
                if key < end:
                    self.bucket.delete(key, timeout_seconds=seconds_until(until, self.time))
                    pruned += 1
        return pruned
