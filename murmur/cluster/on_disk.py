"""A group's documents on a member's disk, in case the store loses one."""

from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from loguru import logger

from murmur import files
from murmur.cluster.group_keys import Group
from murmur.protocol.cluster import GROUP, Document
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.types import Digest

D = TypeVar("D", bound=Document)


class OnDisk(Generic[D]):
    """Documents of one kind as files in `folder`, by number: the group's records by round, or its amendments. A lost or
    damaged file is ignored: other members have the document too. Thread-safe."""

    def __init__(self, kind: type[D], folder: Path, run: Digest, group: Group) -> None:
        self._kind, self._folder, self._run, self._group = kind, folder, run, group

    def keep(self, number: int, document: D, oldest: int = 0) -> None:
        """Save the document, and delete those of numbers below `oldest`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write(self._path(number), document.encode(self._run, number, self._group.signer()))
            for path in self._folder.iterdir():
                if path.name < self._path(max(0, oldest)).name:
                    path.unlink(missing_ok=True)
        except OSError as fault:
            told = "cannot keep {kind} {number} on this disk ({fault}); other members have it"
            logger.warning(told, kind=self._kind.kind, number=number, fault=str(fault))

    def find(self, number: int) -> D | None:
        """Return the document; None when this disk does not have it."""
        with suppress(OSError, InvalidMessage):
            return self._kind.parse(self._path(number).read_bytes(), self._run, number, GROUP, self._group.verify)
        return None

    def forget(self) -> None:
        """Delete all documents here."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}"
