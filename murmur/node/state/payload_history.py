"""Records of earlier payloads that a validator keeps to find copies of them (gauntlet/sketch.py), one file a round.
They are kept whole, since the chunks that a later round compares must not be predictable. The saved book names the
payloads; one whose records are missing is skipped. May not decide anything."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import numpy as np
from loguru import logger

from gauntlet.remembered import Remembered
from gauntlet.sketch import Sample, Sketch
from murmur import files
from sparseloco.records import Bytes
from sparseloco.update import Records


class PayloadHistory:
    """The files in `folder`, of payloads of `size` bytes. `named`: the payloads that the saved book names, perhaps
    fewer than a file holds; they are read and checked once."""

    def __init__(self, folder: Path, size: int, named: Iterable[Remembered]) -> None:
        self.folder, self._size = folder, size
        self._records: dict[Remembered, Bytes] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for round, group in groupby(sorted(named), key=lambda past: past.round):
            names = set(group)
            try:
                rows = {sha256(row).digest(): row for row in self._rows(round)}
                self._records |= {past: rows[past.payload] for past in names if past.payload in rows}
            except (OSError, ValueError):
                pass
            if lost := len(names - self._records.keys()):
                told = (
                    "round {round}: {lost} payloads are lost: copies of them, and progress from them, cannot be "
                    "measured"
                )
                logger.warning(told, round=round, lost=lost)

    def keep(self, round: int, payloads: Mapping[Remembered, Records]) -> None:
        """Save the payloads of `round`. If the disk fails, later rounds are not compared with them; no round fails, and
        none waits for the disk."""
        names = sorted(payloads)
        try:
            files.write(self._path(round), *(payloads[past] for past in names), durable=False)
            self._records |= zip(names, self._rows(round), strict=True) if names else ()
        except OSError as fault:
            told = (
                "round {round}: cannot keep the payloads ({fault}), so copies of them would not be found: free "
                "disk space"
            )
            logger.warning(told, round=round, fault=fault.strerror)

    def prune(self, named: Iterable[Remembered]) -> None:
        """Delete every payload that is not `named`."""
        kept = set(named)
        self._records = {past: records for past, records in self._records.items() if past in kept}
        rounds = {self._path(past.round) for past in kept}
        for path in self.folder.iterdir():
            if path not in rounds:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def sketches(self, named: Iterable[Remembered], sample: Sample) -> Iterator[Sketch]:
        """Yield sketches of the named payloads that are here."""
        for past in named:
            if (records := self._records.get(past)) is not None:
                yield Sketch(past.peer, past.round, past.payload, sample.excerpt(records))

    def _path(self, round: int) -> Path:
        return self.folder / str(round)

    def _rows(self, round: int) -> Bytes:
        """Map all records of a round, without reading them yet. Raises OSError, or ValueError for a file that does not
        hold whole payloads."""
        return np.memmap(self._path(round), dtype=np.uint8, mode="r").reshape(-1, self._size)
