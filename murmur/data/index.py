"""A data set's index.json and its file formats, by which bytes from strangers are verified as the run's text.

The run spec names the sha256 of index.json; the index names the sha256 of every shard and of its list of leaves. A leaf
is the hash of a block of 64 KiB (murmur/protocol/merkle.py). So any range of a shard is verified with its list (32 KiB
for a full shard) and the blocks that the range touches: docs/decisions/0039-ranges-of-shards.md. No numpy: plans use
this module too.
"""

import json
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from murmur.protocol.merkle import leaf
from murmur.protocol.types import DIGEST_BYTES, Digest

INDEX = "index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
"""Files next to the index; the first exists unless the tokenizer is bytes."""
MAX_INDEX_BYTES = 64 << 20
SHARD_TOKENS = 1 << 24
NPY_HEADER_BYTES = 128
BLOCK_BYTES = 1 << 16

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class ShardEntry(BaseModel):
    """One file of a split. The name is bare and cannot leave the folder. `leaves` is the sha256 of its list of leaves,
    stored next to it as NAME.leaves and in buckets as a blob."""

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


class Provenance(BaseModel):
    """Where a data set's text is from. documents, tokens: of this source, each text as often as it stands in the data
    set. text_bytes: of all usable rows, in UTF-8. skipped: rows that could not be used, by kind. share: of its
    documents that is used. changed: text files of which a byte order mark or
    carriage returns were kept out. unknown: tokens that stand for text that the tokenizer does not know. reframed:
    documents of others' tokens that began or ended otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: _Name
    documents: _Count
    tokens: _Count
    text_bytes: _Count = 0
    skipped: Annotated[dict[_Name, _Count], Field(max_length=32)] = {}
    share: Annotated[float, Field(ge=0, le=100)] = 1.0
    changed: _Count = 0
    unknown: _Count = 0
    reframed: _Count = 0


class Index(BaseModel):
    """The content of index.json. Every token is below `vocabulary`.

    `tokenizer` is "bytes" or the sha256 of tokenizer.json. `tokenizer_config` is the sha256 of tokenizer_config.json,
    which holds the chat template (murmur/data/tokenizer.py). `end` ends each document, `bos` begins it, if not None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[3]
    tokenizer: Literal["bytes"] | _Hex
    tokenizer_config: _Hex
    vocabulary: Annotated[int, Field(gt=0, le=1 << 32)]
    dtype: Literal["uint16", "uint32"]
    bos: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    end: Annotated[int, Field(ge=0, lt=1 << 32)]
    sources: Annotated[tuple[Provenance, ...], Field(max_length=10_000)] = ()
    train: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]
    held_out: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4

    @property
    def tokenizer_files(self) -> dict[str, Digest]:
        """Name -> sha256 of the tokenizer's files next to the index."""
        named = {} if self.tokenizer == "bytes" else {TOKENIZER: self.tokenizer}
        named |= {TOKENIZER_CONFIG: self.tokenizer_config}
        return {name: Digest(bytes.fromhex(digest)) for name, digest in named.items()}

    def to_bytes(self) -> bytes:
        """Return the file's bytes, which its digest is computed from."""
        return (json.dumps(self.model_dump(mode="json", exclude_none=True), separators=(",", ":")) + "\n").encode()

    def file_bytes(self, entry: ShardEntry) -> int:
        """Return a shard's size: header and tokens."""
        return NPY_HEADER_BYTES + entry.num_tokens * self.token_bytes


def npy_header(token_bytes: int, num_tokens: int) -> bytes:
    """Return the header of every shard, as numpy writes it (format 1.0). Readers compare it and do not parse it:
    numpy's parser is not made for files from strangers."""
    text = f"{{'descr': '<u{token_bytes}', 'fortran_order': False, 'shape': ({num_tokens},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


# --- blocks ------------------------------------------------------------------------------------------------------


def leaves_bytes(file_bytes: int) -> int:
    """Return the size of a file's list of leaves."""
    return -(-file_bytes // BLOCK_BYTES) * DIGEST_BYTES


def list_leaves(data: bytes | memoryview) -> bytes:
    """Return the leaves of a file's blocks, concatenated; the last block may be shorter."""
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
