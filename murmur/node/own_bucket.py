"""A node's own bucket: what fails in it is known to be ours, and is told while it lasts.

A bucket can fail for one kind of object alone: a full one still takes small ones, a policy may forbid a folder, or
deletion. So each kind of request to each kind of object is watched by itself. What shows that it is in order again is
the same kind of request, answered.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble, Troubles, of_own_bucket
from murmur.protocol.errors import (
    BucketMissing,
    NotSupported,
    ObjectMissing,
    ObjectReplaced,
    ObjectTooLarge,
    StorageCause,
    StorageError,
)
from murmur.protocol.ports import Multipart, ObjectFacts, Time
from storage.s3 import RangedBucket, Sink

PATIENT_SECONDS = 10.0
"""What fails for longer is told. Retries mend a lost connection, or a store that is busy for a moment."""
_ANSWERS = (ObjectMissing, ObjectReplaced, ObjectTooLarge, NotSupported)
"""Answers of a store in order."""

T = TypeVar("T")


class OwnBucket:
    """Wraps a node's own bucket. `where`: which one, in words. `round`: the round in which something is told."""

    def __init__(
        self, bucket: RangedBucket, where: str, troubles: Troubles, round: Callable[[], int], time: Time
    ) -> None:
        self._bucket, self._where, self._troubles, self._round, self._time = bucket, where, troubles, round, time
        self._lock = Lock()
        self._failing: dict[tuple[str, str], float] = {}
        """Since when each kind of request to each kind of object has failed."""

    def trouble(self, fault: StorageError) -> Trouble:
        """Return the trouble that a fault of this bucket shows."""
        if fault.own in ("list", "delete") and fault.cause is StorageCause.DENIED:
            return Trouble("bucket_untidy", f"{fault.seen or fault}, {self._where}")
        return of_own_bucket(fault, self._where)

    # --- the bucket --------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        self.watch("write", key, lambda: self._bucket.put(key, data, timeout_seconds=timeout_seconds))

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        return self.watch("write", key, lambda: self._bucket.create(key, data, timeout_seconds=timeout_seconds))

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        bucket = self._bucket
        return self.watch(
            "read", key, lambda: bucket.get(key, max_bytes=max_bytes, timeout_seconds=timeout_seconds, exact=exact)
        )

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        bucket, about = self._bucket, {"first": first, "num_bytes": num_bytes}
        return self.watch(
            "read", key, lambda: bucket.get_range(key, **about, etag=etag, timeout_seconds=timeout_seconds)
        )

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        bucket, about = self._bucket, {"first": first, "num_bytes": num_bytes}
        self.watch("read", key, lambda: bucket.stream(key, sink, **about, etag=etag, timeout_seconds=timeout_seconds))

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        return self.watch("read", key, lambda: self._bucket.head(key, timeout_seconds=timeout_seconds))

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        bucket = self._bucket
        return self.watch("list", "", lambda: bucket.list(prefix, max_keys=max_keys, timeout_seconds=timeout_seconds))

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        self.watch("delete", "", lambda: self._bucket.delete(key, timeout_seconds=timeout_seconds))

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        found = self.watch("write", key, lambda: self._bucket.begin(key, timeout_seconds=timeout_seconds))
        return _Parts(self, key, found)

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        return self._bucket.abort_unfinished(prefix, timeout_seconds=timeout_seconds)

    # --- what fails --------------------------------------------------------------------------------------------

    def watch(self, verb: str, key: str, call: Callable[[], T], *, proves: bool = True) -> T:
        """Make a call, and say what it shows. proves: whether its success shows that this kind is in order. Reads are
        not watched: a node reads its own bucket seldom, and says itself what fails by it."""
        kind = verb, _kind(key)
        try:
            found = call()
        except StorageError as fault:
            if isinstance(fault, BucketMissing) or not isinstance(fault, _ANSWERS):
                fault.own = verb
                if verb != "read":
                    self._failed(kind, self.trouble(fault))
            raise
        if proves and verb != "read":
            self._went_well(kind)
        return found

    def _failed(self, kind: tuple[str, str], trouble: Trouble) -> None:
        with self._lock:
            now = self._time.now()
            lasts = now - self._failing.setdefault(kind, now)
        if lasts >= PATIENT_SECONDS:
            self._troubles.tell(self._round(), trouble)

    def _went_well(self, kind: tuple[str, str]) -> None:
        with self._lock:
            self._failing.pop(kind, None)
            if self._failing:
                return
        self._troubles.mended(self._round(), About.BUCKET)


class _Parts:
    """A multipart upload to our own bucket."""

    def __init__(self, bucket: OwnBucket, key: str, parts: Multipart) -> None:
        self._bucket, self._key, self._parts = bucket, key, parts

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        # A store that is full may still take the beginning: only the completion shows that writing is in order.
        self._bucket.watch(
            "write",
            self._key,
            lambda: self._parts.put(number, data, timeout_seconds=timeout_seconds),
            proves=False,
        )

    def complete(self, *, timeout_seconds: float) -> None:
        self._bucket.watch("write", self._key, lambda: self._parts.complete(timeout_seconds=timeout_seconds))

    def abort(self, *, timeout_seconds: float) -> None:
        self._parts.abort(timeout_seconds=timeout_seconds)


def _kind(key: str) -> str:
    """Return an object's kind: keys are RUN/KIND/.., or KIND/.. (murmur/protocol/keys.py)."""
    parts = key.split("/")
    return parts[1] if len(parts) > 1 and len(parts[0]) == 16 else parts[0]
