"""What a data set is made of, and who makes it: sources, their mix, an executor; from flags or from a TOML file."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import fault_lines

MAX_BAD = 0.001
"""Share of rows that may be unusable."""
HELD_OUT = 0.05
HELD_OUT_TOKENS = 50_000_000
"""By default, the smaller of this share and this many tokens is kept from training."""

_Positive = Annotated[int, Field(gt=0, lt=1 << 62)]


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Source(_Fields):
    """Where text comes from: `path` is botocore, a file, a folder, a pattern, hf:NAME, or an address that fsspec knows
    (murmur/data/sources.py).

    text_key: column or field of the text. weight: share of tokens, in any unit; a source that is too small for its
    share is used whole, and of the others a drawn part. repeats: epochs, above 1 too, in place of a weight.
    limit_bytes: read no more text than that. dtype: type of the ids of raw token files.
    """

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    text_key: Annotated[str, Field(min_length=1, max_length=200)] = "text"
    weight: Annotated[float, Field(gt=0)] | None = None
    repeats: Annotated[float, Field(gt=0, le=100)] | None = None
    limit_bytes: _Positive | None = None
    dtype: Literal["uint16", "uint32"] | None = None

    @property
    def copies(self) -> int:
        """How often a document of it stands in the data set, at most."""
        return 1 if self.repeats is None else -int(-self.repeats // 1)


class Recipe(_Fields):
    """tokenizer: its file (None: bytes). bos, end: tokens that begin and end each document; by default the
    tokenizer's own. held_out: kept from training, a share below 1 or a number of tokens. max_bad: share of rows that
    may be unusable."""

    sources: Annotated[tuple[Source, ...], Field(max_length=1000)]
    tokenizer: str | None = None
    bos: bool | None = None
    end: str | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] = 0
    held_out: Annotated[float, Field(gt=0)] | None = None
    max_bad: Annotated[float, Field(ge=0, lt=1)] = MAX_BAD
    shard_tokens: _Positive = 1 << 24

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if not self.sources:
            raise ValueError("name at least one source")
        if self.held_out is not None and self.held_out >= 1 and self.held_out % 1:
            raise ValueError("held_out below 1 is a share, from 1 on a whole number of tokens")
        if len({source.path for source in self.sources}) < len(self.sources):
            raise ValueError("a source is named twice: name it once, with a larger weight, or repeats")
        if any(source.weight is not None for source in self.sources):
            if any(source.repeats is not None for source in self.sources):
                raise ValueError("give either weights or repeats, not both")
            if any(source.weight is None for source in self.sources):
                raise ValueError("give a weight for each source, or for none")
        return self


class Execution(_Fields):
    """Who runs the tasks. kind: processes of this machine, jobs of Slurm, or tasks of Ray. workers: tasks at a time; by
    default one on this machine, and elsewhere all. tasks: parts of the work, at most one for each file. partition,
    time: of Slurm. memory_gb: of each task."""

    kind: Literal["local", "slurm", "ray"] = "local"
    workers: _Positive | None = None
    tasks: _Positive | None = None
    partition: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,-]{1,200}$")] | None = None
    time: Annotated[str, Field(pattern=r"^[0-9:-]{1,20}$")] = "24:00:00"
    memory_gb: _Positive = 4

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "slurm" and self.partition is None:
            raise ValueError("Slurm needs a partition: name it in the recipe's [executor]")
        return self


def executed(**fields: object) -> Execution:
    """Return an execution of these fields. Raises ConfigError with one line per fault."""
    try:
        return Execution.model_validate(fields)
    except ValidationError as fault:
        raise ConfigError("the data set cannot be built:\n" + fault_lines(fault)) from None


def made(**fields: object) -> Recipe:
    """Return a recipe of these fields. Raises ConfigError with one line per fault."""
    try:
        return Recipe.model_validate(fields)
    except ValidationError as fault:
        raise ConfigError("the data set cannot be built:\n" + fault_lines(fault)) from None


def read(path: Path) -> tuple[Recipe, dict[str, object]]:
    """Read a recipe and the fields of its executor from a TOML file; paths in it are relative to its folder. Raises
    ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot read the recipe {path}: {fault}") from None
    sources = table.get("sources")
    if not isinstance(sources, list):
        raise ConfigError(f"the recipe {path} has no [[sources]]: name at least one")
    table["sources"] = tuple(sources)
    executor = table.pop("executor", {})
    if not isinstance(executor, dict):
        raise ConfigError(f"the recipe {path}: executor is a table, [executor]")
    recipe = made(**table)

    def beside(name: str) -> str:
        return name if name == "botocore" or name.startswith("hf:") or "://" in name else str(path.parent / name)

    paths = {
        "sources": tuple(s.model_copy(update={"path": beside(s.path)}) for s in recipe.sources),
        "tokenizer": None if recipe.tokenizer is None else beside(recipe.tokenizer),
    }
    return recipe.model_copy(update=paths), executor
