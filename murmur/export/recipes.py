"""Recipes of fine-tuning, which `murmur sft` trains and `murmur plan --sft` plans. Data, in recipes.toml. No torch."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from math import ceil, cos, pi
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import Count, Table, fault_lines

Steps = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of `steps` optimizer steps, counted from 0: linear from `first` to `peak` at step `warmup`, then
    half a cosine that would reach 0 at step `horizon`; from `linear_from` on linear to 0 at `steps`."""

    first: float
    peak: float
    warmup: int
    horizon: int
    linear_from: int
    steps: int

    def lr(self, step: int) -> float:
        if step >= self.linear_from:
            left = max(0, self.steps - step) / max(1, self.steps - self.linear_from)
            return self._curve(self.linear_from) * left
        return self._curve(step)

    def _curve(self, step: int) -> float:
        if step < self.warmup:
            return self.first + (self.peak - self.first) * step / self.warmup
        way = (step - self.warmup) / max(1, self.horizon - self.warmup)
        return self.peak * 0.5 * (1.0 + cos(pi * min(1.0, way)))


class Stage(Table):
    """`sequences` of at most `context` tokens a step, of which a share `replay` is text of the run's own shards.

    It has at most `steps` steps, fewer where the cosine ends before: it takes `epochs` epochs of the chat data or,
    without, `steps`. The warm-up takes `warmup_steps`, or the share `warmup` of the cosine.
    """

    context: Annotated[int, Field(ge=2, le=1 << 24)]
    sequences: Annotated[int, Field(ge=1, le=1 << 20)]
    steps: Steps
    replay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    peak_lr: Annotated[float, Field(gt=0.0, le=1.0)]
    first_lr: Rate = 0.0
    warmup: Rate | None = None
    warmup_steps: Count | None = None
    epochs: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None
    linear_from: Count | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.warmup is None) == (self.warmup_steps is None):
            raise ValueError("give either warmup or warmup_steps")
        if self.chat_sequences < 1:
            raise ValueError("replay leaves no sequence of a step for chat")
        if (self.warmup_steps or 0) > self.steps or (self.linear_from or 0) > self.steps:
            raise ValueError("warmup_steps and linear_from lie within steps")
        return self

    @property
    def replay_sequences(self) -> int:
        """Replay sequences of every step."""
        return round(self.replay * self.sequences)

    @property
    def chat_sequences(self) -> int:
        return self.sequences - self.replay_sequences

    def schedule(self, rows: int | None) -> Schedule:
        """Return the schedule for `rows` rows of chat; None: as many as all of `steps` need."""
        horizon = self.steps
        if self.epochs is not None and rows is not None:
            horizon = max(1, ceil(self.epochs * rows / self.chat_sequences))
        steps = min(self.steps, horizon)
        warmup = self.warmup_steps if self.warmup_steps is not None else round((self.warmup or 0.0) * horizon)
        return Schedule(
            self.first_lr,
            self.peak_lr,
            min(warmup, steps),
            horizon,
            steps if self.linear_from is None else min(self.linear_from, steps),
            steps,
        )


class Recipe(Table):
    """AdamW's constants, and the stages in order. Saved every `save_steps` steps. The loss before and after is measured
    on `held_out_rows` rows of chat, at most a tenth of them, which are not trained on."""

    betas: Annotated[list[Rate], Field(min_length=2, max_length=2)]
    weight_decay: Rate
    clip: Annotated[float, Field(gt=0.0)]
    save_steps: Steps
    held_out_rows: Steps
    stages: Annotated[list[Stage], Field(min_length=1, max_length=16)]

    @property
    def context(self) -> int:
        """The longest context of a stage."""
        return max(stage.context for stage in self.stages)


def names() -> list[str]:
    return sorted(_tables())


def recipe(source: str) -> Recipe:
    """Return a recipe by name, or from a TOML file. Raises ConfigError."""
    tables = _tables()
    if source in tables:
        return Recipe.model_validate(tables[source])
    path = Path(source)
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (FileNotFoundError, IsADirectoryError):
        known = ", ".join(sorted(tables))
        raise ConfigError(f"{source[:200]!r} is neither a recipe ({known}) nor a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path} is not TOML: {fault}") from None
    except ValidationError as fault:
        raise ConfigError(f"{path} is not a recipe:\n{fault_lines(fault)}") from None


def _tables() -> dict[str, Any]:
    return tomllib.loads((files("murmur.export") / "recipes.toml").read_text(encoding="utf-8"))
