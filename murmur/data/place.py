"""Folders of a build: on a disk, or behind an address such as s3://BUCKET/NAME, which all of its machines reach."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from murmur import files
from murmur.homes import expanded
from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from upath import UPath

_LOCK = ".lock"
Place: TypeAlias = "Path | UPath"


def place_of(name: str) -> Place:
    """Return a folder by its path or address. Raises ConfigError for an address that cannot be used."""
    if not name:
        raise ConfigError("--out is empty: name a folder or an address")
    name = name.removeprefix("file://")
    if "://" not in name:
        return expanded(name)
    if find_spec("upath") is None:
        raise ConfigError("addresses need the extra data: pip install 'murmuration-node[data]'")
    from upath import UPath

    from murmur.data import addresses

    addresses.register()
    try:
        place = UPath(name)
        assert place.fs  # opened only now
    except (OSError, ValueError, ImportError) as fault:
        raise ConfigError(f"cannot use the address {name}: {fault}") from None
    return place


def is_local(place: Place) -> bool:
    return isinstance(place, Path)


def write(place: Place, *parts: bytes | memoryview) -> None:
    """Write a file that is there whole or not at all, durably on a disk."""
    if isinstance(place, Path):
        files.write(place, *parts)
        return
    with place.open("wb") as file:
        for part in parts:
            file.write(part)


def move(path: Path, place: Place) -> None:
    """Put a whole file of this machine there."""
    if isinstance(place, Path):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
        return
    with path.open("rb") as file, place.open("wb") as to:
        shutil.copyfileobj(file, to, 1 << 24)
    path.unlink()


@contextmanager
def alone(place: Place) -> Iterator[None]:
    """Hold a folder of this machine for one build. Raises ConfigError while another one holds it."""
    if not isinstance(place, Path):
        yield
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = (place / _LOCK).open("ab")
    except OSError as fault:
        raise ConfigError(f"cannot use {place}: {fault.strerror}") from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(place / _LOCK)):
                raise BlockingIOError  # it was released and removed meanwhile, and another one has a new one
        except (BlockingIOError, FileNotFoundError):
            raise ConfigError(f"another build works in {place}: wait for it, or choose another --out") from None
        try:
            yield
        finally:
            (place / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                place.rmdir()  # where nothing was begun


def entries(place: Place) -> list[Place]:
    """Return what a folder holds, by name; nothing where there is none."""
    found: list[Place] = [*place.iterdir()] if place.is_dir() else []
    return sorted(found, key=str)


def remove(place: Place) -> None:
    """Remove a file, or a folder with all that is in it."""
    if place.is_file():
        place.unlink()
    elif isinstance(place, Path):
        shutil.rmtree(place)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            place.rmdir(recursive=True)
