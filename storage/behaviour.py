"""Store capabilities beyond plain objects, measured by trial: parts out of order, versions, exclusive creation, speed.

A trial deletes its object; a process killed in a trial leaves one object under one fixed key. May not decide how the
results are used. Raises StorageError where the store fails.
"""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, NotSupported, ObjectReplaced, StorageError
from murmur.protocol.ports import Bucket, Time
from storage.realtime import REAL
from storage.refusals import asking
from storage.s3 import RangedBucket
from storage.transport import Transport

PART_BYTES = 5 << 20
"""The smallest part that a server accepts, except for the last one."""
_LATER_SECONDS = 10.0
"""Time-out of a one-byte second part that is sent before the first part."""


def takes_parts_in_any_order(bucket: Bucket, *, timeout_seconds: float) -> bool:
    """Whether the store accepts a later part before an earlier one. False where the server stalls on the later part."""
    with _trial(bucket, timeout_seconds) as key:
        first, second = secrets.token_bytes(PART_BYTES), secrets.token_bytes(1)
        upload = bucket.begin(key, timeout_seconds=timeout_seconds)
        try:
            try:
                upload.put(2, second, timeout_seconds=_LATER_SECONDS)
            except AccessDenied:
                raise
            except StorageError:
                return False
            upload.put(1, first, timeout_seconds=timeout_seconds)
            upload.complete(timeout_seconds=timeout_seconds)
        finally:
            with suppress(StorageError):
                upload.abort(timeout_seconds=timeout_seconds)
        whole = first + second
        if bucket.get(key, max_bytes=len(whole), timeout_seconds=timeout_seconds) != whole:
            raise StorageError("an object that was sent in parts is not what was sent")
        return True


def tells_versions_apart(owner: Bucket, reader: RangedBucket, *, timeout_seconds: float) -> bool:
    """Whether a reader gets ObjectReplaced after a replacement, and never bytes of another version."""
    with _trial(owner, timeout_seconds) as key:
        owner.put(key, b"one", timeout_seconds=timeout_seconds)
        facts = reader.head(key, timeout_seconds=timeout_seconds)
        if facts is None:
            raise StorageError("an object that was written is not there")
        owner.put(key, b"two", timeout_seconds=timeout_seconds)
        try:
            reader.get_range(key, first=0, num_bytes=3, etag=facts.etag, timeout_seconds=timeout_seconds)
        except ObjectReplaced:
            return True
        return False


WRITERS = 8
CREATIONS = 4
STORES_THAT_CREATE_ONCE = "AWS S3, Cloudflare R2, SeaweedFS 4.48 or later, Ceph"
"""The first two document it; the others were tried."""
CREATES_NOT_ONCE = (
    "this store overwrites an object that exists, or refuses the condition (If-None-Match: *), so two members could "
    "close one round differently"
)
"""The fault of a store for which `creates_once` is false."""


def creates_once(bucket: Bucket, *, timeout_seconds: float) -> bool:
    """Whether exactly one of several concurrent `create` calls succeeds and its bytes are stored, and later calls are
    refused. False too for a store that refuses the condition and takes a plain put.

    Tried several times: in a store without the condition the last writer wins.
    """
    for _ in range(CREATIONS):
        with _trial(bucket, timeout_seconds) as key:
            try:
                if not _one_wins(bucket, key, timeout_seconds):
                    return False
            except NotSupported:
                bucket.put(key, b"plain", timeout_seconds=timeout_seconds)  # raises where the store refuses any put
                bucket.delete(key, timeout_seconds=timeout_seconds)
                try:
                    bucket.create(key, b"again", timeout_seconds=timeout_seconds)
                except NotSupported:
                    return False
    return True


def _one_wins(bucket: Bucket, key: str, timeout_seconds: float) -> bool:
    bucket.delete(key, timeout_seconds=timeout_seconds)
    bodies = [secrets.token_bytes(64) for _ in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as writers:
        told = list(writers.map(lambda body: bucket.create(key, body, timeout_seconds=timeout_seconds), bodies))
    late = bucket.create(key, b"late", timeout_seconds=timeout_seconds)
    stands = bucket.get(key, max_bytes=64, timeout_seconds=timeout_seconds)
    return not late and [body for body, won in zip(bodies, told, strict=True) if won] == [stands]


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes per second to the store and from it, one object at a time."""

    up: float
    down: float


def speed(owner: Bucket, reader: Bucket, num_bytes: int, *, timeout_seconds: float, time: Time = REAL) -> Speed:
    """Measure one upload and one download of `num_bytes` random bytes."""
    with _trial(owner, timeout_seconds) as key:
        data = secrets.token_bytes(num_bytes)
        began = time.now()
        owner.put(key, data, timeout_seconds=timeout_seconds)
        sent = time.now()
        if reader.get(key, max_bytes=num_bytes, timeout_seconds=timeout_seconds) != data:
            raise StorageError("an object is not what was sent")
        return Speed(num_bytes / max(sent - began, 1e-6), num_bytes / max(time.now() - sent, 1e-6))


@contextmanager
def _trial(owner: Bucket, timeout_seconds: float) -> Iterator[str]:
    """Yield the trial key; delete its object afterwards."""
    try:
        yield keys.trial()
    finally:
        with suppress(StorageError):
            owner.delete(keys.trial(), timeout_seconds=timeout_seconds)


def server_time(endpoint: str, *, timeout_seconds: float) -> float | None:
    """Return the server clock at `endpoint` in Unix seconds, to the second; None without a Date.

    The request is unsigned, so the server answers regardless of clocks and keys. Raises StorageError.
    """
    with asking("head", timeout_seconds):
        exchange = Transport(endpoint, public_only=False)
        date = exchange.send("HEAD", "/", {}, None, stream=False).headers.get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()
