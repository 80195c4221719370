"""Pre-tokenised shards: tokens read by position.

A data set is a folder of one-dimensional .npy files and an index.json (murmur/data/index.py), built by
murmur/data/build.py. Every node trains on the same tokens at the same positions. Files are memory-mapped, never
unpickled. Missing files may come from strangers (murmur/data/remote_files.py): ranges in memory for readers of a few
sequences, whole files for miners that train on their pages. Every block is verified before its first token is used.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from murmur.data.index import (
    BLOCK_BYTES,
    INDEX,
    MAX_INDEX_BYTES,
    NPY_HEADER_BYTES,
    Index,
    ShardEntry,
    are_blocks,
    is_list,
    leaves_bytes,
    npy_header,
)
from murmur.data.remote_files import BlobRange, File, Remote
from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import fault_lines
from murmur.protocol.spec import TrainingSpec
from murmur.protocol.types import Digest, Page

Fetch = Callable[[Digest, int, Path], None]
"""fetch(digest, max_bytes, path): store the blob with that sha256 at `path`; refuse more than `max_bytes` unread. It
may raise any MurmurError; the caller verifies the stored blob."""

_PIECE_TOKENS = 1 << 20
_OPEN_SHARDS = 64
"""Memory maps kept open: a process may have some 65,000, and a large data set has more shards."""

Tokens = NDArray[np.int64]
_Array = NDArray[np.unsignedinteger]
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens begin .. end - 1 of shard `number`."""

    number: int
    begin: int
    end: int

    def blocks(self, token_bytes: int) -> range:
        """Return the blocks of the file that hold them."""
        first, last = (NPY_HEADER_BYTES + at * token_bytes for at in (self.begin, self.end))
        return range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES))


class Split:
    """The shards of one split as a single sequence of tokens."""

    _remote: Remote | None = None

    def __init__(
        self, folder: Path, index: Index, entries: tuple[ShardEntry, ...], remote: Remote | None, max_bytes: int | None
    ) -> None:
        self._folder, self._index, self._entries, self._remote = folder, index, entries, remote
        self._max_bytes = max_bytes
        self._starts = [0, *accumulate(entry.num_tokens for entry in entries)]
        self._open: dict[int, _Bytes] = {}
        self._verified: dict[int, bytearray] = {}
        """For each block of a shard whether this process has verified it."""

    @property
    def num_tokens(self) -> int:
        return self._starts[-1]

    def tokens(self, first: int, count: int) -> Tokens:
        """Return tokens first .. first + count - 1: `read` of one run."""
        return self.read([(first, count)])[0]

    def read(self, runs: Sequence[tuple[int, int]]) -> list[Tokens]:
        """Return for each (first, count) tokens first .. first + count - 1 as a fresh int64 array; runs cross shards.

        Of shards in the folder the blocks of these tokens are verified; all, where the list of leaves is not there.
        From other shards these blocks are fetched, concurrently: pass many runs at once. Raises ConfigError for a bad
        shard, ValueError outside the split, and the errors of murmur/data/remote_files.py.
        """
        spans = [list(self._spans(first, count)) for first, count in runs]
        flat = [span for run in spans for span in run]
        needed: dict[int, set[int]] = {}
        for span in flat:
            needed.setdefault(span.number, set()).update(span.blocks(self._index.token_bytes))
        here = {number: self._here(number, blocks) for number, blocks in needed.items()}
        away = iter(self._away([span for span in flat if here[span.number] is None]))
        found: list[Tokens] = []
        for run in spans:
            pieces: list[_Array] = []
            for span in run:
                array = here[span.number]
                pieces.append(next(away) if array is None else array[span.begin : span.end])
            found.append(np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64, copy=False))
        return found

    def verify(self, on_shard: Callable[[int, int], None] | None = None) -> None:
        """Verify every shard of the folder now, all of it; on_shard(done, total) after each. Raises ConfigError."""
        for number in range(len(self._entries)):
            self._here(number)
            if on_shard is not None:
                on_shard(number + 1, len(self._entries))

    @property
    def is_fetched(self) -> bool:
        """Whether shards missing from the folder are fetched from others."""
        return self._remote is not None

    def hold(self, pages: Sequence[Page]) -> None:
        """Fetch into the folder all shards with these pages, and with the token after each, which the loader reads too.

        Where shards come from others, the least recently needed make room for them (`make_room`). Raises
        the errors of murmur/data/remote_files.py.
        """
        if self._remote is None:
            return
        files = [self._file(number) for number in self._numbers(pages)]
        needed = [file.path for file in files]
        use(needed)
        lacking = [file for file in files if not file.path.exists()]
        if lacking:
            if self._max_bytes is not None:
                coming = sum(file.num_bytes for file in lacking)
                make_room(self._folder, self._max_bytes, needed=needed, coming_bytes=coming)
            self._remote.fetch(lacking)

    def most_bytes(self, num_pages: int, page_tokens: int) -> int:
        """Return the largest total size of the shards that `num_pages` pages can lie in."""
        largest = max(self._entries, key=lambda entry: entry.num_tokens)
        return num_pages * (2 + page_tokens // largest.num_tokens) * self._index.file_bytes(largest)

    def _numbers(self, pages: Iterable[Page]) -> list[int]:
        """Return the shards that hold these pages and the token after each."""
        spans = (span for page in pages for span in self._spans(page.first, page.num_tokens + 1))
        return sorted({span.number for span in spans})

    def _spans(self, first: int, count: int) -> Iterator[_Span]:
        if first < 0 or count < 0 or first + count > self.num_tokens:
            raise ValueError(f"tokens {first} to {first + count} are outside a split of {self.num_tokens} tokens")
        position, end = first, first + count
        while position < end:
            number = bisect_right(self._starts, position) - 1
            start, upto = self._starts[number], min(end, self._starts[number + 1])
            yield _Span(number, position - start, upto - start)
            position = upto

    def _file(self, number: int) -> File:
        entry = self._entries[number]
        return File(entry.digest, self._index.file_bytes(entry), self._folder / entry.file)

    # --- in the folder ---------------------------------------------------------------------------------------

    def _here(self, number: int, blocks: Collection[int] = ()) -> _Array | None:
        """Return the memory map of a shard, these of its blocks verified, or all of it; None when it has to come from
        others. A damaged one is removed if others have it."""
        file, entry = self._file(number), self._entries[number]
        if self._remote is not None and not file.path.exists():
            self._forget(number)
            return None
        try:
            if number not in self._open:
                data = _open_shard(file.path, entry, self._index)
                if len(self._open) >= _OPEN_SHARDS:
                    del self._open[next(iter(self._open))]
                self._open[number] = data
            data = self._open[number]
            verified = self._verified.setdefault(number, bytearray(-(-file.num_bytes // BLOCK_BYTES)))
            lacking = [block for block in blocks or range(len(verified)) if not verified[block]]
            leaves = b""
            if blocks and lacking:
                leaves = _read_leaves(self._folder / entry.leaves_file, entry, file.num_bytes)
            if leaves:
                _verify_blocks(data, lacking, leaves, file.path, self._index)
            elif lacking:
                _verify_whole(data, file.path, entry, self._index)
                lacking = list(range(len(verified)))
        except ConfigError:
            self._forget(number)
            if self._remote is None:
                raise
            file.path.unlink(missing_ok=True)
            return None
        for block in lacking:
            verified[block] = True
        return _tokens(data, self._index)

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)
        self._verified.pop(number, None)

    # --- with others -----------------------------------------------------------------------------------------

    def _away(self, spans: Sequence[_Span]) -> list[_Array]:
        """Return the tokens of spans of shards that are not in the folder: fetch lists of leaves, then the blocks that
        they verify."""
        if not spans or self._remote is None:
            return []
        numbers = sorted({span.number for span in spans})
        lists = dict(zip(numbers, self._remote.read([self._list(number) for number in numbers]), strict=True))
        found = self._remote.read([self._part(span, lists[span.number]) for span in spans])
        return [self._cut(span, data) for span, data in zip(spans, found, strict=True)]

    def _list(self, number: int) -> BlobRange:
        entry = self._entries[number]
        size = leaves_bytes(self._index.file_bytes(entry))
        return BlobRange(entry.leaves_digest, size, 0, size, lambda data: is_list(data, entry))

    def _part(self, span: _Span, leaves: bytes) -> BlobRange:
        file, blocks = self._file(span.number), span.blocks(self._index.token_bytes)
        first, end = blocks.start * BLOCK_BYTES, min(blocks.stop * BLOCK_BYTES, file.num_bytes)
        return BlobRange(
            file.blob,
            file.num_bytes,
            first,
            end - first,
            lambda data: len(data) == end - first and are_blocks(data, blocks.start, leaves),
        )

    def _cut(self, span: _Span, data: bytes) -> _Array:
        size = self._index.token_bytes
        skipped = NPY_HEADER_BYTES + span.begin * size - span.blocks(size).start * BLOCK_BYTES
        array: _Array = np.frombuffer(data, little_endian(size), span.end - span.begin, skipped)
        _require_vocabulary(array, self._entries[span.number].file, self._index)
        return array


class Shards:
    """A data set on disk: `train` and `held_out`."""

    def __init__(
        self, folder: Path, index: Index, digest: Digest, remote: Remote | None, max_bytes: int | None
    ) -> None:
        self.index, self.digest = index, digest
        self.train = Split(folder, index, index.train, remote, max_bytes)
        self.held_out = Split(folder, index, index.held_out, remote, max_bytes)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        index_digest: Digest | None = None,
        remote: Remote | None = None,
        max_bytes: int | None = None,
    ) -> Self:
        """Open the data set in `folder`. With `index_digest` its index must be that one.

        With `remote`, missing files come from there: the index now, text when needed, whole shards within `max_bytes`
        of disk. Raises ConfigError for an index that is missing, broken or another one, and, without `remote`, for a
        missing shard; also the errors of `remote`.
        """
        path = folder / INDEX
        if remote is not None and index_digest is not None and not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            remote.fetch([File(index_digest, MAX_INDEX_BYTES, path, exact=False)])
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
        index = parse_index(data, str(path))
        if remote is None:
            for entry in (*index.train, *index.held_out):
                _open_shard(folder / entry.file, entry, index)
        return cls(folder, index, digest, remote, max_bytes)

    def check(self, spec: TrainingSpec) -> None:
        """Raise ConfigError unless this data set fits the run: its index, vocabulary and sizes."""
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


def parse_index(data: bytes, name: str) -> Index:
    """Return an index of these bytes. Raises ConfigError."""
    try:
        return Index.model_validate_json(data)
    except ValidationError as fault:
        if any(error["loc"] == ("version",) for error in fault.errors()):
            raise ConfigError(
                f"{name} is not a valid index of shards: another release built it, and this one reads version 3. "
                "Build the data set again (murmur shards build): its tokens and digest will be others"
            ) from None
        raise ConfigError(f"{name} is not a valid index of shards:\n" + fault_lines(fault)) from None


_AGAIN = "delete it and build or download it again"


def _open_shard(path: Path, entry: ShardEntry, index: Index) -> _Bytes:
    """Return the memory map of one shard, of which size and header are right. Raises ConfigError with the fault and
    the remedy."""
    expected_bytes = index.file_bytes(entry)
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
            f"cut short or is another file; {_AGAIN}"
        )
    if header != npy_header(index.token_bytes, entry.num_tokens):
        raise ConfigError(f"shard {path} is no .npy file of {entry.num_tokens} {index.dtype} in one row; {_AGAIN}")
    data: _Bytes = np.memmap(path, dtype=np.uint8, mode="r", shape=(expected_bytes,))
    return data


def _tokens(data: _Bytes, index: Index) -> _Array:
    return data[NPY_HEADER_BYTES:].view(little_endian(index.token_bytes))


def _read_leaves(path: Path, entry: ShardEntry, file_bytes: int) -> bytes:
    """Return a shard's list of leaves; nothing where the right one is not there."""
    try:
        with path.open("rb") as file:
            data = file.read(leaves_bytes(file_bytes) + 1)
    except OSError:
        return b""
    return data if is_list(data, entry) else b""


def _verify_blocks(data: _Bytes, blocks: Iterable[int], leaves: bytes, path: Path, index: Index) -> None:
    """Raise ConfigError where one of these blocks of a shard is not what its list of leaves says."""
    for number in blocks:
        begin = number * BLOCK_BYTES
        block = data[begin : begin + BLOCK_BYTES]
        if not are_blocks(block.data, number, leaves):
            raise ConfigError(f"shard {path} is damaged: its block {number} is not what the index says; {_AGAIN}")
        tokens = block[NPY_HEADER_BYTES if number == 0 else 0 :].view(little_endian(index.token_bytes))
        _require_vocabulary(tokens, str(path), index)


def _verify_whole(data: _Bytes, path: Path, entry: ShardEntry, index: Index) -> None:
    """Raise ConfigError where a shard is not what the index says."""
    digest = sha256(data.data).hexdigest()
    if digest != entry.sha256:
        raise ConfigError(f"shard {path} has sha256 {digest}, its index says {entry.sha256}; {_AGAIN}")
    _require_vocabulary(_tokens(data, index), str(path), index)


def little_endian(token_bytes: int) -> np.dtype[np.unsignedinteger]:
    """Return the dtype of tokens in files, independent of this machine."""
    return np.dtype(f"<u{token_bytes}")


def _require_vocabulary(array: _Array, name: str, index: Index) -> None:
    """Raise ConfigError when a token is not below the index's vocabulary."""
    for begin in range(0, len(array), _PIECE_TOKENS):
        highest = int(array[begin : begin + _PIECE_TOKENS].max())
        if highest >= index.vocabulary:
            raise ConfigError(
                f"shard {name} contains token {highest}, but the vocabulary has {index.vocabulary}: it was built with "
                "another tokenizer; build the data set again"
            )


def make_room(folder: Path, max_bytes: int, *, needed: Collection[Path], coming_bytes: int) -> None:
    """Remove shards of `folder`, least recently needed first, until `coming_bytes` more fit into `max_bytes`, or only
    those `needed` are left.

    A file's modification time (set by `use`) is when the shard was last needed. A process killed here has only removed
    fewer. A shard that a process has mapped stays readable to it.
    """
    held = {path: path.stat() for path in folder.glob("*.npy")}
    taken = sum(facts.st_size for facts in held.values())
    spare = sorted((facts.st_mtime_ns, path) for path, facts in held.items() if path not in needed)
    for _, path in spare:
        if taken + coming_bytes <= max_bytes:
            return
        path.unlink(missing_ok=True)
        taken -= held[path].st_size


def use(paths: Collection[Path]) -> None:
    """Mark those of the shards that exist as needed now."""
    for path in paths:
        if path.exists():
            path.touch()
