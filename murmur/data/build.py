"""Building a data set: text from several sources, tokenised, shuffled, and cut into shards, by any number of tasks.

The digest follows from text and recipe alone: not from tasks, workers, machines or kills. Two steps do the work, each
of independent tasks (murmur/data/scatter.py and gather.py); datatrove reads, and runs the tasks
(murmur/data/engine.py). A task that is done is not done again.
"""

import json
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
from shutil import disk_usage, rmtree, which
from tempfile import gettempdir

from murmur.data import by_tiktoken
from murmur.data import job as jobs
from murmur.data.index import INDEX
from murmur.data.job import BUILDING, DISK_FULL, FAULT, JOB, TASK, Job
from murmur.data.place import Place, alone, entries, is_local, place_of, remove
from murmur.data.recipe import Execution, Recipe, Source, executed, made
from murmur.data.sources import TextFile, files_of
from murmur.data.tokenizer import byte_tokenizer, open_tokenizer
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest

Progress = Callable[[str, int, int], None]
"""Called with a step, its tasks that are done, and all of them."""
_LOOK_SECONDS = 0.1
_LOOK_AFAR_SECONDS = 5.0
_TASKS_PER_WORKER = 8
"""More tasks than workers: a kill costs less, and the last ones end together."""
_MOST_TASKS = 1000
_TEXT_PER_TOKEN = 4
"""Bytes of text of a token, about; of bytes, one."""


def build(
    source: str | Recipe,
    out: Place,
    *,
    on_progress: Progress = lambda step, done, total: None,
    say: Callable[[str], None] = lambda line: None,
    **fields: object,
) -> Digest:
    """Tokenise a recipe's sources, or one, into shards under `out`; return the index's digest.

    fields: of the execution, of a recipe whose only source is `source`, or of that source (murmur/data/recipe.py).

    index.json is written last: a build that was cut short is not a data set; the same call goes on with it. Raises
    ConfigError for an unknown or unusable source, a folder that already holds a data set or another unfinished build,
    too many bad rows, too little text, or a full disk.
    """
    execution = executed(**{name: fields.pop(name) for name in tuple(fields) if name in Execution.model_fields})
    recipe = source if isinstance(source, Recipe) else _of_one(source, fields)
    if find_spec("datatrove") is None:
        raise ConfigError("building a data set needs the extra data: pip install 'murmuration-node[data]'")
    _require_reached(execution, out)
    try:
        return _built(recipe, out, execution, on_progress, say)
    except (OSError, NotImplementedError) as fault:
        if is_local(out):
            raise
        raise ConfigError(f"{out} cannot be used: {fault}. If it is mended, give the same command again") from None


def _built(
    recipe: Recipe, out: Place, execution: Execution, on_progress: Progress, say: Callable[[str], None]
) -> Digest:
    if (out / INDEX).exists():
        begun = jobs.load(out)
        if begun is None:
            raise ConfigError(f"{out} already holds a data set; choose another folder or delete it")
        _require_same(begun, recipe)
        return _tidied(out)  # it was cut short behind its last step
    if out.exists() and not out.is_dir():
        raise ConfigError(f"cannot use {out}: it is no folder")
    with alone(out):
        return _built_alone(recipe, out, execution, on_progress, say)


def _built_alone(
    recipe: Recipe, out: Place, execution: Execution, on_progress: Progress, say: Callable[[str], None]
) -> Digest:
    job = _job(recipe, out, execution, say)
    _run(job, execution, on_progress)
    for line in json.loads(job.said.read_bytes()) if job.said.exists() else ():
        say(line)
    for line in by_tiktoken.told(job):
        say(f"the tokenizer: {line}")
    return _tidied(out)


def _of_one(path: str, fields: dict[str, object]) -> Recipe:
    own = {name: fields.pop(name) for name in tuple(fields) if name in Source.model_fields}
    return made(sources=({"path": path, **own},), **fields)


def _require_reached(execution: Execution, out: Place) -> None:
    """Raise ConfigError where the executor, or its machines, cannot do their part."""
    if execution.kind == "slurm" and which("sbatch") is None:
        raise ConfigError("--executor slurm: there is no sbatch here; run the command on a machine that submits jobs")
    if execution.kind == "slurm" and not is_local(out):
        raise ConfigError(f"Slurm's jobs are handed over by a folder: give a shared one as --out, not {out}")
    if execution.kind == "ray" and find_spec("ray") is None:
        raise ConfigError("--executor ray needs Ray: pip install ray")


def _job(recipe: Recipe, out: Place, execution: Execution, say: Callable[[str], None]) -> Job:
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
    if begun is not None and not begun.has_tokens:
        remove(begun.work)  # nothing is lost with it, and it may have been given up for another recipe
        begun = None
    _require_same(begun, recipe)
    if begun is not None:
        if begun.files != found:
            raise ConfigError(f"the text has changed since this build began: delete {begun.work} to begin anew")
        if begun.tokenizer != codec.identity:
            raise ConfigError(f"the tokenizer has changed since this build began: delete {begun.work} to begin anew")
        if begun.recipe != recipe:
            begun = replace(begun, recipe=recipe)
            begun.save()
        if execution.kind == "local":
            for folder in Path(str(begun.work)).glob(f"{TASK}*"):
                rmtree(folder)  # of a process that was killed
        return begun
    if recipe.tokenizer is None and (recipe.end is not None or recipe.bos):
        raise ConfigError(
            "bytes have a token of their own that ends a document, and none that begins it: leave out --end and --bos, "
            "or give a --tokenizer"
        )
    _require_of_text(recipe, found)
    estimated = _tokens(recipe, found, codec.token_bytes)
    _require_room(out, estimated * codec.token_bytes)
    workers = execution.workers or (1 if execution.kind == "local" else _MOST_TASKS)
    num_tasks = execution.tasks or min(_MOST_TASKS, workers * _TASKS_PER_WORKER)
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


def _require_apart(recipe: Recipe, out: Place) -> None:
    """Raise ConfigError where the data set would lie among its own text."""
    for source in recipe.sources:
        folder = Path(source.path)
        if isinstance(out, Path) and folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
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


def _require_of_text(recipe: Recipe, found: Sequence[TextFile]) -> None:
    """Raise ConfigError for files of tokens without what they need, or with what only text has."""
    for file in found:
        source = recipe.sources[file.source]
        if file.is_tokens and recipe.tokenizer is None:
            raise ConfigError(f"{file.path} holds tokens: give the tokenizer that made them as --tokenizer")
        if file.is_tokens and source.limit_bytes is not None:
            raise ConfigError(
                f"{file.path} holds tokens, which limit_bytes does not count: leave it out for {source.path}"
            )


def _tokens(recipe: Recipe, found: Sequence[TextFile], token_bytes: int) -> int:
    """Return about how many tokens there are. It decides how many shards there will be, no more."""
    per_token = 1 if recipe.tokenizer is None else _TEXT_PER_TOKEN
    total = 0.0
    for number, source in enumerate(recipe.sources):
        text = sum(file.text_bytes for file in found if file.source == number and not file.is_tokens)
        tokens = sum(file.num_bytes // token_bytes for file in found if file.source == number and file.is_tokens)
        total += (min(text, source.limit_bytes or text) / per_token + tokens) * (source.repeats or 1.0)
    return int(total)


def _require_room(out: Place, token_bytes: int) -> None:
    """Raise ConfigError where the disk has no room: for what is scattered, and for the shards."""
    if not isinstance(out, Path):
        return
    place = next((folder for folder in (out, *out.absolute().parents) if folder.is_dir()), Path("/"))
    free = disk_usage(place).free
    if free < 2 * token_bytes:
        raise ConfigError(
            f"{place} has {free / 1e9:.1f} GB free; this build needs about {2 * token_bytes / 1e9:.1f} GB: free some, "
            "or choose another --out"
        )


def _run(job: Job, execution: Execution, on_progress: Progress) -> None:
    """Run all steps, in processes of their own. Raises ConfigError with its reason when one fails."""
    workers = execution.workers or 1
    if execution.kind != "local" or workers == 1 or max(job.steps.values()) == 1:
        _run_all(job, execution, [[f"{step}:0:{tasks}" for step, tasks in job.steps.items()]], on_progress)
        return
    for step, tasks in job.steps.items():
        edges = [tasks * number // workers for number in range(workers + 1)]
        parts = [[f"{step}:{first}:{end - first}"] for first, end in pairwise(edges) if end > first]
        _run_all(job, execution, parts, on_progress)


def _run_all(job: Job, execution: Execution, parts: Sequence[list[str]], on_progress: Progress) -> None:
    """Run one process for each of these, until all are done or one fails."""
    (job.work / FAULT).unlink(missing_ok=True)
    log = job.work / "log.txt" if isinstance(job.work, Path) else Path(gettempdir()) / f"murmur-build-{os.getpid()}.txt"
    environment = {**os.environ, "PYTHONUTF8": "1", "TOKENIZERS_PARALLELISM": "false"}
    out = str(job.out.absolute()) if isinstance(job.out, Path) else str(job.out)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as told:
            for part in parts:
                words = [sys.executable, "-m", "murmur.data.engine", out, execution.model_dump_json(), *part]
                processes.append(
                    subprocess.Popen(words, stdin=subprocess.PIPE, stdout=told, stderr=told, env=environment)
                )
        told_at = 0.0
        while None in (statuses := [process.poll() for process in processes]) and not any(statuses):
            if time.monotonic() - told_at > (_LOOK_SECONDS if is_local(job.out) else _LOOK_AFAR_SECONDS):
                _tell(job, on_progress)
                told_at = time.monotonic()
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
        count = len(entries(place_of(job.log(step)) / "completions"))
        if count < tasks:
            on_progress(step, count, tasks)
            return


def _tidied(out: Place) -> Digest:
    """Remove what is not needed any more; return the index's digest."""
    for partial in out.glob("*.partial"):
        partial.unlink()
    for each in entries(out / BUILDING):
        if each.name != JOB:  # it says whose the rest is, so it goes last
            remove(each)
    remove(out / BUILDING)
    return Digest(sha256((out / INDEX).read_bytes()).digest())
