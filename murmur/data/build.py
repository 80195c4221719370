"""Building a data set: text from several sources, tokenised, shuffled, and cut into shards, by any number of tasks.

The digest follows from text and recipe alone: not from tasks, workers, machines or kills. Two steps do the work, each
of independent tasks (murmur/data/scatter.py and gather.py); datatrove reads, and runs the tasks
(murmur/data/engine.py). A task that is done is not done again.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage, rmtree

from murmur.data import by_tiktoken
from murmur.data import job as jobs
from murmur.data.index import INDEX
from murmur.data.job import BUILDING, DISK_FULL, FAULT, Job
from murmur.data.recipe import Recipe, Source, made
from murmur.data.sources import TextFile, files_of
from murmur.data.tokenizer import byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest

Progress = Callable[[str, int, int], None]
"""Called with a step, its tasks that are done, and all of them."""
_LOOK_SECONDS = 0.1
_TASKS_PER_WORKER = 8
"""More tasks than workers: a kill costs less, and the last ones end together."""
_MOST_TASKS = 1000
_TEXT_PER_TOKEN = 4
"""Bytes of text of a token, about; of bytes, one."""


def build(
    source: str | Recipe,
    out: Path,
    *,
    workers: int = 1,
    tasks: int | None = None,
    on_progress: Progress = lambda step, done, total: None,
    say: Callable[[str], None] = lambda line: None,
    **fields: object,
) -> Digest:
    """Tokenise a recipe's sources, or one, into shards under `out`; return the index's digest.

    fields: of a recipe whose only source is `source`, or of that source (murmur/data/recipe.py). workers: tasks that
    run at a time. tasks: parts of the work, at most one for each file.

    index.json is written last: a build that was cut short is not a data set; the same call goes on with it. Raises
    ConfigError for an unknown or unusable source, a folder that already holds a data set or another unfinished build,
    too many bad rows, too little text, or a full disk.
    """
    recipe = source if isinstance(source, Recipe) else _of_one(source, fields)
    if (out / INDEX).exists():
        if not (out / BUILDING).exists():
            raise ConfigError(f"{out} already holds a data set; choose another folder or delete it")
        _require_same(jobs.load(out), recipe)
        return _tidied(out)  # it was cut short behind its last step
    if out.exists() and not out.is_dir():
        raise ConfigError(f"cannot use {out}: it is no folder")
    if find_spec("datatrove") is None:
        raise ConfigError("building a data set needs the extra data: pip install 'murmuration-node[data]'")
    job = _job(recipe, out, workers, tasks, say)
    _run(job, workers, on_progress)
    for line in by_tiktoken.told(job):
        say(f"the tokenizer: {line}")
    return _tidied(out)


def _of_one(path: str, fields: dict[str, object]) -> Recipe:
    own = {name: fields.pop(name) for name in tuple(fields) if name in Source.model_fields}
    return made(sources=({"path": path, **own},), **fields)


def _job(recipe: Recipe, out: Path, workers: int, tasks: int | None, say: Callable[[str], None]) -> Job:
    """Begin a build, or go on with one. Raises ConfigError where it had another recipe, or its text has changed."""
    codec = (
        byte_tokenizer()
        if recipe.tokenizer is None
        else open_tokenizer(Path(recipe.tokenizer), bos=recipe.bos, end=recipe.end)
    )
    for line in codec.said:
        say(f"the tokenizer: {line}")
    _require_apart(recipe, out)
    found = tuple(file for number, source in enumerate(recipe.sources) for file in files_of(number, source))
    _require_once(found)
    begun = jobs.load(out)
    _require_same(begun, recipe)
    if begun is not None:
        if begun.files != found:
            raise ConfigError(f"the text has changed since this build began: delete {begun.work} to begin anew")
        if begun.tokenizer != codec.identity:
            raise ConfigError(f"the tokenizer has changed since this build began: delete {begun.work} to begin anew")
        if begun.recipe != recipe:
            begun = replace(begun, recipe=recipe)
            begun.save()
        return begun
    if recipe.tokenizer is None and (recipe.end is not None or recipe.bos):
        raise ConfigError(
            "bytes have a token of their own that ends a document, and none that begins it: leave out --end and --bos, "
            "or give a --tokenizer"
        )
    estimated = _tokens(recipe, found)
    _require_room(out, estimated * codec.token_bytes)
    num_tasks = tasks if tasks is not None else min(_MOST_TASKS, workers * _TASKS_PER_WORKER)
    job = Job(
        out,
        recipe,
        codec.identity,
        found,
        max(1, round(estimated / recipe.shard_tokens)),
        max(1, min(num_tasks, len(found))),
    )
    job.save()
    return job


def _require_apart(recipe: Recipe, out: Path) -> None:
    """Raise ConfigError where the data set would lie among its own text."""
    for source in recipe.sources:
        folder = Path(source.path)
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"--out {out} lies inside {source.path}: choose a folder outside of the text")


def _require_once(found: Sequence[TextFile]) -> None:
    """Raise ConfigError for a file that two sources have: what is held out of one would be trained on in the other."""
    seen: dict[str, TextFile] = {}
    for file in found:
        place = file.path if "://" in file.path else os.path.realpath(file.path)
        if (other := seen.setdefault(place, file)) is not file:
            raise ConfigError(f"{file.path} would be read twice, also as {other.path}: name it once")


def _require_same(begun: Job | None, recipe: Recipe) -> None:
    """Raise ConfigError where an unfinished build is of another recipe; only how many rows may be bad may change."""
    if begun is not None and begun.recipe.model_copy(update={"max_bad": recipe.max_bad}) != recipe:
        raise ConfigError(
            f"{begun.work} is what an unfinished build with other options has left: give the same options to go on "
            "with it, or delete this folder to begin anew"
        )


def _tokens(recipe: Recipe, found: Sequence[TextFile]) -> int:
    """Return about how many tokens there are. It decides how many shards there will be, no more."""
    per_token = 1 if recipe.tokenizer is None else _TEXT_PER_TOKEN
    total = 0.0
    for number, source in enumerate(recipe.sources):
        text = sum(file.text_bytes for file in found if file.source == number)
        total += min(text, source.limit_bytes or text) / per_token * (source.repeats or 1.0)
    return int(total)


def _require_room(out: Path, token_bytes: int) -> None:
    """Raise ConfigError where the disk has no room: for what is scattered, and for the shards."""
    place = next((folder for folder in (out, *out.absolute().parents) if folder.is_dir()), Path("/"))
    free = disk_usage(place).free
    if free < 2 * token_bytes:
        raise ConfigError(
            f"{place} has {free / 1e9:.1f} GB free; this build needs about {2 * token_bytes / 1e9:.1f} GB: free some, "
            "or choose another --out"
        )


def _run(job: Job, workers: int, on_progress: Progress) -> None:
    """Run all steps, in processes of their own. Raises ConfigError with its reason when one fails."""
    if workers == 1 or max(job.steps.values()) == 1:
        _run_all(job, [[f"{step}:0:{tasks}" for step, tasks in job.steps.items()]], on_progress)
        return
    for step, tasks in job.steps.items():
        edges = [tasks * number // workers for number in range(workers + 1)]
        _run_all(job, [[f"{step}:{first}:{end - first}"] for first, end in pairwise(edges) if end > first], on_progress)


def _run_all(job: Job, parts: Sequence[list[str]], on_progress: Progress) -> None:
    """Run one process for each of these, until all are done or one fails."""
    (job.work / FAULT).unlink(missing_ok=True)
    log = job.work / "log.txt"
    environment = {**os.environ, "PYTHONUTF8": "1", "TOKENIZERS_PARALLELISM": "false"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as told:
            for part in parts:
                words = [sys.executable, "-m", "murmur.data.engine", str(job.out.absolute()), *part]
                processes.append(
                    subprocess.Popen(words, stdin=subprocess.PIPE, stdout=told, stderr=told, env=environment)
                )
        while None in (statuses := [process.poll() for process in processes]) and not any(statuses):
            _tell(job, on_progress)
            time.sleep(_LOOK_SECONDS)
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # it ends with that
        for process in processes:
            process.wait()
    status = next((status for status in statuses if status), 0)
    if status and (job.work / FAULT).exists():
        raise ConfigError((job.work / FAULT).read_text(encoding="utf-8"))
    if status == DISK_FULL:
        raise ConfigError(f"the disk of {job.out} is full: free some of it, and give the same command again")
    if status < 0:
        raise ConfigError(
            f"a process of the build was killed by signal {-status}. If memory was short, give the same command again "
            "with fewer --workers"
        )
    if status:
        raise ConfigError(f"the build ended with status {status}; its log is {log}")


def _tell(job: Job, on_progress: Progress) -> None:
    for step, tasks in job.steps.items():
        done = job.work / "log" / step / "completions"
        count = len(os.listdir(done)) if done.is_dir() else 0
        if count < tasks:
            on_progress(step, count, tasks)
            return


def _tidied(out: Path) -> Digest:
    """Remove what is not needed any more; return the index's digest."""
    for partial in out.glob("*.partial"):
        partial.unlink()
    rmtree(out / BUILDING)
    return Digest(sha256((out / INDEX).read_bytes()).digest())
