"""A file that is there whole or not at all: the one place that decides how.

It stands below all packages: those that train or build tokens write files and must not import `storage`, which writes
files too.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""How the name of a file ends that is not whole."""


@contextmanager
def whole(
    folder: Path, name: str | Callable[[], str], *, mode: int = 0o666, durable: bool = True
) -> Iterator[BinaryIO]:
    """Yield an empty file that gets its name, in place of another file's, when the block ends; it is deleted when the
    block fails. A `name` that is not known before is asked for then.

    The data are on disk before the name, and the name before this returns, also when the machine loses power. Only a
    file that its readers check, and do without, need not wait for the disk (not `durable`).
    """
    begins = name if isinstance(name, str) else "new"
    partial = folder / f"{begins}.{os.getpid()}-{threading.get_ident()}{PARTIAL}"
    partial.unlink(missing_ok=True)  # of a killed process with our numbers
    try:
        with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, folder / (name if isinstance(name, str) else name()))
    except BaseException:
        partial.unlink(missing_ok=True)  # a full disk is needed for what must be saved
        raise
    if durable:
        sync(folder)


def write(path: Path, *parts: bytes | bytearray | memoryview, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file, as `whole`."""
    with whole(path.parent, path.name, mode=mode, durable=durable) as file:
        for part in parts:
            file.write(part)


def is_full(fault: OSError) -> bool:
    """Whether the disk, or our quota of it, has no room: it may have some later."""
    return fault.errno in (errno.ENOSPC, errno.EDQUOT)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
