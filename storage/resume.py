"""Downloads that survive a restart of this process: a file in the cache and, beside it, which version it is of.

boto3 starts again from nothing; here the ETag and the number of bytes on disk are enough to go on with Range and
If-Match. A file is never trusted for having been resumed: whoever asked for it checks its digest (docs/protocol.md
section 8), so nothing is synced to disk on the way.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from murmur import files
from murmur.protocol.errors import ConfigError, DiskFull, ObjectMissing, ObjectReplaced, ObjectTooLarge, StorageError
from murmur.protocol.ports import Time
from storage.realtime import REAL, seconds_until
from storage.s3 import RangedBucket

_VERSIONS = 3
_HANDED_OVER_SHARE = 0.25
"""Of the time for a download: so long it waits for another one of the same file, which ends with its next block where
it is no longer wanted. The bytes that it has brought are not fetched again."""
_HANDED_OVER_SECONDS = 0.05
"""Between two looks whether the other one has ended."""


class Opening(NamedTuple):
    """The required beginning of an object: `goes_on` gets its first bytes and says whether the rest is wanted."""

    num_bytes: int
    goes_on: Callable[[bytes], bool]


class Unwanted(StorageError):
    """The rest of an object that begins with `head` was not read."""

    def __init__(self, head: bytes) -> None:
        super().__init__("get: the object's beginning is not the expected one")
        self.head = head


class Busy(StorageError):
    """Another thread of this process is bringing the same file."""


def download_to(
    bucket: RangedBucket,
    key: str,
    path: Path,
    size: int,
    *,
    timeout_seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    opening: Opening | None = None,
    time: Time = REAL,
) -> None:
    """Bring the object's `size` bytes to `path`, going on from what an earlier call left.

    `path` appears only when it is whole; until then `<path>.part` and `<path>.etag` stand beside it. `stopped` is asked
    before every block. Raises what Bucket.get raises, Unwanted where `opening` says so, Busy when another thread stays
    at it for a quarter of the time, and ConfigError when the disk is full or not writable.
    """
    until = time.now() + timeout_seconds
    with _claimed(path, time.now() + _HANDED_OVER_SHARE * timeout_seconds, time), _writing(path.parent):
        for _ in range(_VERSIONS):
            try:
                return _download(bucket, key, path, size, until, stopped, opening, time)
            except (ObjectReplaced, Unwanted) as fault:
                _forget(path)
                if isinstance(fault, Unwanted):
                    raise
            except OSError:
                _forget(path)  # a full disk is needed for what must be saved
                raise
    raise StorageError(f"get: the object was replaced {_VERSIONS} times while it was read")


def keep(path: Path, data: bytes) -> None:
    """Leave bytes that came another way as `path`, whole or not at all. Raises ConfigError."""
    with _writing(path.parent):
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data, durable=False)


def mapped(path: Path) -> memoryview | None:
    """The bytes of a file that was kept or downloaded, read from the disk when they are looked at; None when there is
    no such file or it cannot be read. They stay when the file is deleted."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return memoryview(mmap(file.fileno(), size, access=ACCESS_READ) if size else b"")
    except OSError:
        return None


def brought(path: Path) -> int:
    """Bytes that an unfinished download to `path` has brought so far."""
    try:
        return _part(path).stat().st_size
    except OSError:
        return 0


def is_begun(path: Path) -> bool:
    """Whether an unfinished download to `path` has left anything that the next one may go on from."""
    return _part(path).exists()


def remove(path: Path) -> None:
    """Delete a finished file. A disk that has become read-only costs the cache, not the round."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise (DiskFull if files.is_full(error) else ConfigError)(
            f"cannot keep downloads in {folder}: {error.strerror}; free disk space, or move the cache"
        ) from error


_busy: set[Path] = set()
_busy_lock = threading.Lock()


def _claim(path: Path) -> bool:
    with _busy_lock:
        if path in _busy:
            return False
        _busy.add(path)
        return True


@contextmanager
def _claimed(path: Path, until: float, time: Time) -> Iterator[None]:
    while not _claim(path):
        if time.now() >= until:
            raise Busy("get: another thread is bringing this file")
        time.sleep(_HANDED_OVER_SECONDS)
    try:
        yield
    finally:
        with _busy_lock:
            _busy.remove(path)


def _download(
    bucket: RangedBucket,
    key: str,
    path: Path,
    size: int,
    until: float,
    stopped: Callable[[], bool],
    opening: Opening | None,
    time: Time,
) -> None:
    etag = _version(bucket, key, size, seconds_until(until, time))
    part, note = _part(path), _note(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    label = json.dumps({"etag": etag, "size": size})
    if not (part.exists() and note.exists() and note.read_text(errors="replace") == label):
        _forget(path)
        note.write_text(label)
    with part.open("a+b") as file:
        # However it ended before, blocks were appended in order, so what is there is the object's beginning.
        have = min(file.tell(), size)
        file.truncate(have)

        def go_on() -> None:
            if stopped():
                raise StorageError("get: no longer wanted")

        def append(block: bytes) -> None:
            file.write(block)
            go_on()

        def bring(end: int) -> None:
            have = file.tell()
            bucket.stream(
                key,
                append,
                first=have,
                num_bytes=end - have,
                etag=etag,
                timeout_seconds=seconds_until(until, time),
            )

        go_on()
        if opening is not None:
            # In a request of its own: what is on its way when a connection is broken off fills the link all the same.
            if have < opening.num_bytes:
                bring(opening.num_bytes)
            file.flush()
            head = os.pread(file.fileno(), opening.num_bytes, 0)
            if not opening.goes_on(head):
                raise Unwanted(head)
        bring(size)
    os.replace(part, path)
    note.unlink(missing_ok=True)


def _version(bucket: RangedBucket, key: str, size: int, timeout_seconds: float) -> str:
    """The ETag of the object, which has `size` bytes. Raises what `download_to` raises for another one."""
    facts = bucket.head(key, timeout_seconds=timeout_seconds)
    if facts is None:
        raise ObjectMissing("get: there is no such object or bucket")
    if facts.size_bytes != size:
        raise ObjectTooLarge(
            f"get: the object has {facts.size_bytes} bytes, exactly {size} expected; not read", facts.size_bytes
        )
    if not facts.etag:
        raise StorageError("get: the server gives no ETag, so parts of different versions could be mixed")
    return facts.etag


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".etag")


def _forget(path: Path) -> None:
    _part(path).unlink(missing_ok=True)
    _note(path).unlink(missing_ok=True)
