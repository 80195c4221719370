"""Records of earlier payloads that a validator keeps to find copies of them (gauntlet/sketch.py), one file a round.
They are kept whole, since the chunks that a later round compares must not be predictable. The saved book names the
payloads; one whose records are missing is skipped. May not decide anything."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import numpy as np
from loguru import logger

from gauntlet.remembered import Remembered
from gauntlet.sketch import Sample, Sketch
from murmur import files
from murmur.training.memory import largest
from sparseloco.records import Bytes
from sparseloco.update import Records


class PayloadHistory:
    """The files in `folder`, of payloads of `size` bytes. `named`: the payloads that the saved book names, perhaps
    fewer than a file holds; they are read and checked once."""

    def __init__(self, folder: Path, size: int, named: Iterable[Remembered]) -> None:
        self.folder, self._size = folder, size
        self._records: dict[Remembered, Bytes] = {}
        self._digests: dict[int, list[bytes]] = {}
        """Of each round's file the payloads in their order, the best-rated first."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for round, group in groupby(sorted(named), key=lambda past: past.round):
            names = set(group)
            try:
                rows = self._rows(round)
                digests = [sha256(row).digest() for row in rows]
                found = dict(zip(digests, rows, strict=True))
                self._records |= {past: found[past.payload] for past in names if past.payload in found}
                self._digests[round] = digests
            except (OSError, ValueError):
                pass
            if lost := len(names - self._records.keys()):
                told = (
                    "round {round}: {lost} payloads are lost: copies of them, and progress from them, cannot be "
                    "measured"
                )
                logger.warning(told, round=round, lost=lost)

    def keep(self, round: int, payloads: Mapping[Remembered, Records], room: int) -> None:
        """Save the payloads of `round`, the best-rated first. All rounds together take `room` bytes at most: if they
        need more, each keeps equally many, its best. If the disk fails, later rounds are not compared with them; no
        round fails, and none waits for the disk."""
        names = list(payloads)
        held = {past: len(digests) for past, digests in self._digests.items() if past != round}
        depth = _depth([len(names), *held.values()], max(0, room) // self._size)
        if depth < len(names):
            told = (
                "round {round}: the disk has room for {kept} of {all} payloads, the best-rated; copies of the others "
                "would not be found: free disk space"
            )
            logger.warning(told, round=round, kept=depth, all=len(names))
        names = names[:depth]
        try:
            for past, count in held.items():
                if count > depth:
                    self._shorten(past, depth)
            files.write(self._path(round), *(payloads[past] for past in names), durable=False)
            self._records |= zip(names, self._rows(round), strict=True) if names else ()
            self._digests[round] = [past.payload for past in names]
        except OSError as fault:
            told = (
                "round {round}: cannot keep the payloads ({fault}), so copies of them would not be found: free "
                "disk space"
            )
            logger.warning(told, round=round, fault=fault.strerror)

    def prune(self, named: Iterable[Remembered]) -> None:
        """Delete every payload that is not `named`; one stays on the disk while a worse-rated one of its round is
        named."""
        kept = set(named)
        self._records = {past: records for past, records in self._records.items() if past in kept}
        rounds = {self._path(past.round) for past in kept}
        payloads = {(past.round, past.payload) for past in kept}
        for path in self.folder.iterdir():
            if path not in rounds:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        self._digests = {round: found for round, found in self._digests.items() if self._path(round) in rounds}
        for round, digests in self._digests.items():
            last = max((at for at, digest in enumerate(digests, 1) if (round, digest) in payloads), default=0)
            if last < len(digests):
                with suppress(OSError):
                    self._shorten(round, last)

    def sketches(self, named: Iterable[Remembered], sample: Sample) -> Iterator[Sketch]:
        """Yield sketches of the named payloads that are here."""
        for past in named:
            if (records := self._records.get(past)) is not None:
                yield Sketch(past.peer, past.round, past.payload, sample.excerpt(records))

    def _shorten(self, round: int, count: int) -> None:
        """Leave the first `count` payloads of a round. Raises OSError."""
        left = self._digests[round] = self._digests[round][:count]
        # Before the file: to read mapped bytes behind a file's end would kill the process.
        self._records = {p: records for p, records in self._records.items() if p.round != round or p.payload in left}
        os.truncate(self._path(round), count * self._size)

    def _path(self, round: int) -> Path:
        return self.folder / str(round)

    def _rows(self, round: int) -> Bytes:
        """Map all records of a round, without reading them yet. Raises OSError, or ValueError for a file that does not
        hold whole payloads."""
        return np.memmap(self._path(round), dtype=np.uint8, mode="r").reshape(-1, self._size)


def _depth(counts: Sequence[int], room: int) -> int:
    """Return the most that each of these may keep, if all together keep no more than `room`."""
    return largest(lambda depth: sum(min(depth, count) for count in counts) <= room, max(counts))
