"""Documents of one group in its bucket, each tagged by its writer (murmur/protocol/cluster.py).

An object that is no document of this group is ignored: it is logged once, and members continue to wait.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from loguru import logger

from murmur.cluster.group_keys import Group
from murmur.node.fetch.concurrency import parallel_map
from murmur.protocol.cluster import GROUP, Document
from murmur.protocol.errors import InvalidMessage, ObjectMissing, ObjectTooLarge, StorageError
from murmur.protocol.messages import NO_ROUND
from murmur.protocol.ports import Time
from murmur.protocol.types import DIGEST_BYTES, Digest, PeerId
from storage.s3 import CREATE_BYTES, SharedBucket

CALL_SECONDS = 15.0
"""Time-out of one call of the store."""
LOOK_THREADS = 8
MOST_MEMBERS = 1 << 16
"""No listing of members is longer: a store that lies must not fill our memory."""

T = TypeVar("T")
D = TypeVar("D", bound=Document)


class Documents:
    """The tagged documents of a run. Thread-safe; each call raises StorageError."""

    def __init__(self, bucket: SharedBucket, run: Digest, group: Group, time: Time) -> None:
        self.bucket, self.run, self.group, self.time = bucket, run, group, time
        self._strange: set[str] = set()

    def put(
        self,
        key: str,
        document: Document,
        round: int = NO_ROUND,
        writer: PeerId = GROUP,
        timeout_seconds: float = CALL_SECONDS,
    ) -> None:
        data = document.encode(self.run, round, self.group.signer(writer))
        self.bucket.put(key, data, timeout_seconds=timeout_seconds)

    def create(self, key: str, document: Document, round: int, writer: PeerId = GROUP) -> bool:
        """Create the document, unless there is one. Return whether what is there is ours."""
        data = document.encode(self.run, round, self.group.signer(writer))
        return self.bucket.create(key, data, timeout_seconds=CALL_SECONDS)

    def delete(self, key: str) -> None:
        self.bucket.delete(key, timeout_seconds=CALL_SECONDS)

    def find(self, kind: type[D], key: str, round: int = NO_ROUND, writer: PeerId = GROUP) -> D | None:
        """Return the document; None if it is missing, or not written by this group."""
        return self.read(key, CREATE_BYTES, lambda data: kind.parse(data, self.run, round, writer, self.group.verify))

    def read(self, key: str, max_bytes: int, parse: Callable[[bytes], T]) -> T | None:
        """Read and parse an object; None if it is missing, or not written by this group."""
        try:
            return parse(self.bucket.get(key, max_bytes=max_bytes, timeout_seconds=CALL_SECONDS))
        except ObjectMissing:
            return None
        except (InvalidMessage, ObjectTooLarge) as fault:
            if key not in self._strange:
                self._strange.add(key)
                logger.warning(
                    "{key} was not written by this group ({fault}): the writer has another token or release, "
                    "or the store has damaged it. Ignoring it",
                    key=key,
                    fault=str(fault),
                )
            return None

    def read_each(
        self, read: Callable[[PeerId], T | None], members: list[PeerId], unread: set[PeerId] | None = None
    ) -> dict[PeerId, T]:
        """Read each member's document, in up to LOOK_THREADS threads. One that cannot be read is skipped, and its
        member added to `unread`; if all fail, the store is down and the first error is raised."""

        def answered(member: PeerId) -> T | StorageError | None:
            try:
                return read(member)
            except StorageError as fault:
                return fault

        found = dict(zip(members, parallel_map(answered, members, LOOK_THREADS, self.time), strict=True))
        faults = {member: one for member, one in found.items() if isinstance(one, StorageError)}
        if faults and len(faults) == len(members):
            raise next(iter(faults.values()))
        if unread is not None:
            unread.update(faults)
        return {m: one for m, one in found.items() if one is not None and not isinstance(one, StorageError)}

    def members_under(self, prefix: str) -> dict[PeerId, str]:
        """Return the members that have an object under the prefix, with its ETag, in order."""
        found = dict[PeerId, str]()
        for key, etag in self._versions(prefix).items():
            with suppress(ValueError):
                member = bytes.fromhex(key.removeprefix(prefix))
                if len(member) == DIGEST_BYTES and key == prefix + member.hex():
                    found[PeerId(member)] = etag
        return found

    def _versions(self, prefix: str) -> Mapping[str, str]:
        return self.bucket.versions(prefix, max_keys=MOST_MEMBERS, timeout_seconds=CALL_SECONDS)
