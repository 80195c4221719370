"""A folder in place of everybody's buckets (murmur/data/remote_files.py, Remote)."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from murmur.data.remote_files import BlobRange, File
from murmur.protocol.errors import ObjectMissing


@dataclass
class Folder:
    """A Remote over a folder. `log`: what was asked for, by file name, with the number of bytes that travelled.
    short_bytes: by so much answers to ranges are too short."""

    folder: Path
    log: list[tuple[str, int]] = field(default_factory=list)
    spoilt: bool = False
    short_bytes: int = 0

    def __post_init__(self) -> None:
        self.blobs = {sha256(path.read_bytes()).digest(): path for path in self.folder.iterdir()}

    def read(self, parts: Sequence[BlobRange]) -> list[bytes]:
        return [self._part(part) for part in parts]

    def _part(self, part: BlobRange) -> bytes:
        data = self.blobs[part.blob].read_bytes()
        assert len(data) == part.blob_bytes
        found = data[part.first : part.first + part.num_bytes]
        assert len(found) == part.num_bytes
        self.log.append((self.blobs[part.blob].name, part.num_bytes))
        if self.spoilt:
            found = bytes([found[0] ^ 1]) + found[1:]
        if len(found) > self.short_bytes:
            found = found[: len(found) - self.short_bytes]
        if not part.accept(found):
            raise ObjectMissing("nobody has the right bytes")
        return found

    def fetch(self, files: Sequence[File]) -> None:
        for file in files:
            path = self.blobs[file.blob]
            size = path.stat().st_size
            assert size == file.num_bytes if file.exact else size <= file.num_bytes
            self.log.append((path.name, size))
            shutil.copy(path, file.path)
