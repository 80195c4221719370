"""The origin of a fine-tuned model: sft.json, and its card. It is not a run's theta, and only repeating the fine-tuning
can prove it."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from murmur.export.origin import Origin, parse_origin
from murmur.export.recipes import Recipe
from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import Count, HexDigest, Table, fault_lines

TUNED, TRAINING = "sft.json", "training.jsonl"
MAX_TUNED_BYTES = 16 << 20


class Setting(Table):
    """The inputs that determine a fine-tuning, hardware aside. `base`: the export's murmur.json. `data`: as it was
    given; `rows`: a digest of its tokens. `sequences`: at once on each of `processes` devices."""

    base: dict[str, Any]
    recipe_name: str
    recipe: dict[str, Any]
    data: str
    rows: HexDigest
    num_rows: Count
    replay: HexDigest | None
    sequences: Count
    processes: Count
    packages: dict[str, str]

    @property
    def origin(self) -> Origin:
        return parse_origin(json.dumps(self.base).encode())

    @property
    def table(self) -> Recipe:
        return Recipe.model_validate(self.recipe)


class Measured(Table):
    """A measurement of the model at one moment: the held-out chats' loss, nats per labelled token, and the greedy
    answer to one of their questions."""

    loss: float
    question: str
    answer: str


class Tuned(Table):
    """The sft.json of a finished model. `measured`: before, and after each stage."""

    setting: Setting
    measured: list[Measured]
    left_out: list[Count]
    """Number of rows longer than each stage's context."""
    bad: dict[str, Count]
    """Number of rows that could not be used, by kind."""
    not_in_template: dict[str, Count]
    """Number of rows of which the chat template leaves something out, by its name."""


def is_tuned(folder: Path) -> bool:
    return (folder / TUNED).is_file()


def read_tuned(folder: Path) -> Tuned:
    """Read sft.json. Raises ConfigError for a folder that holds no fine-tuned model."""
    try:
        with (folder / TUNED).open("rb") as file:
            return Tuned.model_validate_json(file.read(MAX_TUNED_BYTES))
    except ValidationError as fault:
        raise ConfigError(f"{folder / TUNED} is not one of murmur sft:\n{fault_lines(fault)}") from None


def card(tuned: Tuned) -> bytes:
    """Return README.md."""
    setting = tuned.setting
    origin, recipe = setting.origin, setting.table
    spec = origin.run_spec
    bad = f", without {sum(tuned.bad.values()):,} bad ones" if tuned.bad else ""
    stages = "\n".join(
        f"| {number} | {stage.context:,} | {stage.sequences} | {stage.replay:.0%} | "
        f"{stage.schedule(setting.num_rows - left_out).steps:,} | {stage.peak_lr:g} | {after.loss:.4f} |"
        for number, (stage, after, left_out) in enumerate(
            zip(recipe.stages, tuned.measured[1:], tuned.left_out, strict=True), 1
        )
    )
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- murmuration
- llama
- sft
---

# {spec.name}, round {origin.round}, fine-tuned to chat

Made by `murmur sft` from an export of theta at the start of round {origin.round} of the run `{spec.name}`, id
`{origin.run}`. **This is not the run's theta, and nothing proves where it comes from**: what can be proved is the
export that it was made of (`murmur export --verify`), theta digest `{origin.theta}`. Nobody has judged its quality or
safety.

Recipe `{setting.recipe_name}`: AdamW, betas {recipe.betas}, weight decay {recipe.weight_decay:g}, clip {recipe.clip:g};
loss on the assistant's turns and on replayed text. Data: `{setting.data}`, {setting.num_rows:,} rows{bad}. Before,
held-out chats had a loss of {tuned.measured[0].loss:.4f} nats a token.

| stage | context | sequences a step | replay | steps | peak learning rate | held-out loss after |
|---|---|---|---|---|---|---|
{stages}

`{TUNED}` has all of it, `{TRAINING}` every step's loss and learning rate.
""".encode()
