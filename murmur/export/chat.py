"""Chats for fine-tuning: rows are read, tokenised, and mixed with text of the run, in an order that depends on the rows
and the step, not on the number of GPUs. Rows that cannot be used are counted.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value, load_dataset
from numpy.typing import NDArray
from pydantic import BaseModel

from murmur.data.shards import Split
from murmur.export.chat_rows import BadRow, Row, chat_of
from murmur.export.chat_turns import Example, Turns
from murmur.export.recipes import Stage
from murmur.homes import expanded
from murmur.protocol.errors import ConfigError, Spoilt

HUB = "hf:"
SEED = 0
COUNTS = "counts.json"
_ALONE = 20_000
"""Rows up to this number are tokenised by one process."""
_COLUMNS = Features(
    {
        "input_ids": List(Value("int64")),
        "labels": List(Value("int64")),
        "length": Value("int64"),
        "row": Value("int64"),
        "kind": Value("string"),
        "why": Value("string"),
        "left_out": List(Value("string")),
    }
)


class Counts(BaseModel):
    """What is not used of the rows, by kind: `bad` ones; and those of which the chat template leaves something out."""

    bad: dict[str, int]
    left_out: dict[str, int]


def read_rows(source: str, cache: Path) -> Dataset:
    """Return the raw rows: of a JSONL file, the bytes of each `line` and its `number`; or of a Hugging Face hub data
    set, its split `train`. Raises ConfigError."""
    if source.startswith(HUB):
        try:
            return load_dataset(source.removeprefix(HUB), split="train")
        except Exception as fault:  # noqa: BLE001 - the library, the hub and the network each raise their own
            raise ConfigError(f"cannot load the data set {source}: {fault}") from None
    path = expanded(source)
    if not path.is_file():
        raise ConfigError(f"{path} is not there: expected a JSONL file of chats, or {HUB}NAME of the Hugging Face hub")
    if not any(_lines(str(path))):
        raise ConfigError(f"{path} is empty")
    return Dataset.from_generator(_lines, gen_kwargs={"path": str(path)}, cache_dir=str(cache))


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield {"line": line, "number": number}


def tokenised(rows: Dataset, turns: Turns, source: str, folder: Path, max_bad: float) -> None:
    """Write the examples of every usable row, with their `length` and `row`, and their Counts, to `folder`, which is
    complete or absent. Raises Spoilt where more than the share `max_bad` of the rows is bad."""
    many = os.cpu_count() if len(rows) > _ALONE else None
    cache = folder.with_name(folder.name + ".arrow")
    partial = folder.with_name(folder.name + ".partial")
    found = rows.map(
        _Turned(turns),
        with_indices=True,
        batched=True,
        remove_columns=rows.column_names,
        features=_COLUMNS,
        num_proc=many,
        load_from_cache_file=False,
        cache_file_name=str(cache),
    )
    counts = _counted(found, len(rows), source, max_bad)
    if counts.bad:
        found = found.select([place for place, kind in enumerate(found["kind"]) if not kind])
    found.remove_columns(["kind", "why", "left_out"]).save_to_disk(str(partial))
    (partial / COUNTS).write_text(counts.model_dump_json())
    os.rename(partial, folder)


def _counted(found: Dataset, rows: int, source: str, max_bad: float) -> Counts:
    bad, first = Counter[str](found["kind"]), dict[str, str]()
    bad.pop("", None)
    for kind, why in zip(found["kind"], found["why"], strict=True) if bad else ():
        if kind:
            first.setdefault(kind, why)
    if bad.total() > max_bad * rows:
        told = "".join(f"\n  {count} {kind}: {first[kind]}" for kind, count in sorted(bad.items()))
        raise Spoilt(
            f"{source}: {bad.total()} of {rows} rows cannot be used, more than {max_bad:.2%} (--max-bad).{told}"
        )
    left_out = Counter(name for names in found["left_out"] for name in names)
    return Counts(bad=dict(sorted(bad.items())), left_out=dict(sorted(left_out.items())))


def read_counts(folder: Path) -> Counts:
    return Counts.model_validate_json((folder / COUNTS).read_bytes())


def digest(chats: Dataset) -> bytes:
    """Return the sha256 of all examples, however they are cut into files."""
    found = sha256()
    for name in ("length", "input_ids", "labels"):
        for chunk in chats.data.column(name).chunks:
            values = chunk if name == "length" else chunk.flatten()
            found.update(values.to_numpy(zero_copy_only=False).astype("<i8").tobytes())
    return found.digest()


@dataclass(frozen=True, slots=True)
class _Turned:
    """Maps rows to their examples, or to what is wrong with them: exceptions of other processes would lose their
    message."""

    turns: Turns

    def __call__(self, rows: Mapping[str, Sequence[Any]], numbers: Sequence[int]) -> dict[str, list[Any]]:
        made = list[dict[str, Any]]()
        for number, *values in zip(numbers, *rows.values(), strict=True):
            made += self._row(dict(zip(rows, values, strict=True)), number)
        return {name: [each[name] for each in made] for name in _COLUMNS}

    def _row(self, row: Row, number: int) -> Iterator[dict[str, Any]]:
        try:
            examples, left_out = self.turns.examples(chat_of(row))
        except BadRow as fault:
            place = f"line {row['number']}" if isinstance(row.get("line"), bytes) else f"row {number + 1}"
            why = f"{place} {fault}".encode(errors="replace").decode()
            empty: dict[str, Any] = {"input_ids": [], "labels": [], "length": 0, "left_out": []}
            yield {**empty, "row": number, "kind": fault.kind, "why": why}
            return
        for example in examples:
            length = len(example["input_ids"])
            yield {**example, "length": length, "row": number, "kind": "", "why": "", "left_out": left_out}
            left_out = []


# --- order -------------------------------------------------------------------------------------------------------


def held_out(count: int, most: int) -> NDArray[np.int64]:
    """Return which of `count` rows are held out from training: `most`, but at most a tenth, and at least one."""
    drawn = np.random.default_rng(SEED).permutation(count)
    return np.sort(drawn[: max(1, min(most, count // 10))])


@dataclass(frozen=True)
class Mix:
    """The sequences of a stage in order: those of step s begin at place s * sequences, first its chats, then its
    replay. Every epoch has all `rows` of `chats` in its own order."""

    stage: Stage
    number: int
    chats: Dataset
    rows: NDArray[np.int64]
    replay: Split | None
    _orders: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def dataset(self) -> Dataset:
        """Return as many places as the schedule has steps for; they become examples on access."""
        steps = self.stage.schedule(len(self.rows)).steps
        return Dataset.from_dict({"place": range(steps * self.stage.sequences)}).with_transform(self._examples)

    def _examples(self, asked: Mapping[str, Sequence[int]]) -> dict[str, list[list[int]]]:
        found = [self.example(place) for place in asked["place"]]
        return {name: [example[name] for example in found] for name in ("input_ids", "labels")}

    def example(self, place: int) -> Example:
        step, slot = divmod(place, self.stage.sequences)
        chats = self.stage.chat_sequences
        if slot >= chats:
            return self._replayed(step * self.stage.replay_sequences + slot - chats)
        epoch, at = divmod(step * chats + slot, len(self.rows))
        row = self.chats[int(self._order(epoch)[at])]
        return {"input_ids": row["input_ids"], "labels": row["labels"]}

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = np.random.default_rng((SEED, self.number, epoch)).permutation(self.rows)
        return self._orders[epoch]

    def _replayed(self, number: int) -> Example:
        """Return a window of the training split, drawn by its number alone: all its tokens are labels."""
        assert self.replay is not None
        context = self.stage.context
        first = np.random.default_rng((SEED, self.number, number)).integers(self.replay.num_tokens - context + 1)
        (tokens,) = self.replay.read([(int(first), context)])
        ids = [int(token) for token in tokens]
        return {"input_ids": ids, "labels": list(ids)}


def fitting(chats: Dataset, context: int) -> NDArray[np.bool_]:
    """Return which rows a stage takes: those no longer than its context."""
    lengths: NDArray[np.int64] = np.asarray(chats.with_format("numpy")["length"])
    return lengths <= context
