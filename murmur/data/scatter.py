"""The first step of a build: documents become tokens, each in the bucket that its draw names.

A document's draw is a number that follows from the seed, its source, file and row, and which copy it is. Sorting by
draws shuffles all documents, whoever reads which, and in whatever order. A bucket is a range of draws and becomes one
shard (murmur/data/gather.py), so no step needs an order of all, or reads what another bucket holds.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_128

from murmur import files
from murmur.data import place
from murmur.data.by_tiktoken import open_quick
from murmur.data.job import TASK, Job
from murmur.data.pieces import PIECE_CHARACTERS, pieces
from murmur.data.place import Place
from murmur.data.reader import Reader
from murmur.data.shards import little_endian
from murmur.data.tokenizer import Ids, Tokenizer

Table = NDArray[np.void]
ROW = np.dtype(
    [
        ("draw", "<u8"),
        ("content", "<u8"),
        ("keep", "<u8"),
        ("source", "<u4"),
        ("length", "<u4"),
        ("text_bytes", "<u8"),
        ("copy", "<u4"),
    ]
)
"""Of one copy of a document: its draw, a hash of its tokens, a second draw by which documents are left out, its source,
tokens and bytes of text, and which copy it is."""
_BATCH_CHARACTERS = 1 << 20
"""About so much text is tokenised at once, .."""
_HELD_BYTES = 128 << 20
""".. and so many bytes of tokens and rows are held before they are appended to their buckets' files."""
_PARTS = 1000
"""So many of their parts are copied into one before."""
_ROW_BYTES = 300
"""A row in Python's own numbers."""


def draws(seed: int, source: int, file: str, row: str, copy: int) -> tuple[int, int]:
    """Return a copy's draw, and the draw by which its document is used or left out."""
    found = sha256(f"{seed}/{source}/{row}/{copy}/{file}".encode(errors="surrogateescape")).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:16], "little")


def utf8_bytes(text: str) -> int:
    """Return the length of a text in UTF-8, without a copy of all of it."""
    if text.isascii():
        return len(text)
    return sum(len(text[at : at + _BATCH_CHARACTERS].encode()) for at in range(0, len(text), _BATCH_CHARACTERS))


def bucket_of(draw: int, num_buckets: int) -> int:
    return draw * num_buckets >> 64


class Scatter(PipelineStep):  # type: ignore[misc]
    """Tokenises a task's documents. Writes one file for each bucket that got any, a table of all, and what could not be
    used; the table last, so a task without one is done again."""

    type, name = "tokens", "tokenise and scatter"

    def __init__(self, job: Job, reader: Reader) -> None:
        super().__init__()
        self.job, self.reader = job, reader

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        out = _Buckets(self.job, rank)
        codec = open_quick(self.job)
        places = self.job.places()
        batch, size = list[Document](), 0
        for document in data:
            if (ids := document.metadata.get("ids")) is not None:
                self._add(document, out, ids)
                continue
            if len(document.text) > PIECE_CHARACTERS:
                self._add(document, out, *tokens_of(codec, document.text, places))
                continue
            batch.append(document)
            size += len(document.text)
            if size >= _BATCH_CHARACTERS:
                self._encode(codec, batch, out)
                batch, size = [], 0
        self._encode(codec, batch, out)
        out.finish()
        bad = self.reader.bad
        told = {
            "bad": [
                [source, kind, count, bad.first[source, kind]] for (source, kind), count in sorted(bad.counts.items())
            ],
            "changed": sorted(bad.changed.items()),
            "rows": sorted(bad.rows.items()),
            "unknown": sorted(bad.unknown.items()),
            "reframed": sorted(bad.reframed.items()),
        }
        place.write(self.job.report(rank), json.dumps(told).encode())
        place.write(self.job.table(rank), np.concatenate([np.empty(0, ROW), *out.rows]).tobytes())
        yield from ()

    def _encode(self, codec: Tokenizer, batch: list[Document], out: "_Buckets") -> None:
        for document, ids in zip(batch, codec.encode([document.text for document in batch]), strict=True):
            self._add(document, out, ids)

    def _add(self, document: Document, out: "_Buckets", *ids: Ids) -> None:
        file, bad, unk = document.metadata["file"], self.reader.bad, out.codec.unk
        if not any(map(len, ids)):
            bad.note(file, int(document.id), "no tokens")
            return
        if unk is not None and (count := sum(int(np.count_nonzero(part == unk)) for part in ids)):
            bad.unknown[file.source] += count
        out.add(document, *ids)


def tokens_of(codec: Tokenizer, text: str, places: Any) -> Iterator[Ids]:
    """Yield the ids of a text of any length, a batch of pieces at a time."""
    parts = pieces(text, places)
    while lot := list(islice(parts, max(1, _BATCH_CHARACTERS // PIECE_CHARACTERS))):
        yield np.concatenate(codec.encode(lot))


class _Buckets:
    """The buckets' files of one task: tokens of documents, then their table, its length, and a checksum of all."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.codec = job, rank, job.open_tokenizer()
        self.dtype = little_endian(self.codec.token_bytes)
        self.rows: list[Table] = []
        self._tokens = defaultdict[int, list[NDArray[Any]]](list)
        self._rows = defaultdict[int, list[tuple[int, ...]]](list)
        self._tables = defaultdict[int, list[Table]](list)
        self._digests = defaultdict[int, xxh3_128](xxh3_128)
        self._held = 0
        # Of this process alone: another one may have been given the same task, and both make the same files.
        self._temporary = TemporaryDirectory(files.PARTIAL, TASK, job.work if isinstance(job.work, Path) else None)
        self._folder = Path(self._temporary.name)

    def add(self, document: Document, *ids: Ids) -> None:
        """Take a document whose tokens are these, one part behind the other."""
        file, job = document.metadata["file"], self.job
        tokens = [part.astype(self.dtype, copy=False) for part in self.codec.document(ids)]
        length = sum(map(len, tokens))
        source, num_bytes = job.recipe.sources[file.source], utf8_bytes(document.text)
        document.text = ""  # it may be long, and what follows needs room
        content = xxh3_64()
        for part in ids:
            content.update(np.ascontiguousarray(part, "<u4").data)
        for copy in range(source.copies):
            draw, keep = draws(job.recipe.seed, file.source, file.plain_name, document.id, copy)
            bucket = bucket_of(draw, job.num_buckets)
            # A copy that is left out for its part of an epoch needs no place.
            if source.repeats is None or copy + keep / 2**64 < source.repeats:
                self._tokens[bucket] += tokens
                counted = num_bytes if copy == 0 else 0
                row = (draw, content.intdigest(), keep, file.source, length, counted, copy)
                self._rows[bucket].append(row)
                self._held += length * self.dtype.itemsize + _ROW_BYTES
        if self._held >= _HELD_BYTES:
            self._append()

    def _append(self) -> None:
        for bucket, tokens in sorted(self._tokens.items()):
            with (self._folder / f"{bucket:06d}").open("ab") as file:
                while tokens:
                    data = np.concatenate(tokens[:_PARTS]).data
                    del tokens[:_PARTS]
                    file.write(data)
                    self._digests[bucket].update(data)
            table = np.array(self._rows[bucket], ROW)
            self._tables[bucket].append(table)
            self.rows.append(table)
        self._tokens.clear()
        self._rows.clear()
        self._held = 0

    def finish(self) -> None:
        """Put each bucket's file in its place."""
        self._append()
        for bucket, parts in sorted(self._tables.items()):
            table = np.concatenate(parts)
            tail = table.tobytes() + len(table).to_bytes(8, "little")
            digest = self._digests[bucket]
            digest.update(tail)
            path = self._folder / f"{bucket:06d}"
            with path.open("ab") as file:
                file.write(tail + digest.digest())
            place.move(path, self.job.bucket(bucket) / f"{self.rank:05d}")
        self._temporary.cleanup()


def read_scattered(path: Place, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Table]:
    """Return the tokens and the table of one file. Raises ValueError for one that is not whole, or was changed."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    view = data.data
    if len(view) < 24 or xxh3_128(view[:-16]).digest() != view[-16:]:
        raise ValueError(f"{path} is damaged")
    count = int.from_bytes(view[-24:-16], "little")
    end = len(view) - 24 - count * ROW.itemsize
    return data[:end].view(dtype), np.frombuffer(view[end : len(view) - 24], ROW)


def read_tables(paths: Iterable[Place]) -> Iterable[Table]:
    return (np.frombuffer(path.read_bytes(), ROW) for path in paths)
