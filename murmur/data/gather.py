"""The other steps of a build: how many tokens there are and which are held out, then each bucket's shard, then the
index. A bucket's task reads its own files only, so the cost is linear in tokens."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import ceil
from typing import Any

import numpy as np
from datatrove.data import DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from murmur.data import place
from murmur.data.index import (
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Index,
    Provenance,
    ShardEntry,
    list_leaves,
    npy_header,
)
from murmur.data.job import Job
from murmur.data.recipe import HELD_OUT, HELD_OUT_TOKENS
from murmur.data.scatter import Table, read_scattered, read_tables
from murmur.data.shards import little_endian
from murmur.protocol.errors import ConfigError

_HELD_OUT_TOO = "of which another is held out"
"""Rows with the text of a document that is held out."""
_BINS = 1 << 16
_ALL = 1 << 64
"""Draws are below it."""


class Plan(PipelineStep):  # type: ignore[misc]
    """Count documents and tokens. Raises ConfigError for too many bad rows, and for too little text."""

    type, name = "plan", "which documents are used, and which are held out"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        job, sources = self.job, self.job.recipe.sources
        bad, rows = self._bad_rows()
        tokens, documents, text_bytes = (np.zeros(len(sources), np.int64) for _ in range(3))
        for table in self._tables():
            for counted, column in ((tokens, table["length"]), (text_bytes, table["text_bytes"])):
                counted += np.bincount(table["source"], column.astype(np.float64), len(sources)).astype(np.int64)
            documents += np.bincount(table["source"], minlength=len(sources))
        self._require(bad, rows, documents)
        weights = [source.weight or 1.0 for source in sources]
        if any(source.weight is not None for source in sources):
            scales = [count / weight for count, weight in zip(tokens.tolist(), weights, strict=True)]
            shares = [min(scales) / scale for scale in scales]
        else:
            shares = [1.0] * len(sources)
        limits = [
            _ALL if share == 1.0 else self._limit(number, share * int(tokens[number]))
            for number, share in enumerate(shares)
        ]
        self._require_each(limits)
        held_out = self._held_out(limits)
        contents = [table["content"][table["draw"] < held_out] for table in self._first_copies(limits)]
        held = np.concatenate([np.empty(0, "<u8"), *contents])
        if all(np.isin(table["content"], held).all() for table in self._first_copies(limits)):
            raise ConfigError(
                "nothing is left to train on: all documents have the text of one that is held out. Remove copies, or "
                "hold out less"
            )
        place.write(job.held_out, held.tobytes())
        plan = {
            "limits": limits,
            "held_out": held_out,
            "shares": shares,
            "text_bytes": text_bytes.tolist(),
            "bad": {f"{source} {kind}": count for (source, kind), count in bad.items()},
            **{name: [counts[source] for source in range(len(sources))] for name, counts in self._counts.items()},
        }
        place.write(job.plan, json.dumps(plan).encode())
        yield from ()

    def _tables(self) -> Any:
        return read_tables(self.job.table(rank) for rank in range(self.job.num_tasks))

    def _first_copies(self, limits: list[int]) -> Iterator[Table]:
        return (first_copies(table, limits) for table in self._tables())

    def _bad_rows(self) -> tuple[Counter[tuple[int, str]], Counter[int]]:
        bad, rows = Counter[tuple[int, str]](), Counter[int]()
        self._first = dict[tuple[int, str], str]()
        self._counts = {"changed": Counter[int](), "unknown": Counter[int](), "reframed": Counter[int]()}
        for rank in range(self.job.num_tasks):
            told = json.loads(self.job.report(rank).read_bytes())
            for source, kind, count, first in told["bad"]:
                bad[source, kind] += count
                self._first.setdefault((source, kind), first)
            for name, counts in (*self._counts.items(), ("rows", rows)):
                for source, count in told[name]:
                    counts[source] += count
        return bad, rows

    def _require(self, bad: Counter[tuple[int, str]], rows: Counter[int], documents: NDArray[np.int64]) -> None:
        for number, source in enumerate(self.job.recipe.sources):
            kinds = {kind: count for (of, kind), count in sorted(bad.items()) if of == number}
            skipped, limit = sum(kinds.values()), self.job.recipe.max_bad
            told = "".join(f"\n  {count} {kind}: {self._first[number, kind]}" for kind, count in kinds.items())
            if skipped > limit * rows[number]:
                raise ConfigError(
                    f"{source.path}: {skipped} of {rows[number]} rows cannot be used, more than {limit:.2%} "
                    f"(--max-bad).{told}"
                )
            if not documents[number]:
                why = "there is no text in it" if source.repeats is None else "its repeats leave no document of it"
                raise ConfigError(f"{source.path} is too small: {why}")

    def _limit(self, source: int, wanted: float) -> int:
        """Return the second draw below which a source's documents have so many tokens, or as nearly as can be."""
        tokens = np.zeros(_BINS, np.int64)
        for table in self._tables():
            own = table[table["source"] == source]
            counted = np.bincount(own["keep"] >> np.uint64(48), own["length"].astype(np.float64), _BINS)
            tokens += counted.astype(np.int64)
        reached = np.cumsum(tokens)
        at = min(int(np.searchsorted(reached, wanted)), _BINS - 1)
        own = np.concatenate([t[(t["source"] == source) & (t["keep"] >> np.uint64(48) == at)] for t in self._tables()])
        own = own[np.argsort(own["keep"], kind="stable")]
        ends = np.concatenate([[0], np.cumsum(own["length"], dtype=np.int64)]) + int(reached[at] - tokens[at])
        number = int(np.argmin(np.abs(ends - wanted)))
        return int(own["keep"][number - 1]) + 1 if number else int(own["keep"][0])

    def _require_each(self, limits: list[int]) -> None:
        """Raise ConfigError for a source that is so small a part that no document of it is used."""
        left = {number for number, limit in enumerate(limits) if limit < _ALL}
        for table in self._tables() if left else ():
            left -= {*np.unique(table["source"][is_used(table, limits)]).tolist()}
        if left:
            name = self.job.recipe.sources[min(left)].path
            raise ConfigError(f"{name}: its weight is so small that no document of it is used; give it more, or none")

    def _held_out(self, limits: list[int]) -> int:
        """Return the draw below which documents are held out: the first ones that have the tokens wanted, and at most
        all but one."""
        tokens = np.zeros(_BINS, np.int64)
        for table in self._first_copies(limits):
            counted = np.bincount(table["draw"] >> np.uint64(48), table["length"].astype(np.float64), _BINS)
            tokens += counted.astype(np.int64)
        reached, wanted = np.cumsum(tokens), self.job.recipe.held_out
        total = int(reached[-1])
        if wanted is None:
            target = min(ceil(HELD_OUT * total), HELD_OUT_TOKENS)
        else:
            target = ceil(wanted * total) if wanted < 1 else int(wanted)
        if target >= total and wanted is not None and wanted >= 1:
            raise ConfigError(f"there are {total:,} tokens of text, and {target:,} are to be held out")
        last = int(np.flatnonzero(tokens)[-1]) if total else 0
        at = min(int(np.searchsorted(reached, max(target, 1))), last)
        here = [table[table["draw"] >> np.uint64(48) == at] for table in self._first_copies(limits)]
        found = np.sort(
            np.concatenate(
                [
                    np.empty(0, [("draw", "<u8"), ("length", "<u4")]),
                    *(t[["draw", "length"]].astype([("draw", "<u8"), ("length", "<u4")]) for t in here),
                ]
            ),
            order="draw",
        )
        before = int(reached[at] - tokens[at])
        ends = before + np.cumsum(found["length"].astype(np.int64))
        number = int(np.searchsorted(ends, max(target, 1)))
        is_last = at == last and number >= len(found) - 1
        if is_last and before == 0 and len(found) < 2:
            raise ConfigError(
                "the text is too small: it needs at least two documents, one to train on and one held out. A text "
                "file is one document: cut a long one (split -l 1000 --additional-suffix=.txt FILE FOLDER/), or use "
                "JSON lines"
            )
        return int(found["draw"][-1]) if is_last else int(found["draw"][number]) + 1


def _name(path: str) -> str:
    return path if path.startswith("hf:") or "://" in path else os.path.basename(os.path.abspath(path)) or "/"


def first_copies(table: Table, limits: list[int]) -> Table:
    """Return the first copies of the documents that are used."""
    used = is_used(table, limits)
    found: Table = table[used & (table["copy"] == 0)]
    return found


def is_used(table: Table, limits: list[int]) -> NDArray[np.bool_]:
    """Whether each document is used, by its source's limit."""
    used = np.ones(len(table), np.bool_)
    for source, limit in enumerate(limits):
        if limit < _ALL:
            used &= (table["source"] != source) | (table["keep"] < np.uint64(limit))
    return used


class Gather(PipelineStep):  # type: ignore[misc]
    """Make each bucket a shard of what is trained on, and one of what is held out."""

    type, name = "shards", "sort a bucket into a shard"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        plan = json.loads(self.job.plan.read_bytes())
        for bucket in range(rank, self.job.num_buckets, world_size):
            self._bucket(bucket, plan)
        yield from ()

    def _bucket(self, bucket: int, plan: Mapping[str, Any]) -> None:
        job = self.job
        token_bytes = job.open_tokenizer().token_bytes
        tokens, tables = list[NDArray[Any]](), list[Table]()
        for path in place.entries(job.bucket(bucket)):
            try:
                found, table = read_scattered(path, little_endian(token_bytes))
            except ValueError as fault:
                raise ConfigError(f"{fault}: delete {job.work} and build again") from None
            tokens.append(found)
            tables.append(table)
        if not tables:
            place.write(job.entries(bucket), b'{"shards": [], "lost": []}')
            return
        table = np.concatenate(tables)
        ends = np.cumsum(table["length"], dtype=np.int64)
        whole, begins = np.concatenate(tokens), ends - table["length"]
        del tokens
        order = np.lexsort((table["length"], table["keep"], table["draw"]))
        used, cutoff = is_used(table, plan["limits"]), np.uint64(plan["held_out"])
        parts = {
            "held-out": used & (table["draw"] < cutoff) & (table["copy"] == 0),
            "train": used & ~np.isin(table["content"], np.frombuffer(job.held_out.read_bytes(), "<u8")),
        }
        lost = table["source"][used & (table["copy"] == 0) & ~parts["held-out"] & ~parts["train"]]
        told = []
        for split, mask in parts.items():
            rows = order[mask[order]]
            if len(rows):
                entry = self._write(f"{split}-{bucket:05d}", [whole[begins[at] : ends[at]] for at in rows], token_bytes)
                lengths, of = table["length"][rows], table["source"][rows]
                counts = [
                    [source, int(np.sum(of == source)), int(np.sum(lengths[of == source], dtype=np.int64))]
                    for source in np.unique(of).tolist()
                ]
                told.append({"split": split, "entry": entry.model_dump(mode="json"), "counts": counts})
        made = {"shards": told, "lost": np.bincount(lost, minlength=len(job.recipe.sources)).tolist()}
        place.write(job.entries(bucket), json.dumps(made).encode())

    def _write(self, name: str, documents: list[NDArray[Any]], token_bytes: int) -> ShardEntry:
        num_tokens = sum(map(len, documents))
        header = npy_header(token_bytes, num_tokens)
        data = np.empty(len(header) + num_tokens * token_bytes, np.uint8)
        data[: len(header)] = np.frombuffer(header, np.uint8)
        np.concatenate(documents, out=data[len(header) :].view(little_endian(token_bytes)))
        leaves = list_leaves(data.data)
        place.write(self.job.out / f"{name}.leaves", leaves)
        place.write(self.job.out / f"{name}.npy", data.data)
        return ShardEntry(
            file=f"{name}.npy",
            sha256=sha256(data.data).hexdigest(),
            leaves=sha256(leaves).hexdigest(),
            num_tokens=num_tokens,
        )


class WriteIndex(PipelineStep):  # type: ignore[misc]
    """The tokenizer's files, and last of all index.json."""

    type, name = "index", "the index"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        job, codec, out = self.job, self.job.open_tokenizer(), self.job.out
        plan = json.loads(job.plan.read_bytes())
        entries: dict[str, list[ShardEntry]] = {"train": [], "held-out": []}
        documents, tokens, lost = Counter[int](), Counter[int](), Counter[int]()
        for bucket in range(job.num_buckets):
            found = json.loads(job.entries(bucket).read_bytes())
            lost.update(dict(enumerate(found["lost"])))
            for told in found["shards"]:
                entries[told["split"]].append(ShardEntry.model_validate(told["entry"]))
                for source, count, length in told["counts"]:
                    documents[source] += count
                    tokens[source] += length
        place.write(out / TOKENIZER_CONFIG, codec.config)
        if codec.file is not None:
            place.write(out / TOKENIZER, codec.file)
        skipped: dict[int, dict[str, int]] = {}
        for name, count in plan["bad"].items():
            number, _, kind = name.partition(" ")
            skipped.setdefault(int(number), {})[kind] = count
        for number, count in lost.items():
            if count:
                skipped.setdefault(number, {})[_HELD_OUT_TOO] = count
        index = Index(
            version=3,
            tokenizer=codec.name,
            tokenizer_config=sha256(codec.config).hexdigest(),
            vocabulary=codec.vocabulary,
            dtype="uint16" if codec.token_bytes == 2 else "uint32",
            bos=codec.bos,
            end=codec.end,
            sources=tuple(
                Provenance(
                    # Where it lay on this machine is not what it is.
                    name=_name(source.path),
                    documents=documents[number],
                    tokens=tokens[number],
                    text_bytes=plan["text_bytes"][number],
                    skipped=skipped.get(number, {}),
                    share=plan["shares"][number] if source.repeats is None else source.repeats,
                    changed=plan["changed"][number],
                    unknown=plan["unknown"][number],
                    reframed=plan["reframed"][number],
                )
                for number, source in enumerate(job.recipe.sources)
            ),
            train=tuple(entries["train"]),
            held_out=tuple(entries["held-out"]),
        )
        place.write(out / INDEX, index.to_bytes())
        yield from ()
