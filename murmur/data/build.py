"""Building a data set: text from several sources, tokenised by several processes, shuffled, and cut into shards.

The result follows from the text and the options alone. First all text becomes sorted runs (murmur/data/sorted_runs.py);
then it is counted where in the order which document stands; then every shard picks its own out of the runs. Each step
leaves whole files, so a build that was cut short goes on where it was when the same command is given again. Memory
holds a run for each process, or a shard, however long the text is; the disk holds the tokens twice until the build is
done.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain, islice
from math import ceil, floor
from multiprocessing import get_context, parent_process
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from murmur.data import sorted_runs
from murmur.data.index import (
    INDEX,
    SHARD_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Index,
    ShardEntry,
    list_leaves,
    npy_header,
)
from murmur.data.sorted_runs import DRAWS, Batch, Table, batches, digest_of, read_documents, read_table, write_run
from murmur.data.sources import documents
from murmur.data.tokenizer import Tokenizer
from murmur.files import write
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest

J = TypeVar("J")
R = TypeVar("R")

BUILDING = "building"
"""Folder of what is needed until the data set is done."""
_OPTIONS, _ORDER = "options.json", "order.json"
_BINS_PER_SHARD = 4


def build(
    source: str | Mapping[str, float],
    out: Path,
    *,
    seed: int = 0,
    limit_bytes: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    held_out_fraction: float = 0.05,
    tokenizer: Path | None = None,
    processes: int = 1,
    on_text: Callable[[int], None] = lambda num_bytes: None,
    on_shard: Callable[[int, int], None] = lambda done, total: None,
) -> Digest:
    """Tokenise a source (murmur/data/sources.py), or several, into shards under `out`; returns the index's digest.

    source: with several, the share of tokens of each, in any unit. The source that is too small for its share is used
    whole, of each of the others a drawn part. seed: documents stand in an order drawn from it, of all sources together.
    limit_bytes: read no more text than that of each source. held_out_fraction: share of tokens kept from training, by
    whole documents. tokenizer: a local tokenizer.json (None: bytes). processes: that tokenise and write beside each
    other. on_text(bytes read so far), on_shard(done, total) report progress.

    The same text and options give the same bytes. index.json is written last: a build that was cut short is not a data
    set; the same call goes on with it. Raises ConfigError for an unknown or unusable source, a folder that already
    holds a data set or another unfinished build, or too little text.
    """
    sources = {source: 1.0} if isinstance(source, str) else dict(source)
    _require_possible(sources, seed, shard_tokens, held_out_fraction)
    work = out / BUILDING
    if (out / INDEX).exists():
        if not work.exists():
            raise ConfigError(f"{out} already holds a data set; choose another folder or delete it")
        return _tidied(out)  # it was cut short behind its last step
    codec = sorted_runs.tokenizer_of(tokenizer)
    texts = [documents(name) for name in sources]
    options = {
        "sources": list(sources.items()),
        "seed": seed,
        "limit_bytes": limit_bytes,
        "shard_tokens": shard_tokens,
        "held_out_fraction": held_out_fraction,
        "tokenizer": codec.name,
    }
    _begin(work, options)
    token_bytes = _token_bytes(codec)
    if not (work / _ORDER).exists():
        found = _tokenise(texts, work, seed, limit_bytes, tokenizer, token_bytes, processes, on_text)
        _write_json(work / _ORDER, _ordered(work, found, sources, shard_tokens).to_json())
    order, digest = _read_order(work)
    held_out = _held_out_tokens(order, held_out_fraction, sources)
    shards = _shards(work, digest, held_out, order.num_tokens, shard_tokens, token_bytes)
    entries: dict[str, ShardEntry] = {}
    small = order.num_tokens <= shard_tokens
    for shard, entry in zip(shards, _parallel_map(_write_shard, shards, 1 if small else processes), strict=True):
        entries[shard.name] = entry
        on_shard(len(entries), len(shards))
    _write_index(out, codec, entries)
    return _tidied(out)


def _require_possible(sources: Mapping[str, float], seed: int, shard_tokens: int, held_out_fraction: float) -> None:
    """Raises ConfigError for options that give no data set."""
    if not 0.0 < held_out_fraction < 1.0:
        raise ConfigError(f"the held-out fraction is {held_out_fraction}; it has to lie between 0 and 1")
    if shard_tokens < 1:
        raise ConfigError(f"a shard of {shard_tokens} tokens is impossible; use at least 1")
    if not sources or not all(0 < weight < float("inf") for weight in sources.values()):
        raise ConfigError("every source needs a weight above 0")
    if not -(1 << 63) <= seed < 1 << 63:
        raise ConfigError(f"the seed is {seed}; it has to fit into 64 bits")


def _begin(work: Path, options: dict[str, Any]) -> None:
    """Begin a build with these options, or go on with one. Raises ConfigError when it had others."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / _OPTIONS
    if not path.exists():
        _write_json(path, options)
    elif json.loads(path.read_text()) != json.loads(json.dumps(options)):
        raise ConfigError(
            f"{work} is what an unfinished build with other options has left: give the same options to go on with it, "
            "or delete this folder to begin anew"
        )


def _tidied(out: Path) -> Digest:
    """Remove what is not needed any more; the index's digest."""
    for partial in out.glob("*.partial"):
        partial.unlink()
    rmtree(out / BUILDING)
    return Digest(sha256((out / INDEX).read_bytes()).digest())


# --- text into runs ----------------------------------------------------------------------------------------------


def _tokenise(
    texts: Sequence[Iterator[str]],
    work: Path,
    seed: int,
    limit_bytes: int | None,
    tokenizer: Path | None,
    token_bytes: int,
    processes: int,
    on_text: Callable[[int], None],
) -> list[tuple[int, str]]:
    """All text as runs: source and file name of each. Runs that are there already stay; their names hold the digests of
    their text, so it is read again, and what has changed since is made anew."""
    found: list[tuple[int, str]] = []
    num_bytes = 0

    def missing() -> Iterator[Batch]:
        nonlocal num_bytes
        for source, stream in enumerate(texts):
            for first, size, lot in batches(_limited(stream, limit_bytes), sorted_runs.RUN_BYTES):
                name = f"{source:03d}-{first:012d}-{digest_of(lot)[:32]}.run"
                found.append((source, name))
                if not (work / name).exists():
                    yield Batch(work / name, seed, source, first, lot, tokenizer, token_bytes)
                num_bytes += size
                on_text(num_bytes)

    for _ in _parallel_map(write_run, missing(), processes):
        pass
    return found


def _limited(texts: Iterable[str], limit_bytes: int | None) -> Iterator[str]:
    left = limit_bytes
    for text in texts:
        if left is None:
            yield text
            continue
        data = text.encode()
        # By characters: the last document may end a few bytes early, never in the middle of a character.
        cut = data[:left].decode(errors="ignore")
        if cut:
            yield cut
        left -= len(data)
        if left <= 0:
            return


# --- the order of documents --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """All documents in one order: by position, draw / DRAWS over the share that is used of the document's source; what
    stands at 1 or above is not used. Equal ones stand as they were read.

    runs: source and path, in the order of reading. starts[i]: tokens before bin i of `bins` (a power of two) equal bins
    of positions.
    """

    runs: tuple[tuple[int, Path], ...]
    shares: tuple[float, ...]
    starts: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def bins(self) -> int:
        return len(self.starts) - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": [[source, path.name] for source, path in self.runs],
            "shares": [share.hex() for share in self.shares],
            "starts": self.starts.tolist(),
        }

    def boundary(self, fraction: float) -> int:
        """Where the first document ends with which this share of all tokens is reached; at the latest where the last
        one begins. 0 where there are not two documents."""
        target = max(1, ceil(fraction * self.num_tokens))
        if not self.num_tokens:
            return 0
        at = int(np.searchsorted(self.starts, target, side="left")) - 1
        pieces = [(places, table) for _, _, table, places in self.between(at, at + 1)]
        order = np.argsort(np.concatenate([places for places, _ in pieces]), kind="stable")
        lengths = np.concatenate([table.lengths for _, table in pieces]).astype(np.int64)[order]
        ends = int(self.starts[at]) + np.cumsum(lengths)
        reached = int(np.searchsorted(ends, target, side="left"))
        end = int(ends[reached])
        return end if end < self.num_tokens else end - int(lengths[reached])

    def between(self, first: int, end: int) -> Iterator[tuple[Path, int, Table, NDArray[np.float64]]]:
        """Of every run the documents in bins first .. end - 1: their first one's number, table and positions."""
        for source, path in self.runs:
            table, share = read_table(path), self.shares[source]
            # The draws at the borders, give or take what rounding may have moved.
            low, high = (at / self.bins * share * DRAWS for at in (first, end))
            begin = int(np.searchsorted(table.draws, max(0, floor(low) - 8)))
            stop = int(np.searchsorted(table.draws, ceil(high) + 8))
            places = positions(table.draws[begin:stop], share)
            bins = np.floor(places * self.bins)
            begin, stop = begin + int(np.sum(bins < first)), begin + int(np.sum(bins < end))
            if begin < stop:
                piece = Table(table.draws[begin:stop], table.lengths[begin:stop])
                yield path, begin, piece, positions(piece.draws, share)


def positions(draws: NDArray[np.uint64], share: float) -> NDArray[np.float64]:
    """Exact in all but one division, so the same on every machine."""
    return draws.astype(np.float64) / DRAWS / share


def _ordered(work: Path, found: Sequence[tuple[int, str]], sources: Mapping[str, float], shard_tokens: int) -> _Order:
    """Count where documents stand. Raises ConfigError for a source without text."""
    paths = tuple((source, work / name) for source, name in found)
    tokens = [0] * len(sources)
    for source, path in paths:
        tokens[source] += int(read_table(path).lengths.sum(dtype=np.int64))
    for name, count in zip(sources, tokens, strict=True):
        if not count:
            raise ConfigError(f"the source {name!r} is too small: there is no text in it")
    scales = [count / weight for count, weight in zip(tokens, sources.values(), strict=True)]
    shares = tuple(min(scales) / scale for scale in scales)
    bins = 1
    while bins < _BINS_PER_SHARD * sum(tokens) / shard_tokens:
        bins *= 2
    counted = np.zeros(bins, np.int64)
    for source, path in paths:
        table = read_table(path)
        places = np.floor(positions(table.draws, shares[source]) * bins).astype(np.int64)
        used = places < bins
        np.add.at(counted, places[used], table.lengths[used].astype(np.int64))
    return _Order(paths, shares, np.concatenate([np.zeros(1, np.int64), np.cumsum(counted)]))


def _held_out_tokens(order: _Order, fraction: float, sources: Iterable[str]) -> int:
    """How many tokens of the order are kept from training. Raises ConfigError for a text of one document."""
    held_out = order.boundary(fraction)
    if not held_out:
        raise ConfigError(
            f"the text of {', '.join(sources)} is too small: it needs at least two documents, one to train on and one "
            "held out"
        )
    return held_out


def _read_order(work: Path) -> tuple[_Order, str]:
    data = (work / _ORDER).read_bytes()
    digest = sha256(data).hexdigest()
    return _order(work, digest), digest


@lru_cache(maxsize=1)
def _order(work: Path, digest: str) -> _Order:
    """Read once a process. `digest`: of the file."""
    table = json.loads((work / _ORDER).read_bytes())
    return _Order(
        tuple((source, work / name) for source, name in table["runs"]),
        tuple(float.fromhex(share) for share in table["shares"]),
        np.array(table["starts"], np.int64),
    )


# --- runs into shards --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shard:
    """Tokens begin .. end - 1 of the order, to become a file of the folder above `work`."""

    work: Path
    order: str
    name: str
    begin: int
    end: int
    token_bytes: int


def _shards(
    work: Path, order: str, held_out: int, num_tokens: int, shard_tokens: int, token_bytes: int
) -> list[_Shard]:
    """All shards: of the tokens before `held_out`, and of those from there on."""
    return [
        _Shard(work, order, name, begin + at, min(begin + at + shard_tokens, end), token_bytes)
        for split, begin, end in (("held-out", 0, held_out), ("train", held_out, num_tokens))
        for at in range(0, end - begin, shard_tokens)
        for name in [f"{split}-{at // shard_tokens:05d}"]
    ]


def _write_index(out: Path, codec: Tokenizer, entries: Mapping[str, ShardEntry]) -> None:
    """The tokenizer's files, and last of all index.json. entries: by the shard's name."""
    write(out / TOKENIZER_CONFIG, codec.config)
    if codec.file is not None:
        write(out / TOKENIZER, codec.file)
    index = Index(
        version=2,
        tokenizer=codec.name,
        tokenizer_config=sha256(codec.config).hexdigest(),
        vocabulary=codec.vocabulary,
        dtype="uint16" if _token_bytes(codec) == 2 else "uint32",
        train=tuple(entry for name, entry in entries.items() if name.startswith("train")),
        held_out=tuple(entry for name, entry in entries.items() if name.startswith("held-out")),
    )
    write(out / INDEX, index.to_bytes())


def _token_bytes(codec: Tokenizer) -> int:
    return 2 if codec.vocabulary <= 1 << 16 else 4


def _write_shard(shard: _Shard) -> ShardEntry:
    """Write a shard and its list of leaves, unless that is done."""
    out, done = shard.work.parent, shard.work / f"{shard.name}.json"
    path, leaves_path = out / f"{shard.name}.npy", out / f"{shard.name}.leaves"
    if done.exists():
        return ShardEntry.model_validate_json(done.read_bytes())
    data = npy_header(shard.token_bytes, shard.end - shard.begin) + _tokens(shard).tobytes()
    leaves = list_leaves(data)
    write(leaves_path, leaves)
    write(path, data)
    entry = ShardEntry(
        file=path.name,
        sha256=sha256(data).hexdigest(),
        leaves=sha256(leaves).hexdigest(),
        num_tokens=shard.end - shard.begin,
    )
    _write_json(done, entry.model_dump(mode="json"))
    return entry


def _tokens(shard: _Shard) -> NDArray[np.unsignedinteger]:
    order = _order(shard.work, shard.order)
    first = int(np.searchsorted(order.starts, shard.begin, side="right")) - 1
    end = int(np.searchsorted(order.starts, shard.end, side="left"))
    found: list[NDArray[np.unsignedinteger]] = []
    places: list[NDArray[np.float64]] = []
    for path, number, table, at in order.between(first, end):
        ends = np.cumsum(table.lengths, dtype=np.int64)
        found += np.split(read_documents(path, number, table, shard.token_bytes), ends[:-1])
        places.append(at)
    in_order = np.argsort(np.concatenate(places), kind="stable")
    skipped = shard.begin - int(order.starts[first])
    return np.concatenate([found[at] for at in in_order])[skipped : skipped + shard.end - shard.begin]


# --- processes ---------------------------------------------------------------------------------------------------


def _parallel_map(work: Callable[[J], R], jobs: Iterable[J], processes: int) -> Iterator[R]:
    """work(job) of every job, in order, by so many processes, which are few jobs ahead of the caller."""
    jobs = iter(jobs)
    head = list(islice(jobs, 2))
    jobs = chain(head, jobs)
    if processes == 1 or len(head) < 2:
        yield from map(work, jobs)
        return
    # Not forked: what uses this may have threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=end_with_parent) as pool:
        begun: deque[Future[R]] = deque()
        try:
            for job in jobs:
                begun.append(pool.submit(work, job))
                if len(begun) > processes:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


def end_with_parent() -> None:
    """A process of a pool whose parent was killed would wait for work for ever."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


def _write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value).encode())
