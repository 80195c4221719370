"""The Bucket port in memory, and the ways in which a peer's own server may lie or fail.

`Store` is the server, `StoreBucket` one credential for one of its buckets, over one reader's link. Faults are set per
bucket, by the server's owner, and seen by every reader. Tests use it as their fake of the Bucket port.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass, field, replace
from hashlib import md5
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from murmur.protocol.errors import (
    AccessDenied,
    ObjectMissing,
    ObjectReplaced,
    ObjectTooLarge,
    StorageCause,
    StorageError,
)
from murmur.protocol.ports import Multipart, ObjectFacts, Time
from murmur.protocol.types import Pointer
from storage.realtime import REAL, seconds_until
from storage.s3 import PART_BYTES, Sink


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a bucket's server. By default there are none.

    - modified: LastModified that is claimed for every object. head_size: size that HEAD claims.
    - down: every call fails. denied: every call is refused. stalls: reads return nothing until their time-out.
    - answers: content per reader, in place of the stored object. lies: wrong bytes of the stored size.
    - read_only: every write is refused: the token may not write any more.
    - broken_ranges: number of ranged reads that fail. slow: factor on the time of transfers.
    """

    modified: float | None = None
    head_size: int | None = None
    down: bool = False
    denied: bool = False
    stalls: bool = False
    answers: Mapping[str, bytes] = field(default_factory=dict)
    broken_ranges: int = 0
    lies: bool = False
    read_only: bool = False
    slow: float = 1.0


_SOUND = Faults()


class Link(Protocol):
    """A reader's link to the server: the seconds of a transfer of `num_bytes`; 0 bytes for the latency alone."""

    def __call__(self, key: str, num_bytes: int, *, up: bool) -> float: ...


def no_distance(key: str, num_bytes: int, *, up: bool) -> float:
    """Return 0: transfers take no time."""
    return 0.0


class Call(NamedTuple):
    """A call as the server sees it, and how long its caller waits; `part N` is the verb of a part."""

    bucket: str
    reader: str
    verb: str
    key: str
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified: float

    @property
    def etag(self) -> str:
        return f'"{md5(self.data).hexdigest()}"'


class Objects(dict[str, _Object]):
    """A bucket's objects by key; the sorted keys are kept from one listing to the next, since objects and listings
    number thousands."""

    _ordered: list[str] | None = None

    @property
    def ordered(self) -> list[str]:
        if self._ordered is None or len(self._ordered) != len(self):
            self._ordered = sorted(self)
        return self._ordered

    def __setitem__(self, key: str, value: _Object) -> None:
        if self._ordered is not None and key not in self:
            insort(self._ordered, key)
        super().__setitem__(key, value)

    def pop(self, key: str, *default: Any) -> Any:
        if self._ordered is not None and key in self:
            del self._ordered[bisect_left(self._ordered, key)]
        return super().pop(key, *default)


class Store:
    """A server: buckets of objects, and the faults of each. `now` is the LastModified of new objects. `log` lists
    (bucket, verb, key) in the order of arrival."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.faults: dict[str, Faults] = {}
        self.now = 1_700_000_000.0
        self.log: MutableSequence[tuple[str, str, str]] = []
        self.lock = threading.Lock()
        self.unfinished: dict[str, list[StoreParts]] = {}
        """Multipart uploads that were neither completed nor aborted, by bucket."""
        self.min_part_bytes = 5 << 20
        """Minimum size of every part but the last."""
        self.before: Callable[[Call], None] = lambda call: None
        """Called before every call is served: it may wait, or raise."""

    def bucket(
        self,
        name: str,
        *,
        read_only: bool = False,
        reader: str = "owner",
        time: Time = REAL,
        link: Link = no_distance,
    ) -> "StoreBucket":
        """Return a credential for one bucket, which is created if needed."""
        self.buckets.setdefault(name, Objects())
        return StoreBucket(self, name, read_only=read_only, reader=reader, time=time, link=link)

    def pointer(self, name: str) -> Pointer:
        """Return the pointer that the bucket's owner would publish."""
        return Pointer("https://store.example", name, f"{name}-read", "not-a-secret")

    def open(
        self, pointer: Pointer, *, reader: str = "somebody", time: Time = REAL, link: Link = no_distance
    ) -> "StoreBucket":
        """Open a pointer in this store, in place of open_pointer."""
        return self.bucket(pointer.bucket, read_only=True, reader=reader, time=time, link=link)


class StoreBucket:
    """One credential for one bucket of a Store (RangedBucket)."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        read_only: bool,
        reader: str,
        time: Time = REAL,
        link: Link = no_distance,
    ) -> None:
        self._store = store
        self._time, self._link = time, link
        self._name = name
        self._read_only = read_only
        self._reader = reader
        self.revoked = False
        """Set when the process is dead: its calls are refused from then on."""

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        self._enter("put", key, timeout_seconds, writes=True)
        body = data.read_bytes() if isinstance(data, Path) else bytes(data)
        self._travel("put", key, len(body), timeout_seconds, up=True)
        with self._store.lock:
            self._store.buckets[self._name][key] = _Object(body, self._store.now)

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        self._enter("create", key, timeout_seconds, writes=True)
        self._travel("create", key, len(data), timeout_seconds, up=True)
        with self._store.lock:
            objects = self._store.buckets[self._name]
            if key not in objects:
                objects[key] = _Object(bytes(data), self._store.now)
            return objects[key].data == data

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        self._enter("get", key, timeout_seconds)
        found = self._find(key)
        if len(found.data) > max_bytes or (exact and len(found.data) != max_bytes):
            raise ObjectTooLarge(f"get: the object has {len(found.data)} bytes; not read", len(found.data))
        self._stall(timeout_seconds)
        self._travel("get", key, len(found.data), timeout_seconds)
        return found.data

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        self._enter("get", key, timeout_seconds)
        found = self._find(key)
        if found.etag != etag:
            raise ObjectReplaced("get: the object is another version by now")
        if first + num_bytes > len(found.data):
            raise StorageError("get: the server answered another range than it was asked for")
        self._stall(timeout_seconds)
        with self._store.lock:
            faults = self._faults
            if faults.broken_ranges:
                self._store.faults[self._name] = replace(faults, broken_ranges=faults.broken_ranges - 1)
                raise StorageError("get: the body broke")
        self._travel("get", key, num_bytes, timeout_seconds)
        return found.data[first : first + num_bytes]

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        until, end = self._time.now() + timeout_seconds, first + num_bytes
        for at in range(first, end, PART_BYTES):
            left = seconds_until(until, self._time)
            sink(self.get_range(key, first=at, num_bytes=min(PART_BYTES, end - at), etag=etag, timeout_seconds=left))

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        self._enter("head", key, timeout_seconds)
        try:
            found = self._find(key)
        except ObjectMissing:
            return None
        faults = self._faults
        size = len(found.data) if faults.head_size is None else faults.head_size
        return ObjectFacts(size, found.etag, found.modified if faults.modified is None else faults.modified)

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        return tuple(self._listed(prefix, max_keys, timeout_seconds))

    def versions(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> dict[str, str]:
        found = self._listed(prefix, max_keys, timeout_seconds)
        return {key: one.etag for key, one in found.items()}

    def _listed(self, prefix: str, max_keys: int, timeout_seconds: float) -> dict[str, _Object]:
        self._enter("list", prefix, timeout_seconds)
        with self._store.lock:
            objects = self._store.buckets[self._name]
            keys = objects.ordered if isinstance(objects, Objects) else sorted(objects)
            first = bisect_left(keys, prefix)
            found = takewhile(lambda key: key.startswith(prefix), keys[first : first + max_keys])
            return {key: objects[key] for key in found}

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        self._enter("delete", key, timeout_seconds, writes=True)
        with self._store.lock:
            self._store.buckets[self._name].pop(key, None)

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        self._enter("begin", key, timeout_seconds, writes=True)
        parts = StoreParts(self, self._store, key)
        with self._store.lock:
            self._store.unfinished.setdefault(self._name, []).append(parts)
        return parts

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        self._enter("abort_unfinished", prefix, timeout_seconds, writes=True)
        with self._store.lock:
            before = self._store.unfinished.get(self._name, [])
            self._store.unfinished[self._name] = [parts for parts in before if not parts.key.startswith(prefix)]
            return len(before) - len(self._store.unfinished[self._name])

    @property
    def _faults(self) -> Faults:
        return self._store.faults.get(self._name, _SOUND)

    def _enter(self, verb: str, key: str, timeout_seconds: float, *, writes: bool = False) -> None:
        with self._store.lock:
            self._store.log.append((self._name, verb, key))
        self._store.before(Call(self._name, self._reader, verb, key, timeout_seconds))
        if self.revoked:
            raise _denied(verb)
        if timeout_seconds <= 0:
            raise _because(StorageCause.SILENT, f"{verb}: out of time")
        self._travel(verb, key, 0, timeout_seconds)
        if self._faults.denied or (writes and (self._read_only or self._faults.read_only)):
            raise _denied(verb)

    def _travel(self, verb: str, key: str, num_bytes: int, timeout_seconds: float, *, up: bool = False) -> None:
        """Spend the transfer's time; fail if the server goes down meanwhile."""
        seconds = self._link(key, num_bytes, up=up) * self._faults.slow
        if seconds > 0:
            self._time.sleep(min(seconds, timeout_seconds))
        if seconds > timeout_seconds:
            raise _because(StorageCause.SILENT, f"{verb}: out of time")
        if self._faults.down:
            raise _because(StorageCause.UNREACHABLE, f"{verb}: no connection to the endpoint")

    def _stall(self, timeout_seconds: float) -> None:
        if self._faults.stalls:
            self._time.sleep(timeout_seconds)
            raise _because(StorageCause.SILENT, "get: out of time")

    def _find(self, key: str) -> _Object:
        with self._store.lock:
            found = self._store.buckets[self._name].get(key)
        answer = self._faults.answers.get(self._reader)
        if answer is not None:
            return _Object(answer, self._store.now)
        if found is None:
            raise ObjectMissing("get: there is no such object or bucket")
        if self._faults.lies:
            return replace(found, data=bytes(byte ^ 0xFF for byte in found.data))
        return found


class StoreParts:
    """A multipart upload of a StoreBucket (Multipart)."""

    def __init__(self, bucket: StoreBucket, store: Store, key: str) -> None:
        self.key = key
        self._bucket, self._store = bucket, store
        self._data: dict[int, bytes] = {}

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        self._bucket._enter(f"part {number}", self.key, timeout_seconds, writes=True)
        self._bucket._travel("part", self.key, len(data), timeout_seconds, up=True)
        with self._store.lock:
            self._require_known()
            self._data[number] = bytes(data)

    def complete(self, *, timeout_seconds: float) -> None:
        self._bucket._enter("complete", self.key, timeout_seconds, writes=True)
        with self._store.lock:
            self._require_known()
            parts = [data for _, data in sorted(self._data.items())]
            if not parts or any(len(data) < self._store.min_part_bytes for data in parts[:-1]):
                raise StorageError("upload: the server answered with status 400")
            self._others().remove(self)
            self._store.buckets[self._bucket._name][self.key] = _Object(b"".join(parts), self._store.now)

    def abort(self, *, timeout_seconds: float) -> None:
        self._bucket._enter("abort", self.key, timeout_seconds, writes=True)
        with self._store.lock:
            if self in self._others():
                self._others().remove(self)

    def _others(self) -> "list[StoreParts]":
        return self._store.unfinished.get(self._bucket._name, [])

    def _require_known(self) -> None:
        if self not in self._others():
            raise ObjectMissing("upload: there is no such object or bucket")


def _denied(verb: str) -> AccessDenied:
    fault = AccessDenied(f"{verb}: the credential is unknown or may not do this (403)")
    fault.cause = StorageCause.DENIED
    return fault


def _because(cause: StorageCause, why: str) -> StorageError:
    fault = StorageError(why)
    fault.cause = cause
    return fault
