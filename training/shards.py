"""Pre-tokenised shards: building them, and reading tokens by position.

A data set is a folder of one-dimensional .npy files and an index.json that names each file's sha256; the sha256 of
index.json stands in the run spec, so everybody trains on the same tokens at the same positions. Files are
memory-mapped, never unpickled, and may come from strangers through `fetch`: each is verified before its first token
is used.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import ConfigError
from protocol.spec import RunSpec, fault_lines
from protocol.types import Digest
from training.sources import documents
from training.tokens import byte_tokenizer, open_tokenizer

Fetch = Callable[[Digest, int, Path], None]
"""fetch(digest, max_bytes, path): store the blob with that sha256 at `path`, refusing more than `max_bytes` unread.
It may raise any MurmurError; what it stored is verified by the caller."""

INDEX = "index.json"
MAX_INDEX_BYTES = 16 << 20
SHARD_TOKENS = 1 << 24
NPY_HEADER_BYTES = 128
_PIECE_TOKENS = 1 << 20

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ShardEntry(BaseModel):
    """One file of a split. The name is a bare one that cannot leave the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.npy$")]
    sha256: _Hex
    num_tokens: Annotated[int, Field(gt=0, lt=1 << 40)]


class Index(BaseModel):
    """index.json. `tokenizer` is "bytes" or the sha256 of tokenizer.json; every token is below `vocabulary`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    tokenizer: Literal["bytes"] | _Hex
    vocabulary: Annotated[int, Field(gt=0, le=1 << 32)]
    dtype: Literal["uint16", "uint32"]
    train: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]
    held_out: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]


class Split:
    """The shards of one split as a single sequence of tokens."""

    def __init__(self, folder: Path, index: Index, entries: tuple[ShardEntry, ...], fetch: Fetch | None) -> None:
        self._folder, self._index, self._entries, self._fetch = folder, index, entries, fetch
        self._starts = [0, *accumulate(entry.num_tokens for entry in entries)]
        self._arrays: dict[int, NDArray[np.unsignedinteger]] = {}

    @property
    def num_tokens(self) -> int:
        return self._starts[-1]

    def tokens(self, first: int, count: int) -> NDArray[np.int64]:
        """Tokens first .. first + count - 1 as a fresh int64 array; runs cross shard boundaries.

        The first touch of a shard reads and verifies all of it; raises ConfigError when it is bad. Raises ValueError
        outside the split.
        """
        if first < 0 or count < 0 or first + count > self.num_tokens:
            raise ValueError(f"tokens {first} to {first + count} are outside a split of {self.num_tokens} tokens")
        out = np.empty(count, dtype=np.int64)
        position = first
        while position < first + count:
            number = bisect_right(self._starts, position) - 1
            begin = position - self._starts[number]
            piece = self._array(number)[begin : begin + first + count - position]
            out[position - first : position - first + len(piece)] = piece
            position += len(piece)
        return out

    def verify(self, on_shard: Callable[[int, int], None] | None = None) -> None:
        """Fetch and verify every shard now; on_shard(done, total) after each. Raises ConfigError."""
        for number in range(len(self._entries)):
            self._array(number)
            if on_shard is not None:
                on_shard(number + 1, len(self._entries))

    def _array(self, number: int) -> NDArray[np.unsignedinteger]:
        if number not in self._arrays:
            entry = self._entries[number]
            path = self._folder / entry.file
            if not path.exists() and self._fetch is not None:
                itemsize = np.dtype(self._index.dtype).itemsize
                self._fetch(Digest(bytes.fromhex(entry.sha256)), entry.num_tokens * itemsize + NPY_HEADER_BYTES, path)
            self._arrays[number] = _open_shard(path, entry, self._index)
        return self._arrays[number]


class Shards:
    """A data set on disk: `train` and `held_out`."""

    def __init__(self, folder: Path, index: Index, digest: Digest, fetch: Fetch | None) -> None:
        self.index, self.digest = index, digest
        self.train = Split(folder, index, index.train, fetch)
        self.held_out = Split(folder, index, index.held_out, fetch)

    @classmethod
    def open(cls, folder: Path, *, index_digest: Digest | None = None, fetch: Fetch | None = None) -> Self:
        """The data set in `folder`. With `index_digest` its index must be that one; with `fetch` missing files are
        fetched (index now, shards at first use). Raises ConfigError for an index that is missing, broken or another
        one, and, without `fetch`, for a missing shard."""
        path = folder / INDEX
        if not path.exists() and fetch is not None and index_digest is not None:
            folder.mkdir(parents=True, exist_ok=True)
            fetch(index_digest, MAX_INDEX_BYTES, path)
        if not path.is_file():
            raise ConfigError(f"no data set in {folder}: {INDEX} is missing; make one with: murmur shards build")
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_INDEX_BYTES} bytes: this is not an index of shards")
        data = path.read_bytes()
        digest = Digest(sha256(data).digest())
        if index_digest is not None and digest != index_digest:
            raise ConfigError(
                f"{path} is another data set than the run's: its sha256 is {digest.hex()}, the run spec says "
                f"{index_digest.hex()}; point the node at the run's data or delete this folder"
            )
        try:
            index = Index.model_validate_json(data)
        except ValidationError as fault:
            raise ConfigError(f"{path} is not a valid index of shards:\n" + fault_lines(fault)) from None
        if fetch is None:
            for entry in (*index.train, *index.held_out):
                if not (folder / entry.file).is_file():
                    raise ConfigError(f"shard {folder / entry.file} is missing; build or download the data set again")
        return cls(folder, index, digest, fetch)

    def check(self, spec: RunSpec) -> None:
        """Raise ConfigError unless this data set can carry the run: its index, vocabulary and sizes."""
        if self.digest.hex() != spec.data.index:
            raise ConfigError(
                f"the data set's index is {self.digest.hex()}, the run spec says {spec.data.index}: get the run's data"
            )
        if self.index.vocabulary > spec.model.vocabulary:
            raise ConfigError(
                f"the data set's vocabulary is {self.index.vocabulary}, the model has {spec.model.vocabulary} rows: "
                "set model.vocabulary at least as large"
            )
        if self.train.num_tokens != spec.data.num_tokens:
            raise ConfigError(
                f"the training split has {self.train.num_tokens} tokens, the run spec says {spec.data.num_tokens}"
            )
        available = (self.held_out.num_tokens - 1) // spec.model.context
        if available < spec.data.held_out_sequences:
            raise ConfigError(
                f"the held-out split is too small: it has {available} sequences of {spec.model.context} tokens, "
                f"data.held_out_sequences asks for {spec.data.held_out_sequences}; build with more data"
            )


def npy_header(dtype: np.dtype[np.unsignedinteger], num_tokens: int) -> bytes:
    """The header of every shard, as numpy writes it (format 1.0). It is compared, not parsed: numpy's parser of
    headers is not made for files from strangers."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({num_tokens},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


def _open_shard(path: Path, entry: ShardEntry, index: Index) -> NDArray[np.unsignedinteger]:
    """The verified memory map of one shard. Raises ConfigError with what is wrong and what to do."""
    again = "delete it and build or download it again"
    dtype = np.dtype(f"<u{np.dtype(index.dtype).itemsize}")
    expected_bytes = NPY_HEADER_BYTES + entry.num_tokens * dtype.itemsize
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(NPY_HEADER_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"shard {path} is missing; build or download the data set again") from None
    except OSError as fault:
        raise ConfigError(f"cannot read shard {path}: {fault.strerror}") from None
    if size != expected_bytes:
        raise ConfigError(
            f"shard {path} has {size} bytes, {entry.num_tokens} tokens of {index.dtype} take {expected_bytes}: it was "
            f"cut short or is another file; {again}"
        )
    if header != npy_header(dtype, entry.num_tokens):
        raise ConfigError(f"shard {path} is no .npy file of {entry.num_tokens} {index.dtype} in one row; {again}")
    array: NDArray[np.unsignedinteger] = np.memmap(
        path, dtype=dtype, mode="r", offset=NPY_HEADER_BYTES, shape=(entry.num_tokens,)
    )
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_TOKENS):
            digest.update(piece)
    if digest.hexdigest() != entry.sha256:
        raise ConfigError(f"shard {path} has sha256 {digest.hexdigest()}, its index says {entry.sha256}; {again}")
    for begin in range(0, entry.num_tokens, _PIECE_TOKENS):
        highest = int(array[begin : begin + _PIECE_TOKENS].max())
        if highest >= index.vocabulary:
            raise ConfigError(
                f"shard {path} contains token {highest}, but the vocabulary has {index.vocabulary}: it was built with "
                "another tokenizer; build the data set again"
            )
    return array


def build(
    source: str,
    out: Path,
    *,
    limit_bytes: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    held_out_fraction: float = 0.05,
    tokenizer: Path | None = None,
    on_document: Callable[[int], None] | None = None,
) -> Digest:
    """Tokenise a source (training/sources.py) into shards under `out`; returns the index's digest.

    limit_bytes: stop after this many bytes of text. held_out_fraction: share of tokens kept from training, by whole
    documents. tokenizer: a local tokenizer.json (None: bytes). on_document(bytes so far) reports progress.
    The same source gives the same bytes. index.json is written last: a build that was cut short is not a data set.
    Raises ConfigError for an unknown or unusable source, a folder that already holds a data set, or too little text.
    """
    if not 0.0 < held_out_fraction < 1.0:
        raise ConfigError(f"the held-out fraction is {held_out_fraction}; it has to lie between 0 and 1")
    if shard_tokens < 1:
        raise ConfigError(f"a shard of {shard_tokens} tokens is impossible; use at least 1")
    if (out / INDEX).exists():
        raise ConfigError(f"{out} already holds a data set; choose another folder or delete it")
    codec = byte_tokenizer() if tokenizer is None else open_tokenizer(tokenizer)
    dtype: Literal["uint16", "uint32"] = "uint16" if codec.vocabulary <= 1 << 16 else "uint32"
    texts = documents(source)
    out.mkdir(parents=True, exist_ok=True)
    train = _Writer(out, "train", dtype, shard_tokens)
    held_out = _Writer(out, "held-out", dtype, shard_tokens)
    num_bytes = 0
    for text in texts:
        if limit_bytes is not None:
            # By characters: the last document may end a few bytes early, never in the middle of a character.
            text = text.encode()[: limit_bytes - num_bytes].decode(errors="ignore")
        num_bytes += len(text.encode())
        tokens = np.append(codec.encode(text), codec.separator)
        # The first document is held out, then whichever keeps the share: exact for any source, and a prefix of a
        # source splits as the whole does.
        share = held_out_fraction * (train.num_tokens + held_out.num_tokens)
        (held_out if held_out.num_tokens <= share else train).add(tokens)
        if on_document is not None:
            on_document(num_bytes)
        if limit_bytes is not None and num_bytes >= limit_bytes:
            break
    if not train.num_tokens or not held_out.num_tokens:
        raise ConfigError(
            f"the source {source!r} is too small: it needs at least two documents, one to train on and one held out"
        )
    index = Index(
        version=1,
        tokenizer=codec.name,
        vocabulary=codec.vocabulary,
        dtype=dtype,
        train=train.close(),
        held_out=held_out.close(),
    )
    data = (json.dumps(index.model_dump(mode="json"), indent=1) + "\n").encode()
    _write_whole(out / INDEX, data)
    return Digest(sha256(data).digest())


class _Writer:
    """Collects tokens of a split and writes a shard whenever one is full."""

    def __init__(self, folder: Path, name: str, dtype: Literal["uint16", "uint32"], shard_tokens: int) -> None:
        self._folder, self._name, self._shard_tokens = folder, name, shard_tokens
        self._dtype = np.dtype(f"<u{np.dtype(dtype).itemsize}")
        self._buffer: list[NDArray[np.unsignedinteger]] = []
        self._buffered = 0
        self._entries: list[ShardEntry] = []
        self.num_tokens = 0

    def add(self, tokens: NDArray[np.uint32]) -> None:
        self._buffer.append(tokens.astype(self._dtype))
        self._buffered += len(tokens)
        self.num_tokens += len(tokens)
        while self._buffered >= self._shard_tokens:
            joined = np.concatenate(self._buffer)
            self._write(joined[: self._shard_tokens])
            self._buffer = [joined[self._shard_tokens :]]
            self._buffered = len(self._buffer[0])

    def close(self) -> tuple[ShardEntry, ...]:
        if self._buffered:
            self._write(np.concatenate(self._buffer))
        return tuple(self._entries)

    def _write(self, tokens: NDArray[np.unsignedinteger]) -> None:
        file = f"{self._name}-{len(self._entries):05d}.npy"
        partial = self._folder / f"{file}.partial"
        data = npy_header(self._dtype, len(tokens)) + tokens.tobytes()
        partial.write_bytes(data)
        os.replace(partial, self._folder / file)
        self._entries.append(ShardEntry(file=file, sha256=sha256(data).hexdigest(), num_tokens=len(tokens)))


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)
