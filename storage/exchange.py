"""Transfer of one object in bounded time: publish to our bucket, fetch from a stranger's.

A misbehaving bucket affects only its own peer: the outcome is a Fault. `accept`, a digest or signature from the chain,
decides which bytes are valid, never a server's time, ETag or order of answers (docs/protocol.md sections 5, 8 and 10).
May not interpret the bytes. Many objects at once: storage/collect.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

from murmur.protocol.errors import (
    AccessDenied,
    ConfigError,
    ObjectMissing,
    ObjectTooLarge,
    StorageCause,
    StorageError,
)
from murmur.protocol.ports import Bucket, Time
from murmur.protocol.types import PeerId, Pointer, PublicPointer
from storage.deadline import deadline
from storage.realtime import REAL, seconds_until
from storage.resume import Busy, Opening, Unwanted, brought, download_to, is_begun, keep, mapped, remove
from storage.s3 import RangedBucket

_PUBLISH_WAIT_SECONDS = 0.2
_PUBLISH_WAIT_MAX_SECONDS = 10.0
_SOURCES_PLANNED = 3
RESUMED_BYTES = 1 << 20
"""Larger objects resume where they were cut short: on a slow link they would otherwise never complete, since each
source has only part of the time. For smaller ones the number of requests matters more."""

T = TypeVar("T")
Data = bytes | memoryview
"""Fetched bytes: in memory, or a read-only view of a file of the cache. The view outlives the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place that may have the object. `open` may raise ConfigError or StorageError: the pointer is a stranger's.
    `endpoint`: its server's URL, if it has one. `kept_as`: the object's name on a shelf, if that is not its key.
    `place`: the pointer that `open` follows, if any: a place is asked for a key once (storage/places.py). `answered`:
    called with whether the server takes the credential, when it has said so."""

    open: Callable[[], RangedBucket]
    key: str
    endpoint: str = ""
    kept_as: str = ""
    place: Pointer | PublicPointer | None = None
    answered: Callable[[bool], None] = lambda accepted: None


@dataclass(frozen=True, slots=True)
class FetchFault:
    """The reason why an object could not be fetched, from its first source (the owner's bucket). `detail` is our own
    text.

    missing: not there. wrong_size: another size than the run prescribes, not read. mismatch: right size, wrong bytes.
    refused: a pointer that may not be followed. unavailable: no answer in time, or a broken one. left_out: we had no
    room or no time to ask; this says nothing about the peer. size_bytes: for wrong_size, the size that the server
    claims.
    """

    kind: Literal["missing", "wrong_size", "mismatch", "refused", "unavailable", "left_out"]
    detail: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object of known size. `sources`: in the order to try them, the owner's bucket first.

    `exact`: False where the size is only an upper bound. `part`: first byte and number of bytes, for a partial fetch;
    the part is held in memory and passed to `accept`. `opening`: the required beginning of an object that goes to disk.
    If it begins otherwise, the download stops and `accept` judges that beginning. `failed`: called with a source's
    index and its fault.
    """

    peer: PeerId
    sources: tuple[Source, ...]
    size: int
    accept: Callable[[Data], bool]
    exact: bool = True
    part: tuple[int, int] | None = None
    opening: Opening | None = None
    failed: Callable[[int, FetchFault], None] = lambda index, fault: None


def publish(bucket: Bucket, key: str, data: bytes | Path, *, timeout_seconds: float, time: Time = REAL) -> None:
    """Store an object; retry until the deadline. Raises AccessDenied at once, StorageError at the deadline."""
    until = time.now() + timeout_seconds
    persist(lambda left: bucket.put(key, data, timeout_seconds=left), until, final=(AccessDenied,), time=time)


def persist(
    call: Callable[[float], T],
    until: float,
    *,
    final: tuple[type[StorageError], ...],
    tries: int | None = None,
    time: Time = REAL,
) -> T:
    """Call `call(seconds left)`; retry after every StorageError with growing pauses, until `until` (`time.now()`) and
    at most `tries` times.

    Raises errors of `final` and that a bucket is full at once, any other StorageError when no time or try is left.
    """
    pause = _PUBLISH_WAIT_SECONDS
    tried = 0
    while True:
        tried += 1
        try:
            return call(seconds_until(until, time))
        except final:
            raise
        except StorageError as fault:
            if fault.cause is StorageCause.FULL:  # room does not come in seconds, and each try may be a whole payload
                raise
            # stamina, like boto3's own retries, would sleep past the deadline.
            if tried == tries or time.now() + pause >= until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _PUBLISH_WAIT_MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder where fetched objects are stored and found again without a request; those over 1 MiB resume there.

    The caller empties it. `only`: an object that the disk rejects is given up; otherwise it is held in memory.
    """

    folder: Path
    only: bool = False

    def place(self, item: Wanted, source: Source) -> Path:
        return cached(self.folder, item.peer, source.kept_as or source.key)

    def has(self, item: Wanted) -> bool:
        return any(self.place(item, source).exists() for source in item.sources)

    def resumes(self, item: Wanted) -> bool:
        """Whether a download of this object that is cut short is gone on with."""
        return item.part is None and item.exact and item.size > RESUMED_BYTES

    def brought(self, item: Wanted) -> int:
        """Return the number of bytes of unfinished downloads of this object."""
        return sum(brought(path) for path in {self.place(item, source) for source in item.sources})


def cached(folder: Path, peer: PeerId, key: str) -> Path:
    """Return the path on a shelf of this peer's object under this key, whatever the bucket."""
    return folder / sha256(peer + key.encode()).hexdigest()


def fetch(
    item: Wanted, *, timeout_seconds: float, shelf: Shelf | None, stopped: Callable[[], bool], time: Time
) -> tuple[Data | FetchFault, bool]:
    """Try the sources in order. Each may use a third of the time left, the last but one half, the last all. What each
    has brought stays on the shelf for the next try.

    Equal parts would leave the owner's bucket a sixtieth of the time when sixty mirrors follow, too little for a large
    object. Also returns whether a source used up its part, so that more time might still bring the object. `stopped` is
    called before every object, and before every block of one that goes to disk.
    """
    until = time.now() + timeout_seconds
    faults: list[FetchFault] = []
    cut_short = False
    for index, source in enumerate(item.sources):
        share = seconds_until(until, time) / min(_SOURCES_PLANNED, len(item.sources) - index)
        found, used_up = _turn(item, source, share, until, shelf, stopped, time)
        if not isinstance(found, FetchFault):
            return found, False
        cut_short = cut_short or used_up
        item.failed(index, found)
        faults.append(found)
    return faults[0] if faults else FetchFault("missing", "no source is known"), cut_short


def _turn(
    item: Wanted,
    source: Source,
    share: float,
    until: float,
    shelf: Shelf | None,
    stopped: Callable[[], bool],
    time: Time,
) -> tuple[Data | FetchFault, bool]:
    """Ask one source for `share` seconds; the last one longer, while it would bring the rest by `until`. Also returns
    whether its time was used up. A source that others follow gets no more than its share, whatever its pace promises:
    who serves it may never give the last byte."""
    while True:
        began, before = time.now(), _brought(item, source, shelf)
        found = _Visit(item, source, began + share, shelf, stopped, time).fetch()
        spent, left, have = time.now() - began, seconds_until(until, time), _brought(item, source, shelf)
        used_up = isinstance(found, FetchFault) and found.kind == "unavailable" and spent >= share
        needed = (item.size - have) * spent / max(have - before, 1e-9)
        if not used_up or needed >= left or source is not item.sources[-1]:
            return found, used_up
        share = min(left, max(share, 2 * needed))


def _brought(item: Wanted, source: Source, shelf: Shelf | None) -> int:
    """Return the bytes on the disk of an unfinished download of the object from this source."""
    return 0 if shelf is None or item.part else brought(shelf.place(item, source))


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request for one object to one source."""

    item: Wanted
    source: Source
    until: float
    shelf: Shelf | None
    stopped: Callable[[], bool]
    time: Time

    def fetch(self) -> Data | FetchFault:
        path = None if self.shelf is None or self.item.part else self.shelf.place(self.item, self.source)
        if path is not None and (found := mapped(path)) is not None:
            if self.item.accept(found):
                return found
            remove(path)
        try:
            with deadline(self._left):  # opening resolves a stranger's host name
                bucket = self.source.open()
        except ConfigError as error:
            return FetchFault("refused", str(error))
        except StorageError as error:
            return FetchFault("unavailable", str(error))
        on_disk = path if self.shelf is not None and self.shelf.resumes(self.item) else None
        try:
            got = self._to_memory(bucket) if on_disk is None else self._to_disk(bucket, on_disk)
        except ObjectMissing as error:
            got = FetchFault("missing", str(error))
        except ObjectTooLarge as error:
            got = FetchFault("wrong_size", str(error), error.size_bytes)
        except StorageError as error:
            if isinstance(error, AccessDenied):
                self.source.answered(False)
            return FetchFault("unavailable", str(error))
        if not isinstance(got, FetchFault) or got.kind in ("missing", "wrong_size", "mismatch"):
            self.source.answered(True)
        return self._kept(got, path) if isinstance(got, bytes) and path is not None and on_disk is None else got

    def _to_memory(self, bucket: RangedBucket) -> bytes | FetchFault:
        if self.stopped():
            return FetchFault("unavailable", "no longer wanted")
        if self.item.part is not None:
            return self._part(bucket, *self.item.part)
        data = bucket.get(self.source.key, max_bytes=self.item.size, timeout_seconds=self._left, exact=self.item.exact)
        return data if self.item.accept(data) else _MISMATCH

    def _part(self, bucket: RangedBucket, first: int, num_bytes: int) -> bytes | FetchFault:
        facts = bucket.head(self.source.key, timeout_seconds=self._left)
        if facts is None:
            return FetchFault("missing", "there is no such object")
        if facts.size_bytes != self.item.size:
            return FetchFault("wrong_size", f"the object has {facts.size_bytes} bytes; not read", facts.size_bytes)
        data = bucket.get_range(
            self.source.key, first=first, num_bytes=num_bytes, etag=facts.etag, timeout_seconds=self._left
        )
        return data if self.item.accept(data) else _MISMATCH

    def _to_disk(self, bucket: RangedBucket, path: Path) -> Data | FetchFault:
        # Parts from an earlier try may be wrong without this server's fault (another server lied, a power cut): then
        # try once more from the start.
        resumed = is_begun(path)
        for _ in range(1 + resumed):
            try:
                download_to(
                    bucket,
                    self.source.key,
                    path,
                    self.item.size,
                    timeout_seconds=self._left,
                    stopped=self.stopped,
                    opening=self.item.opening,
                    time=self.time,
                )
            except Unwanted as fault:
                return fault.head if self.item.accept(fault.head) else _MISMATCH
            except Busy as error:
                # An earlier collection's abandoned thread still has the file: its server stalls, and not by accident.
                return FetchFault("unavailable", str(error))
            except ConfigError:
                return self._refused_by_disk() or self._to_memory(bucket)
            if (found := mapped(path)) is None:
                return FetchFault("left_out", "our disk cannot read it back")
            if self.item.accept(found):
                return found
            remove(path)
        return _MISMATCH

    def _kept(self, data: bytes, path: Path) -> Data | FetchFault:
        try:
            keep(path, data)
        except ConfigError:
            return self._refused_by_disk() or data
        found = mapped(path)
        return data if found is None else found

    def _refused_by_disk(self) -> FetchFault | None:
        only = self.shelf is not None and self.shelf.only
        return FetchFault("left_out", "our disk cannot store it") if only else None

    @property
    def _left(self) -> float:
        return seconds_until(self.until, self.time)


_MISMATCH = FetchFault("mismatch", "right size, but not the committed bytes")
