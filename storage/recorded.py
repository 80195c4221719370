"""A bucket recorded as files, readable without its server: `record` copies its objects, `RecordedBucket` reads them.

Keys are strangers' text. Only keys made of the protocol's letters (murmur/protocol/keys.py) are copied and read; they
become file names in one flat folder.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from typing import BinaryIO

from murmur import files
from murmur.protocol.errors import ConfigError, ObjectMissing, ObjectReplaced, ObjectTooLarge, StorageError
from murmur.protocol.keys import is_final, trial
from murmur.protocol.ports import ObjectFacts
from storage.readonly import ReadOnly
from storage.s3 import PART_BYTES, RangedBucket, Sink

FREE_BYTES = 1 << 30
"""Free disk space below which no object is copied, in bytes."""
_KEY = re.compile(r"[a-z0-9-]+(/[a-z0-9-]+)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_KEY_CHARACTERS = 200
_MAX_KEYS = 100_000


def record(bucket: RangedBucket, folder: Path, max_bytes: int, seconds_left: Callable[[], float]) -> None:
    """Copy the bucket's objects of at most `max_bytes` that `folder` lacks or that may have changed.

    Files are never removed: a run's early objects stay after their owners delete them. Each file is whole or absent;
    nothing is flushed to disk. Raises StorageError; the copies made until then stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for key in bucket.list("", max_keys=_MAX_KEYS, timeout_seconds=seconds_left()):
        path = _path(folder, key)
        if path is None or key == trial() or (is_final(key) and path.exists()):
            continue
        if disk_usage(folder).free < FREE_BYTES + max_bytes:
            raise StorageError(f"{folder} has less than {FREE_BYTES >> 20} MiB of free space left")
        try:
            data = bucket.get(key, max_bytes=max_bytes, timeout_seconds=seconds_left())
        except (ObjectMissing, ObjectTooLarge):
            continue
        files.write(path, data, durable=False)


def open_recorded_bucket(folder: Path, name: str, server: RangedBucket | None = None) -> "RecordedBucket":
    """Return the bucket of this name in a folder of recorded buckets. Raises ConfigError for an invalid name."""
    if not _BUCKET.fullmatch(name):
        raise ConfigError("a bucket name must be 3 to 63 of a-z, 0-9, '.' and '-'")
    return RecordedBucket(folder / name, server)


class RecordedBucket(ReadOnly):
    """RangedBucket over a recorded folder, read only. `server`: the bucket itself while it is reachable, for objects
    that are not recorded yet or may have changed since."""

    def __init__(self, folder: Path, server: RangedBucket | None = None) -> None:
        self._folder = folder
        self._server = server

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        if (asked := self._asked(key)) is not None:
            return asked.get(key, max_bytes=max_bytes, timeout_seconds=timeout_seconds, exact=exact)
        with self._open(key) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes or (exact and size != max_bytes):
                raise ObjectTooLarge(f"get: the object has {size} bytes; not read", size)
            return file.read()

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        blocks: list[bytes] = []
        self.stream(key, blocks.append, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)
        return b"".join(blocks)

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        if (asked := self._asked(key)) is not None:
            asked.stream(key, sink, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)
            return
        with self._open(key) as file:
            facts = _facts(os.fstat(file.fileno()))
            if facts.etag != etag:
                raise ObjectReplaced("get: the object is another version by now")
            if first + num_bytes > facts.size_bytes:
                raise StorageError("get: the object is shorter than that")
            file.seek(first)
            for at in range(0, num_bytes, PART_BYTES):
                sink(file.read(min(PART_BYTES, num_bytes - at)))

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        if (asked := self._asked(key)) is not None:
            return asked.head(key, timeout_seconds=timeout_seconds)
        path = _path(self._folder, key)
        return _facts(path.stat()) if path is not None and path.exists() else None

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        names = os.listdir(self._folder) if self._folder.exists() else []
        found = {name.replace(",", "/") for name in names if not name.endswith(files.PARTIAL)}
        if self._server is not None:
            found |= set(self._server.list(prefix, max_keys=max_keys, timeout_seconds=timeout_seconds))
        return tuple(sorted(key for key in found if key.startswith(prefix))[:max_keys])

    def _asked(self, key: str) -> RangedBucket | None:
        """Return the server if it has to be asked for this key, else None."""
        path = _path(self._folder, key)
        return None if path is not None and is_final(key) and path.exists() else self._server

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        path = _path(self._folder, key)
        try:
            file = path.open("rb") if path is not None else None
        except FileNotFoundError:
            file = None
        if file is None:
            raise ObjectMissing("get: there is no such object in the record")
        with file:
            yield file


def _path(folder: Path, key: str) -> Path | None:
    """Return an object's path; None for a key that is not one of ours."""
    if len(key) > _MAX_KEY_CHARACTERS or not _KEY.fullmatch(key):
        return None
    return folder / key.replace("/", ",")


def _facts(stat: os.stat_result) -> ObjectFacts:
    return ObjectFacts(stat.st_size, f'"{stat.st_size}-{stat.st_mtime_ns}"', stat.st_mtime)
