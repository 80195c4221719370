"""Growing files, read from where the last read ended: each line once."""

import os
from collections.abc import Iterator
from pathlib import Path

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 20
"""Longest line, an event; the largest is a report of 256 hotkeys, 150 kB. Longer lines are skipped."""


class Tail:
    """A file of lines. A file that was replaced, or has shrunk, is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_id: tuple[int, int] | None = None
        self._offset = 0

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of every complete line since the last read; a partial line is left for later."""
        try:
            facts = os.stat(self.path)
        except OSError:
            return
        if (facts.st_dev, facts.st_ino) != self._file_id or facts.st_size < self._offset:
            self._file_id, self._offset = (facts.st_dev, facts.st_ino), 0
        if facts.st_size == self._offset:
            return
        rest = b""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(READ_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    place = self._offset
                    self._offset += len(line) + 1
                    yield place, line
                if len(rest) > MAX_LINE_BYTES:
                    self._offset += len(rest)
                    rest = b""


def line_at(path: Path, offset: int) -> bytes:
    """Return the line at this offset, as the file is now."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline(MAX_LINE_BYTES)
