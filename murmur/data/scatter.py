"""The first step of a build: documents become tokens, each in the bucket that its draw names.

A document's draw is a number that follows from the seed, its source, file and row, and which copy it is. Sorting by
draws shuffles all documents, whoever reads which, and in whatever order. A bucket is a range of draws and becomes one
shard (murmur/data/gather.py), so no step needs an order of all, or reads what another bucket holds.
"""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from murmur import files
from murmur.data.by_tiktoken import open_quick
from murmur.data.job import Job
from murmur.data.pieces import PIECE_CHARACTERS, pieces
from murmur.data.reader import Reader
from murmur.data.shards import little_endian
from murmur.data.tokenizer import Ids, Tokenizer

Table = NDArray[np.void]
ROW = np.dtype(
    [("draw", "<u8"), ("first", "<u8"), ("keep", "<u8"), ("source", "<u4"), ("length", "<u4"), ("text_bytes", "<u8")]
)
"""Of one copy of a document: its draw, that of its first copy, a second draw by which documents are left out, its
source, tokens and bytes of text."""
_BATCH_CHARACTERS = 1 << 20
"""About so much text is tokenised at once, .."""
_HELD_BYTES = 128 << 20
""".. and so many bytes of tokens are held before they are appended to their buckets' files."""


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
            if len(document.text) > PIECE_CHARACTERS:
                out.add(document, tokens_of(codec, document.text, places))
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
        }
        files.write(self.job.report(rank), json.dumps(told).encode())
        files.write(self.job.table(rank), np.concatenate([np.empty(0, ROW), *out.rows]).tobytes())
        yield from ()

    def _encode(self, codec: Tokenizer, batch: list[Document], out: "_Buckets") -> None:
        for document, ids in zip(batch, codec.encode([document.text for document in batch]), strict=True):
            out.add(document, ids)


def tokens_of(codec: Tokenizer, text: str, places: Any) -> Ids:
    """Return the ids of a text of any length, a batch of pieces at a time."""
    found, parts = list[Ids](), pieces(text, places)
    while lot := list(islice(parts, max(1, _BATCH_CHARACTERS // PIECE_CHARACTERS))):
        found += codec.encode(lot)
    return np.concatenate(found)


class _Buckets:
    """The buckets' files of one task: tokens of documents, then their table, its length, and a sha256 of all."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.codec = job, rank, job.open_tokenizer()
        self.dtype = little_endian(self.codec.token_bytes)
        self.rows: list[Table] = []
        self._tokens = defaultdict[int, list[NDArray[Any]]](list)
        self._tables = defaultdict[int, list[Table]](list)
        self._digests = defaultdict[int, Any](sha256)
        self._held = 0
        self._folder = job.work / f"task-{rank:05d}{files.PARTIAL}"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def add(self, document: Document, ids: Ids) -> None:
        file, job = document.metadata["file"], self.job
        tokens = self.codec.document(ids).astype(self.dtype, copy=False)
        source, num_bytes = job.recipe.sources[file.source], utf8_bytes(document.text)
        first = 0
        for copy in range(source.copies):
            draw, keep = draws(job.recipe.seed, file.source, file.plain_name, document.id, copy)
            first = draw if copy == 0 else first
            row = np.array([(draw, first, keep, file.source, len(tokens), num_bytes if copy == 0 else 0)], ROW)
            bucket = bucket_of(draw, job.num_buckets)
            # A copy that is left out for its part of an epoch needs no place.
            if source.repeats is None or copy + keep / 2**64 < source.repeats:
                self._tokens[bucket].append(tokens)
                self._tables[bucket].append(row)
                self.rows.append(row)
                self._held += tokens.nbytes
        if len(self.rows) >= 1 << 16:
            self.rows = [np.concatenate(self.rows)]
        if self._held >= _HELD_BYTES:
            self._append()

    def _append(self) -> None:
        for bucket, tokens in sorted(self._tokens.items()):
            with (self._folder / f"{bucket:06d}").open("ab") as file:
                for each in tokens:
                    file.write(each.data)
                    self._digests[bucket].update(each.data)
            self._tables[bucket] = [np.concatenate(self._tables[bucket])]
        self._tokens.clear()
        self._held = 0

    def finish(self) -> None:
        """Put each bucket's file in its place."""
        self._append()
        for bucket, parts in sorted(self._tables.items()):
            table = np.concatenate(parts)
            tail = table.tobytes() + len(table).to_bytes(8, "little")
            digest = self._digests[bucket]
            digest.update(tail)
            path, place = self._folder / f"{bucket:06d}", self.job.scattered(bucket, self.rank)
            with path.open("ab") as file:
                file.write(tail + digest.digest())
                file.flush()
                os.fsync(file.fileno())
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
        shutil.rmtree(self._folder)


def read_scattered(path: Path, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Table]:
    """Return the tokens and the table of one file. Raises ValueError for one that is not whole, or was changed."""
    data = np.fromfile(path, np.uint8)
    view = data.data
    if len(view) < 40 or sha256(view[:-32]).digest() != view[-32:]:
        raise ValueError(f"{path} is damaged")
    count = int.from_bytes(view[-40:-32], "little")
    end = len(view) - 40 - count * ROW.itemsize
    return data[:end].view(dtype), np.frombuffer(view[end : len(view) - 40], ROW)


def read_tables(paths: Iterable[Path]) -> Iterable[Table]:
    for path in paths:
        if path.stat().st_size:
            yield np.memmap(path, ROW, "r")
