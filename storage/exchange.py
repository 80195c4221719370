"""Publish to our bucket, and gather objects from strangers' buckets: every peer for itself, in bounded time.

What a peer's bucket does, it does to that peer alone: the outcome is a Fault beside the others' bytes. Which bytes are
right is decided by `accept`, a digest from the chain; never by a server's time, ETag or order of answers
(docs/protocol.md sections 5, 8 and 10). May not know what the bytes mean.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

from protocol.errors import AccessDenied, ConfigError, ObjectMissing, ObjectTooLarge, StorageError
from protocol.ports import Bucket, Time
from protocol.types import PeerId
from storage.realtime import REAL, seconds_until
from storage.resume import Busy, download_to, keep, read
from storage.s3 import PART_BYTES, RangedBucket
from storage.transport import deadline

_PUBLISH_WAIT_SECONDS = 0.2
_PUBLISH_WAIT_MAX_SECONDS = 10.0
_SOURCES_PLANNED = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """A place that may have the object. `open` may raise ConfigError or StorageError: the pointer is a stranger's."""

    open: Callable[[], RangedBucket]
    key: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object of known size: its sources in the order to try them, the owner's bucket first."""

    peer: PeerId
    sources: tuple[Source, ...]
    size: int
    accept: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an object could not be had, as its first source (the owner's bucket) showed it. `detail` is our own words.

    missing: not there. wrong_size: another size than the run prescribes, not read. unavailable: no answer in time,
    refused, broken. mismatch: right size, wrong bytes. size_bytes: of wrong_size, what the server claims.
    """

    kind: Literal["missing", "wrong_size", "unavailable", "mismatch"]
    detail: str
    size_bytes: int | None = None


def publish(bucket: Bucket, key: str, data: bytes | Path, *, timeout_seconds: float, time: Time = REAL) -> None:
    """Store an object, trying again until the deadline. Raises AccessDenied at once, StorageError at the deadline."""
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
    """`call(seconds left)`, again after every StorageError, with growing pauses, until `until` (`time.now()`) and at
    most `tries` times.

    Raises what is `final` at once, any other StorageError when there is no time or try left.
    """
    pause = _PUBLISH_WAIT_SECONDS
    tried = 0
    while True:
        tried += 1
        try:
            return call(seconds_until(until, time))
        except final:
            raise
        except StorageError:
            # stamina, like boto3's own retries, would sleep past the deadline.
            if tried == tries or time.now() + pause >= until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _PUBLISH_WAIT_MAX_SECONDS)


def gather(
    wanted: Sequence[Wanted],
    *,
    timeout_seconds: float,
    max_threads: int,
    cache: Path | None = None,
    time: Time = REAL,
) -> dict[PeerId, bytes | Fault]:
    """Fetch one object per peer; returns within `timeout_seconds` with bytes or a Fault for every peer.

    At most `max_threads` daemon threads; one that a server holds on to is left behind and its result dropped. With
    fewer threads than peers each turn gets a share of the time and an unfinished peer queues again, so stalled peers
    cannot use up the others' time. All results are held in memory.

    `cache`: a folder where accepted objects are left, as files, and found by the next gather, which asks no server for
    them; those over 16 MiB are resumed there. The caller empties it. Nothing is lost where it cannot be written.
    """
    return _Gathering(wanted, timeout_seconds, max_threads, cache, time).outcome()


class Prefetch:
    """A gather in the background, into its cache and not into memory, of objects that may be wanted later. Nobody waits
    for it; what it lacks, a later gather with the same cache fetches."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_seconds: float,
        max_threads: int,
        cache: Path,
        ended: Callable[[], None] = lambda: None,
        time: Time = REAL,
    ) -> None:
        """ended: called once, in a thread of ours, when no more will come."""
        self._gathering = _Gathering(wanted, timeout_seconds, max_threads, cache, time, hold=False)
        self._ended = ended
        self._task = time.start(self._run, "prefetch")

    def stop(self) -> None:
        """Fetch nothing more. Returns at once: a part that is on its way (at most 16 MiB) may still come."""
        self._gathering.close()
        self._task.join()

    def _run(self) -> None:
        try:
            self._gathering.outcome()
        finally:
            self._ended()


def cached(cache: Path, peer: PeerId, key: str) -> Path:
    """Where the object of this peer that stands under this key, in whichever bucket, is left in a cache."""
    return cache / sha256(peer + key.encode()).hexdigest()


class _Gathering:
    """The state that the threads of one gather share. With `hold` off accepted bytes are left in the cache only, and
    stand as b"" in the outcome."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        timeout_seconds: float,
        max_threads: int,
        cache: Path | None,
        time: Time,
        *,
        hold: bool = True,
    ) -> None:
        if len({item.peer for item in wanted}) != len(wanted):
            raise ValueError("a peer is wanted twice; gather once per kind of object")
        self._time = time
        self._until = time.now() + timeout_seconds
        self._num_threads = min(max_threads, len(wanted))
        self._cache = cache
        self._hold = hold
        self._queue = deque(wanted)
        self._results: dict[PeerId, bytes | Fault] = {
            item.peer: Fault("unavailable", "no answer in time") for item in wanted
        }
        self._open = len(wanted)
        self._failure: Exception | None = None
        self._closed = False
        self._changed = time.condition()

    def outcome(self) -> dict[PeerId, bytes | Fault]:
        for number in range(self._num_threads):
            self._time.start(self._work, f"gather-{number}")
        with self._changed:
            while self._open and self._failure is None and not self._closed:
                left = self._until - self._time.now()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._closed = True
            if self._failure is not None:
                raise self._failure
            return dict(self._results)

    def close(self) -> None:
        """No more is wanted: `outcome` returns, threads end after the part that they are at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                left = self._until - self._time.now()
                if self._closed or not self._queue or left <= 0:
                    # Whoever still works may queue its peer again and then goes on with it itself.
                    return
                share = left * min(1.0, self._num_threads / self._open)
                item = self._queue.popleft()
            try:
                result, cut_short = self._fetch(item, share)
            except Exception as error:  # noqa: BLE001 - our fault, not the peer's: raised where gather was called
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                if self._closed:
                    return
                self._results[item.peer] = result
                if cut_short:
                    self._queue.append(item)
                else:
                    self._open -= 1
                    self._changed.notify_all()

    def _fetch(self, item: Wanted, seconds: float) -> tuple[bytes | Fault, bool]:
        """Try the sources in order; each may use a third of the time that is left, the last two all of it. Equal parts
        would leave the owner's bucket a sixtieth beside sixty mirrors, too little for any large object. Also tells
        whether one of them ran out of its part, so that more time might still bring the object."""
        until = self._time.now() + seconds
        faults: list[Fault] = []
        cut_short = False
        for index, source in enumerate(item.sources):
            share = seconds_until(until, self._time) / min(_SOURCES_PLANNED, len(item.sources) - index)
            began = self._time.now()
            found = self._fetch_from(source, item, share)
            if not isinstance(found, Fault):
                return found, False
            cut_short = cut_short or (found.kind == "unavailable" and self._time.now() - began >= share)
            faults.append(found)
        return faults[0] if faults else Fault("missing", "no source is known"), cut_short

    def _fetch_from(self, source: Source, item: Wanted, seconds: float) -> bytes | Fault:
        until = self._time.now() + seconds
        path = None if self._cache is None else cached(self._cache, item.peer, source.key)
        if path is not None and (found := read(path)) is not None:
            if item.accept(found):
                return found if self._hold else b""
            _remove(path)
        try:
            with deadline(seconds):  # opening resolves a stranger's host name
                bucket = source.open()
        except (ConfigError, StorageError) as error:
            return Fault("unavailable", str(error))
        try:
            data = self._read(bucket, source.key, item, path, seconds_until(until, self._time))
            if path is not None and item.size > PART_BYTES and not item.accept(data):
                # Parts from before, of a server that lied or torn by a power cut, may be in it: not its fault.
                _remove(path)
                data = bucket.get(
                    source.key, max_bytes=item.size, timeout_seconds=seconds_until(until, self._time), exact=True
                )
        except ObjectMissing as error:
            return Fault("missing", str(error))
        except ObjectTooLarge as error:
            return Fault("wrong_size", str(error), error.size_bytes)
        except StorageError as error:
            return Fault("unavailable", str(error))
        if not item.accept(data):
            if path is not None:
                _remove(path)
            return Fault("mismatch", "right size, but not the bytes that were committed to")
        if path is not None:
            with suppress(ConfigError):  # a disk that takes no more costs a download, not the round
                keep(path, data)
        return data if self._hold else b""

    def _read(self, bucket: RangedBucket, key: str, item: Wanted, path: Path | None, seconds: float) -> bytes:
        until = self._time.now() + seconds
        if path is not None and item.size > PART_BYTES:
            try:
                download_to(
                    bucket, key, path, item.size, timeout_seconds=seconds, stopped=lambda: self._closed, time=self._time
                )
                if (data := read(path)) is not None:
                    return data
            except (Busy, ConfigError):
                # Left behind by an earlier gather, whose server holds on to it; or the disk takes no more. Neither is a
                # reason to wait.
                pass
        return bucket.get(key, max_bytes=item.size, timeout_seconds=seconds_until(until, self._time), exact=True)


def _remove(path: Path) -> None:
    """A disk that has become read-only costs the cache, not the gather."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
