"""Building a data set."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.types import Digest
from training.index import INDEX, SHARD_TOKENS, Index, ShardEntry, list_leaves, npy_header
from training.sources import documents
from training.tokens import byte_tokenizer, open_tokenizer


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
        version=2,
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
        leaves = list_leaves(data)
        _write_whole((self._folder / file).with_suffix(".leaves"), leaves)
        self._entries.append(
            ShardEntry(
                file=file, sha256=sha256(data).hexdigest(), leaves=sha256(leaves).hexdigest(), num_tokens=len(tokens)
            )
        )


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)
