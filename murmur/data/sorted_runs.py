"""Sorted runs of documents for a data set: each batch is tokenised and written to disk in the order of its draws.

A document's draw is a number that follows from the seed, its source and its number there. Shuffling is sorting by
draws, so it does not depend on which process tokenises what, nor on how the text is cut into batches. A sorted batch is
a run of an external merge sort: the documents between two draws are one piece of each run.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from murmur.data.shards import little_endian
from murmur.data.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer
from murmur.files import write

RUN_BYTES = 16 << 20
"""Approximate text of a run: what a process holds at once, with its tokens."""
DRAWS = 1 << 53
"""Upper bound of draws, so that floats represent them exactly."""

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"MURMRUN1"


def draw(seed: int, source: int, number: int) -> int:
    """Return the draw of a source's document, by its number from 0."""
    words = seed.to_bytes(8, "little", signed=True) + source.to_bytes(4, "little") + number.to_bytes(8, "little")
    return int.from_bytes(sha256(b"shuffle" + words).digest()[:8], "little") % DRAWS


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents first, first + 1, .. of a source, to become the run at `path`."""

    path: Path
    seed: int
    source: int
    first: int
    texts: tuple[str, ...]
    tokenizer: Path | None
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Table:
    """Draws, ascending, and token counts of a run's documents."""

    draws: NDArray[np.uint64]
    lengths: NDArray[np.uint32]


def batches(texts: Iterable[str], run_bytes: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield documents in batches of about `run_bytes`: the first one's number, the batch's bytes, the batch."""
    lot: list[str] = []
    first = size = 0
    for text in texts:
        lot.append(text)
        size += len(text.encode())
        if size >= run_bytes:
            yield first, size, tuple(lot)
            first, size, lot = first + len(lot), 0, []
    if lot:
        yield first, size, tuple(lot)


def digest_of(texts: Sequence[str]) -> str:
    """Return the digest of exactly these documents, in this order."""
    state = sha256()
    for text in texts:
        data = text.encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


def write_run(batch: Batch) -> None:
    """Tokenise a batch, each document ended by the tokenizer's separator, and write its run whole or not at all."""
    codec = tokenizer_of(batch.tokenizer)
    draws = np.array([draw(batch.seed, batch.source, batch.first + i) for i in range(len(batch.texts))], np.uint64)
    order = np.argsort(draws, kind="stable")
    documents = [
        np.append(codec.encode(batch.texts[at]), codec.separator).astype(little_endian(batch.token_bytes))
        for at in order
    ]
    lengths = np.array([len(document) for document in documents], np.uint32)
    header = _HEADER.pack(_MAGIC, len(documents))
    write(batch.path, header, draws[order].tobytes(), lengths.tobytes(), *(document.data for document in documents))


def read_table(path: Path) -> Table:
    with path.open("rb") as file:
        return _table(file)


def read_documents(path: Path, first: int, table: Table, token_bytes: int) -> NDArray[np.unsignedinteger]:
    """Return the tokens of consecutive documents of a run from number `first` on: those of `table`, one after the
    other."""
    with path.open("rb") as file:
        whole = _table(file)
        skipped = int(whole.lengths[:first].sum(dtype=np.int64)) * token_bytes
        count = int(table.lengths.sum(dtype=np.int64))
        tokens: NDArray[np.unsignedinteger] = np.fromfile(file, little_endian(token_bytes), count, offset=skipped)
    return tokens


def _table(file: BinaryIO) -> Table:
    _, count = _HEADER.unpack(file.read(_HEADER.size))
    return Table(np.fromfile(file, np.uint64, count), np.fromfile(file, np.uint32, count))


@lru_cache(maxsize=1)
def tokenizer_of(path: Path | None) -> Tokenizer:
    """Open the tokenizer, once per process. Raises ConfigError."""
    return byte_tokenizer() if path is None else open_tokenizer(path)
