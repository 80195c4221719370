"""A data set's index.json and the form of its files: what makes bytes from strangers the run's text.

The run spec names the sha256 of index.json, the index the sha256 of every shard and of its list of leaves. A leaf is
the hash of a block of 64 KiB (protocol/merkle.py), so any range of a shard is verified with its list, 32 KiB for a full
one, and the blocks that it touches: docs/decisions/0039-ranges-of-shards.md. No numpy: plans are made of this too.
"""

import json
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.merkle import leaf
from protocol.types import DIGEST_BYTES, Digest

INDEX = "index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
"""Beside it; the first one is there unless text is bytes."""
MAX_INDEX_BYTES = 64 << 20
SHARD_TOKENS = 1 << 24
NPY_HEADER_BYTES = 128
BLOCK_BYTES = 1 << 16

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ShardEntry(BaseModel):
    """One file of a split. The name is a bare one that cannot leave the folder; `leaves` is the sha256 of its list of
    leaves, which lies beside it as NAME.leaves and in buckets as a blob."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.npy$")]
    sha256: _Hex
    leaves: _Hex
    num_tokens: Annotated[int, Field(gt=0, lt=1 << 40)]

    @property
    def leaves_file(self) -> str:
        return f"{self.file.removesuffix('.npy')}.leaves"

    @property
    def digest(self) -> Digest:
        return Digest(bytes.fromhex(self.sha256))

    @property
    def leaves_digest(self) -> Digest:
        return Digest(bytes.fromhex(self.leaves))


class Index(BaseModel):
    """index.json. `tokenizer` is "bytes" or the sha256 of tokenizer.json, `tokenizer_config` the sha256 of
    tokenizer_config.json, in which the chat template stands (training/tokenizer.py): None in data sets of earlier
    releases, whose vocabulary has no ids for turns. Every token is below `vocabulary`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[2]
    tokenizer: Literal["bytes"] | _Hex
    tokenizer_config: _Hex | None = None
    vocabulary: Annotated[int, Field(gt=0, le=1 << 32)]
    dtype: Literal["uint16", "uint32"]
    train: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]
    held_out: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4

    @property
    def tokenizer_files(self) -> dict[str, Digest]:
        """Name -> sha256 of the files beside the index that say how text and tokens belong together."""
        named = {TOKENIZER: None if self.tokenizer == "bytes" else self.tokenizer}
        named |= {TOKENIZER_CONFIG: self.tokenizer_config}
        return {name: Digest(bytes.fromhex(digest)) for name, digest in named.items() if digest is not None}

    def to_bytes(self) -> bytes:
        """What its digest is of."""
        return (json.dumps(self.model_dump(mode="json", exclude_none=True), separators=(",", ":")) + "\n").encode()

    def file_bytes(self, entry: ShardEntry) -> int:
        """Size of a shard: header and tokens."""
        return NPY_HEADER_BYTES + entry.num_tokens * self.token_bytes


def npy_header(token_bytes: int, num_tokens: int) -> bytes:
    """The header of every shard, as numpy writes it (format 1.0). It is compared, not parsed: numpy's parser of
    headers is not made for files from strangers."""
    text = f"{{'descr': '<u{token_bytes}', 'fortran_order': False, 'shape': ({num_tokens},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


# --- blocks ------------------------------------------------------------------------------------------------------


def leaves_bytes(file_bytes: int) -> int:
    """Size of the list of leaves of a file."""
    return -(-file_bytes // BLOCK_BYTES) * DIGEST_BYTES


def list_leaves(data: bytes | memoryview) -> bytes:
    """The leaves of a file's blocks, one after the other; the last block is what is left."""
    view = memoryview(data)
    return b"".join(leaf(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES))


def is_list(data: bytes | memoryview, entry: ShardEntry) -> bool:
    """Whether this is the entry's list of leaves."""
    return sha256(data).digest() == entry.leaves_digest


def are_blocks(data: bytes | memoryview, first_block: int, leaves: bytes) -> bool:
    """Whether these are the blocks from `first_block` on of the file with this list of leaves."""
    begin = first_block * DIGEST_BYTES
    found = list_leaves(data)
    return bool(found) and leaves[begin : begin + len(found)] == found
