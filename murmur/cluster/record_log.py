"""Records of a cluster's last rounds on a member's disk, in case the store loses one."""

from contextlib import suppress
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.cluster.group_keys import Group
from murmur.protocol.cluster import GROUP, Record
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.types import Digest


class RecordLog:
    """Files in `folder`, one a round, for as many rounds as a cluster keeps payloads. A lost or damaged file is
    ignored: other members have the record too. Thread-safe."""

    def __init__(self, folder: Path, run: Digest, group: Group, keep_rounds: int) -> None:
        self._folder, self._run, self._group, self._keep_rounds = folder, run, group, keep_rounds

    def keep(self, round: int, record: Record) -> None:
        """Save the round's record."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            data = record.encode(self._run, round, self._group.signer())
            files.write(self._path(round), data, durable=False)
            oldest = self._path(max(0, round - self._keep_rounds + 1)).name
            for path in self._folder.iterdir():
                if path.name < oldest:
                    path.unlink(missing_ok=True)
        except OSError as fault:
            logger.warning(
                "round {round}: cannot keep its record on this disk ({fault}); other members have it",
                round=round,
                fault=str(fault),
            )

    def forget(self) -> None:
        """Delete all records here."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def find(self, round: int) -> Record | None:
        """Return the round's record, None when this disk does not have it."""
        with suppress(OSError, InvalidMessage):
            return Record.parse(self._path(round).read_bytes(), self._run, round, GROUP, self._group.verify)
        return None

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:08d}"
