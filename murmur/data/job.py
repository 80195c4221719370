"""What all tasks of a build know, and where each file of it lies. It stands in the working folder, so that a build that
was cut short goes on, and tasks may run on any machine that sees the folder."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from re import Pattern
from typing import Any

from murmur.data import pieces, place
from murmur.data.place import Place
from murmur.data.recipe import Recipe
from murmur.data.sources import TextFile
from murmur.data.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError

BUILDING = "building"
"""Folder of what is needed until the data set is done."""
TASK = "task-"
"""How folders of tasks that are not done begin."""
JOB, FAULT = "job.json", "fault.txt"
"""What all tasks know; why the last try failed."""
DISK_FULL = 3
"""Exit status of a process that found no room."""


@dataclass(frozen=True)
class Job:
    """out: the data set's folder. tokenizer: the identity of the one that all tasks use."""

    out: Place
    recipe: Recipe
    tokenizer: str
    files: tuple[TextFile, ...]
    num_buckets: int
    num_tasks: int

    @property
    def work(self) -> Place:
        return self.out / BUILDING

    @cached_property
    def tasks(self) -> list[list[int]]:
        """The numbers of each task's files: the largest first, each to the task with the least; a source with a limit
        is one task's."""
        units: dict[object, list[int]] = {}
        for number, file in enumerate(self.files):
            limited = self.recipe.sources[file.source].limit_bytes is not None
            units.setdefault(("source", file.source) if limited else ("file", number), []).append(number)
        sizes = {key: sum(self.files[number].text_bytes for number in unit) for key, unit in units.items()}
        found, loads = [list[int]() for _ in range(self.num_tasks)], [0] * self.num_tasks
        for key, unit in sorted(units.items(), key=lambda item: (-sizes[item[0]], item[1])):
            least = min(range(self.num_tasks), key=lambda task: (loads[task], task))
            found[least] += unit
            loads[least] += sizes[key] + 1
        return found

    @property
    def steps(self) -> dict[str, int]:
        """The steps, in order, and the tasks of each."""
        shards = min(self.num_buckets, 8 * self.num_tasks)
        return {"proof": 1, "text": self.num_tasks, "plan": 1, "shards": shards, "index": 1}

    def open_tokenizer(self) -> Tokenizer:
        """Open the tokenizer, once per process. Raises ConfigError when it has changed since the build began."""
        codec = _opened(self.recipe.tokenizer, self.recipe.bos, self.recipe.end)
        if codec.identity != self.tokenizer:
            raise ConfigError(f"the tokenizer {self.recipe.tokenizer} has changed since this build began")
        return codec

    def places(self) -> tuple[Pattern[str], ...]:
        """Return the kinds of places where long documents may be cut."""
        return tuple(pieces.PLACES[kind] for kind in json.loads(self.cut.read_bytes()))

    # --- files -----------------------------------------------------------------------------------------------

    def table(self, rank: int) -> Place:
        return self.work / "tables" / f"{rank:05d}.table"

    def report(self, rank: int) -> Place:
        return self.work / "tables" / f"{rank:05d}.json"

    def log(self, step: str) -> str:
        """The folder in which datatrove notes what is done."""
        return str(self.work / "log" / step)

    def bucket(self, bucket: int) -> Place:
        """The folder of its files, one of each task that has any."""
        return self.work / "buckets" / f"{bucket:06d}"

    def entries(self, bucket: int) -> Place:
        return self.work / "entries" / f"{bucket:06d}.json"

    @property
    def has_tokens(self) -> bool:
        """Whether any task has made tokens."""
        return bool(place.entries(self.work / "tables"))

    @property
    def cut(self) -> Place:
        return self.work / "cut.json"

    @property
    def said(self) -> Place:
        """What the proof has to say, in lines."""
        return self.work / "said.json"

    @property
    def held_out(self) -> Place:
        """Hashes of the documents that are held out."""
        return self.work / "held-out.u64"

    @property
    def plan(self) -> Place:
        return self.work / "plan.json"

    # --- on disk ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "tokenizer": self.tokenizer,
            "files": [list(file) for file in self.files],
            "num_buckets": self.num_buckets,
            "num_tasks": self.num_tasks,
        }

    def save(self) -> None:
        for folder in ("tables", "buckets", "entries"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        place.write(self.work / JOB, json.dumps(self.to_json()).encode())


def load(out: Place) -> Job | None:
    """Return the job of an unfinished build; None when there is none. Raises ConfigError where it cannot be read."""
    try:
        table = json.loads((out / BUILDING / JOB).read_bytes())
        return Job(
            out,
            Recipe.model_validate_json(json.dumps(table["recipe"])),
            table["tokenizer"],
            tuple(TextFile(*each) for each in table["files"]),
            table["num_buckets"],
            table["num_tasks"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as fault:
        raise ConfigError(f"{out / BUILDING} is no build of this release ({fault}): delete it") from None


@lru_cache(maxsize=1)
def _opened(path: str | None, bos: bool | None, end: str | None) -> Tokenizer:
    return byte_tokenizer() if path is None else open_tokenizer(Path(path), bos=bos, end=end)
