"""Chats for fine-tuning: rows are validated, tokenised, and mixed with text of the run, in an order that depends on the
rows and the step, not on the number of GPUs.

A row is an object with `messages`: a list of `role` (system, user, assistant) and `content`. Labels are the tokens of
the assistant's turns, as the tokenizer's chat template marks them, ends of turns included; NO_LABEL elsewhere.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, load_dataset
from jinja2 import TemplateError
from numpy.typing import NDArray

from murmur.data.shards import Split
from murmur.export.recipes import Stage
from murmur.protocol.errors import ConfigError

NO_LABEL = -100
HUB = "hf:"
ROLES = ("system", "user", "assistant")
SEED = 0
_ALONE = 20_000
"""Rows up to this number are tokenised by one process."""

Row = Mapping[str, Any]
Example = dict[str, list[int]]


class BadRow(Exception):
    """A row that is no chat. The message names the reason."""


def read_rows(source: str, cache: Path) -> Dataset:
    """Return the raw rows: of a JSONL file, the bytes of each `line`; or of a Hugging Face hub data set, its split
    `train`. Raises ConfigError."""
    if source.startswith(HUB):
        try:
            return load_dataset(source.removeprefix(HUB), split="train")
        except Exception as fault:  # noqa: BLE001 - the library, the hub and the network each raise their own
            raise ConfigError(f"cannot load the data set {source}: {fault}") from None
    path = Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path} is not there: expected a JSONL file of chats, or {HUB}NAME of the Hugging Face hub")
    if not path.stat().st_size:
        raise ConfigError(f"{path} is empty")
    return Dataset.from_generator(_lines, gen_kwargs={"path": str(path)}, cache_dir=str(cache))


def _lines(path: str) -> Iterator[dict[str, bytes]]:
    with open(path, "rb") as file:
        for line in file:
            yield {"line": line}


def messages_of(row: Row) -> list[dict[str, str]]:
    """Return a row's messages. Raises BadRow."""
    if isinstance(row.get("line"), bytes):
        try:
            row = json.loads(row["line"].decode())
        except (ValueError, RecursionError) as fault:
            raise BadRow(f"is not JSON ({fault})") from None
    if not isinstance(row, Mapping) or not isinstance(row.get("messages"), list) or not row["messages"]:
        raise BadRow('is not an object with a list of "messages"')
    found = []
    for place, message in enumerate(row["messages"]):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise BadRow(f'has no text as "content" of message {place + 1}')
        try:
            message["content"].encode()
        except UnicodeEncodeError:
            raise BadRow(f"has half a character, a lone surrogate, in message {place + 1}") from None
        if message.get("role") not in ROLES:
            role = str(message.get("role"))[:40]
            raise BadRow(f"has the role {role!r} in message {place + 1}: the known roles are {', '.join(ROLES)}")
        found.append({"role": message["role"], "content": message["content"]})
    if not any(message["role"] == "assistant" and message["content"] for message in found):
        raise BadRow("has no turn of the assistant")
    return found


@dataclass(frozen=True, slots=True)
class Turns:
    """A tokenizer (transformers'), and the chat template that marks the assistant's turns."""

    tokenizer: Any
    template: str

    def example(self, messages: Sequence[Mapping[str, str]]) -> Example:
        """Return `input_ids` and `labels`. Raises BadRow."""
        special = self.tokenizer.all_special_tokens
        for message in messages:
            if word := next((word for word in special if word in message["content"]), None):
                raise BadRow(f"holds {word!r} as text, which is a token of this tokenizer's")
        try:
            found = self.tokenizer.apply_chat_template(
                messages, chat_template=self.template, return_dict=True, return_assistant_tokens_mask=True
            )
        except TemplateError as fault:
            raise BadRow(f"does not fit the tokenizer's chat template ({fault})") from None
        ids, said = list(found["input_ids"]), found["assistant_masks"]
        return {
            "input_ids": ids,
            "labels": [token if mask else NO_LABEL for token, mask in zip(ids, said, strict=True)],
        }

    def end(self) -> int:
        """Return the token that ends the assistant's turn. Raises ConfigError where there is none."""
        try:
            found = self.example([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        except BadRow as fault:
            raise ConfigError(f"a question and its answer: it {fault}. Use another chat template") from None
        said = [token for token in found["labels"] if token != NO_LABEL]
        if not said or said[-1] not in self.tokenizer.all_special_ids:
            raise ConfigError(
                "the tokenizer's chat template does not end the assistant's turn by a token of its own within "
                "{% generation %}: a model that is tuned with it would never stop"
            )
        return int(said[-1])


def tokenised(rows: Dataset, turns: Turns, source: str, folder: Path) -> None:
    """Write every row as an example, with its `length`, to `folder`, which is complete or absent. Raises ConfigError
    with the number of the first row that is no chat."""
    many = os.cpu_count() if len(rows) > _ALONE else None
    cache = folder.with_name(folder.name + ".arrow")
    partial = folder.with_name(folder.name + ".partial")
    found = rows.map(
        _Turned(turns),
        with_indices=True,
        remove_columns=rows.column_names,
        num_proc=many,
        load_from_cache_file=False,
        cache_file_name=str(cache),
    )
    for number, why in enumerate(found["wrong"]):
        if why:
            unit = "row" if source.startswith(HUB) else "line"
            raise ConfigError(f"{source}, {unit} {number + 1} is not a chat: it {why}")
    found.remove_columns("wrong").save_to_disk(str(partial))
    os.rename(partial, folder)


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
    """Maps a row to its tokens, or to an error text: exceptions of other processes would lose their message."""

    turns: Turns

    def __call__(self, row: Row, number: int) -> dict[str, Any]:
        try:
            found = self.turns.example(messages_of(row))
        except BadRow as fault:
            return {"input_ids": [], "labels": [], "length": 0, "wrong": str(fault)}
        return {**found, "length": len(found["input_ids"]), "wrong": ""}


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
