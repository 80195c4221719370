"""The validator's mirror: its own copies of accepted sealed submissions, so that whoever was selected can be repaired
from a source that the leader has read back (docs/protocol.md sections 6 and 8).

May not decide who is mirrored or selected, and trusts nothing it has not read back.
"""

import secrets
from dataclasses import dataclass

from protocol import keys
from protocol.errors import StorageError
from protocol.merkle import SECTION_BYTES, leaf, root
from protocol.messages import ENVELOPE_BYTES, parse_envelope
from protocol.ports import Time
from protocol.types import Digest, PeerId
from storage.exchange import publish
from storage.realtime import REAL, seconds_until
from storage.s3 import RangedBucket

_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Copied:
    """What has to be known to check a copy without the object: its size, envelope and the ciphertext's leaves."""

    round: int
    peer: PeerId
    size_bytes: int
    envelope: bytes
    leaves: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Mirror:
    """This validator's copies for one run, in its own bucket."""

    bucket: RangedBucket
    run: Digest
    time: Time = REAL

    def copy(
        self,
        round: int,
        peer: PeerId,
        sealed: bytes | memoryview,
        reveal: bytes | None = None,
        *,
        timeout_seconds: float,
    ) -> Copied:
        """Store an accepted sealed object (and its reveal, when it is known). What `holds` needs is returned.

        Raises StorageError at the deadline, InvalidMessage when there is no envelope in front.
        """
        envelope, ciphertext = bytes(sealed[:ENVELOPE_BYTES]), memoryview(sealed)[ENVELOPE_BYTES:]
        leaves = tuple(leaf(ciphertext[at : at + SECTION_BYTES]) for at in range(0, len(ciphertext), SECTION_BYTES))
        if root(leaves) != parse_envelope(envelope).root:
            raise ValueError("only accepted objects are mirrored, and this one's root differs from its envelope's")
        until = self.time.now() + timeout_seconds
        publish(
            self.bucket,
            keys.mirror(self.run, round, peer),
            bytes(sealed),
            timeout_seconds=seconds_until(until, self.time),
            time=self.time,
        )
        if reveal is not None:
            self.copy_reveal(round, peer, reveal, timeout_seconds=seconds_until(until, self.time))
        return Copied(round, peer, len(sealed), envelope, leaves)

    def copy_reveal(self, round: int, peer: PeerId, reveal: bytes, *, timeout_seconds: float) -> None:
        """Store the reveal that belongs to a copy."""
        publish(
            self.bucket,
            keys.mirror_reveal(self.run, round, peer),
            reveal,
            timeout_seconds=timeout_seconds,
            time=self.time,
        )

    def holds(self, copied: Copied, *, timeout_seconds: float) -> bool:
        """Whether the bucket holds the copy, by its size and by one randomly drawn section that is read back, with the
        envelope, and hashed. False as well when the bucket does not answer: a leader posts only what it has seen."""
        key = keys.mirror(self.run, copied.round, copied.peer)
        until = self.time.now() + timeout_seconds
        try:
            facts = self.bucket.head(key, timeout_seconds=seconds_until(until, self.time))
            if facts is None or facts.size_bytes != copied.size_bytes or not facts.etag:
                return False
            envelope = self._read(key, 0, ENVELOPE_BYTES, facts.etag, until)
            if envelope != copied.envelope:
                return False
            if not copied.leaves:
                return True
            drawn = secrets.randbelow(len(copied.leaves))
            first = ENVELOPE_BYTES + drawn * SECTION_BYTES
            num_bytes = min(SECTION_BYTES, copied.size_bytes - first)
            return leaf(self._read(key, first, num_bytes, facts.etag, until)) == copied.leaves[drawn]
        except StorageError:
            return False

    def _read(self, key: str, first: int, num_bytes: int, etag: str, until: float) -> bytes:
        return self.bucket.get_range(
            key, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=seconds_until(until, self.time)
        )

    def prune(self, before_round: int, *, timeout_seconds: float) -> int:
        """Delete the copies of rounds before `before_round`, oldest first, at most 1000 of a kind; how many went.

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
