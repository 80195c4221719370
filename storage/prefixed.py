"""A bucket made of all keys of another bucket that begin with one prefix."""

from pathlib import Path

from murmur.protocol.ports import Multipart, ObjectFacts
from storage.s3 import RangedBucket, Sink


class PrefixedBucket:
    """The objects of `bucket` under `prefix` (RangedBucket)."""

    def __init__(self, bucket: RangedBucket, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        self._bucket.put(self._prefix + key, data, timeout_seconds=timeout_seconds)

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        return self._bucket.create(self._prefix + key, data, timeout_seconds=timeout_seconds)

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        return self._bucket.get(self._prefix + key, max_bytes=max_bytes, timeout_seconds=timeout_seconds, exact=exact)

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        at = self._prefix + key
        return self._bucket.get_range(at, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        at = self._prefix + key
        self._bucket.stream(at, sink, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        return self._bucket.head(self._prefix + key, timeout_seconds=timeout_seconds)

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        found = self._bucket.list(self._prefix + prefix, max_keys=max_keys, timeout_seconds=timeout_seconds)
        return tuple(key.removeprefix(self._prefix) for key in found)

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        self._bucket.delete(self._prefix + key, timeout_seconds=timeout_seconds)

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        return self._bucket.begin(self._prefix + key, timeout_seconds=timeout_seconds)

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        return self._bucket.abort_unfinished(self._prefix + prefix, timeout_seconds=timeout_seconds)
