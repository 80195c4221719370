"""`murmur sft`: an export fine-tuned on chats, stage by stage. Needs the extra `post`.

Everything is made in OUT.partial and stays there when a process ends, so the same order resumes from the last complete
checkpoint; a different order is refused. With several processes the first prepares and writes.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, rmtree

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars, load_from_disk
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from murmur.data.index import TOKENIZER, TOKENIZER_CONFIG
from murmur.data.shards import Shards
from murmur.export.chat import HUB, Mix, digest, fitting, held_out, read_counts, read_rows, tokenised
from murmur.export.chat_turns import Turns, open_turns
from murmur.export.folder import partial_of, resumed
from murmur.export.llama import config, generation_config
from murmur.export.origin import CONFIG, GENERATION, Origin
from murmur.export.recipes import Recipe, Stage
from murmur.export.tensors import as_json
from murmur.export.trainer import Before, Kept, StageTrainer, Tell, clear, is_first, newest, processes, trainer
from murmur.export.tuned import TRAINING, TUNED, Measured, Setting, Tuned, card, is_tuned, read_tuned
from murmur.export.verify import Differs, Export, read_export, read_files, read_origin
from murmur.files import sync, write
from murmur.homes import expanded
from murmur.protocol.errors import ConfigError

WORK, SETTING, CHATS, READY = "work", "setting.json", "chats", "ready"
MEASURED, MODEL = "measured.json", "model"
SOURCE = "source"
"""The sha256 of the file that CHATS are made from."""
SPENT = "spent"
"""WORK before its removal: once it has this name, the model next to it is complete."""
LOOK_SECONDS = 1.0
ANSWER_TOKENS = 128
_PACKAGES = ("accelerate", "torch", "transformers", "trl")


@dataclass(frozen=True, slots=True)
class Order:
    """The operator's order. `sequences`: at once on each device. `max_bad`: share of the rows that may be bad."""

    folder: Path
    out: Path
    data: str
    recipe_name: str
    recipe: Recipe
    replay: Path | None
    sequences: int
    device: str | None
    max_bad: float

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu" or (self.device is None and not torch.cuda.is_available())


@dataclass(frozen=True)
class Ready:
    """The inputs that all processes of an order read. `rows`: examples, one or more of a row of chat."""

    order: Order
    origin: Origin
    turns: Turns
    ends: list[int]
    rows: Dataset
    replay: Shards | None
    work: Path

    @cached_property
    def held_out_rows(self) -> NDArray[np.int64]:
        """Numbers of the rows that fit every stage and are not trained on, with all of their examples."""
        rows = np.unique(self._row[fitting(self.rows, self._shortest)])
        return rows[held_out(len(rows), self.order.recipe.held_out_rows)]

    @property
    def held_out(self) -> NDArray[np.int64]:
        return np.flatnonzero(fitting(self.rows, self._shortest) & np.isin(self._row, self.held_out_rows))

    def trained(self, stage: Stage) -> NDArray[np.int64]:
        return np.flatnonzero(fitting(self.rows, stage.context) & ~np.isin(self._row, self.held_out_rows))

    @property
    def _shortest(self) -> int:
        return min(stage.context for stage in self.order.recipe.stages)

    @cached_property
    def _row(self) -> NDArray[np.int64]:
        return np.asarray(self.rows.with_format("numpy")["row"])


def tune(order: Order, tell: Tell, say: Tell) -> None:
    """Fine-tune into `order.out`; `say` gets result lines as they become known. Raises ConfigError for an order that
    cannot be executed, or that differs from the one that its folder began with."""
    disable_progress_bars()
    disable_progress_bar()
    origin = read_origin(order.folder)
    _check(order, origin)
    _same(read_files, order.folder)  # before a library opens them
    turns = open_turns(AutoTokenizer.from_pretrained(order.folder))
    ends = list(dict.fromkeys([*turns.ends, origin.end]))
    replay = _replay(order, origin)
    if not is_first():
        work = partial_of(order.out) / WORK
        while not (work / READY).exists():
            if order.out.exists():
                return  # it was complete, and was renamed
            time.sleep(LOOK_SECONDS)
        ready = Ready(order, origin, turns, ends, load_from_disk(str(work / CHATS)), replay, work)
        return _stages(ready, _nobody, _nobody)
    with resumed(order.out) as partial:
        work = partial / WORK
        tell(f"hashing {order.folder}")
        _same(lambda folder: read_export(folder, tell), order.folder)
        if is_tuned(partial) and not work.exists():
            whole = read_tuned(partial).setting
            _require(partial, whole, _setting(order, origin, replay, whole.rows, whole.num_rows))
        else:
            work.mkdir(exist_ok=True)
            if (work / CHATS).exists():
                _unchanged(order.data, work / SOURCE)
            else:
                tell(f"reading {order.data}")
                write(work / SOURCE, _source(order.data).encode())
                rows = work / "rows"
                rmtree(rows, ignore_errors=True)  # of a file that may have been corrected since
                tokenised(read_rows(order.data, rows), turns, order.data, work / CHATS, order.max_bad)
                rmtree(rows, ignore_errors=True)
            ready = Ready(order, origin, turns, ends, load_from_disk(str(work / CHATS)), replay, work)
            _say_counts(ready, say)
            _trainable(ready)
            setting = _setting(order, origin, replay, digest(ready.rows).hex(), len(ready.rows))
            _begin(work / SETTING, setting)
            (work / READY).touch()
            _stages(ready, tell, say)
            _finish(ready, setting, partial)
        rmtree(partial / SPENT, ignore_errors=True)
    say(f"{order.out}: the fine-tuned model; {TUNED} names its sources")


def _nobody(text: str) -> None:
    """Discard a line: only one of several processes prints."""


# --- preparing ---------------------------------------------------------------------------------------------------


def _check(order: Order, origin: Origin) -> None:
    at_once = processes() * order.sequences
    for stage in order.recipe.stages:
        if order.sequences < 1 or stage.sequences % at_once:
            raise ConfigError(
                f"a step of {stage.sequences} sequences is not so many times {processes()} devices with --batch "
                f"{order.sequences}: choose others"
            )
    if not 0 <= order.max_bad < 1:
        raise ConfigError(f"--max-bad is {order.max_bad}, expected a share, 0 or more and below 1")
    if not order.on_cpu and not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU: leave out --device, or use cpu")
    if order.folder.resolve() in order.out.resolve().parents:
        raise ConfigError(f"{order.out} is inside the export and would damage it: choose another --out")
    if order.on_cpu and origin.run_spec.layout.num_parameters > 10**9:
        raise ConfigError("a model of this size cannot be tuned on a CPU: use a GPU, without --device cpu")


def _replay(order: Order, origin: Origin) -> Shards | None:
    """Return the run's data set, if a stage replays it."""
    needed = [stage.context for stage in order.recipe.stages if stage.replay]
    if not needed:
        return None
    if order.replay is None:
        raise ConfigError(
            f"recipe {order.recipe_name} replays text of the run: give the folder of its data set as --replay"
        )
    shards = Shards.open(order.replay, index_digest=origin.run_spec.data.index_digest)
    if shards.train.num_tokens < max(needed):
        raise ConfigError(f"{order.replay} has fewer tokens than one sequence of {max(needed)}")
    return shards


def _same(read: Callable[[Path], Export], folder: Path) -> None:
    try:
        read(folder)
    except Differs as fault:
        raise ConfigError(f"{folder} does not match its own description: {fault}") from None


def _trainable(ready: Ready) -> None:
    order = ready.order
    for number, stage in enumerate(order.recipe.stages, 1):
        if not len(ready.trained(stage)):
            raise ConfigError(
                f"{order.data} has no row for stage {number}: of {len(ready.rows)} rows some are held out, the others "
                f"are longer than {stage.context} tokens"
            )


def _setting(order: Order, origin: Origin, replay: Shards | None, rows: str, num_rows: int) -> Setting:
    return Setting(
        base=json.loads(origin.to_bytes()),
        recipe_name=order.recipe_name,
        recipe=order.recipe.model_dump(mode="json"),
        data=order.data,
        rows=rows,
        num_rows=num_rows,
        replay=replay.digest.hex() if replay is not None else None,
        sequences=order.sequences,
        processes=processes(),
        packages={name: version(name) for name in _PACKAGES},
    )


def _source(data: str) -> str:
    """Return the sha256 of the file of rows, as hex; empty for a data set of the hub, and where the file does not exist
    (any more)."""
    path = expanded(data)
    if data.startswith(HUB) or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _unchanged(data: str, noted: Path) -> None:
    """Raise ConfigError when the file of rows has changed since the order began: the old rows would be used, which the
    operator may not want."""
    if (found := _source(data)) and found != noted.read_text():
        raise ConfigError(
            f"{noted.parents[1]} was begun with other rows than {data} has now: give the same again, another --out, "
            "or remove it"
        )


def _begin(path: Path, setting: Setting) -> None:
    """Record the setting, or check that it equals the recorded one."""
    if not path.exists():
        return write(path, setting.model_dump_json().encode())
    _require(path.parents[1], Setting.model_validate_json(path.read_bytes()), setting)


def _require(partial: Path, begun: Setting, setting: Setting) -> None:
    other = [name for name in Setting.model_fields if getattr(begun, name) != getattr(setting, name)]
    if other:
        raise ConfigError(
            f"{partial} was begun with another {', '.join(other)}: give the same again, another --out, or remove it"
        )


# --- stages ------------------------------------------------------------------------------------------------------


def _stages(ready: Ready, tell: Tell, say: Tell) -> None:
    """Run the stages that are not done yet. Every process does the same."""
    order = ready.order
    model = order.folder
    for number, stage in enumerate(order.recipe.stages, 1):
        folder = ready.work / f"stage-{number}"
        if (folder / MODEL).exists():
            if number == 1:
                _say(ready, 0, say)
            _say(ready, number, say)
        else:
            tell(f"stage {number} of {len(order.recipe.stages)}")
            _stage(ready, number, stage, model, folder, tell, say)
        model = folder / MODEL


def _stage(ready: Ready, number: int, stage: Stage, model: Path, folder: Path, tell: Tell, say: Tell) -> None:
    order, rows = ready.order, ready.trained(stage)
    mix = Mix(stage, number, ready.rows, rows, ready.replay.train if ready.replay is not None else None)
    made = trainer(
        model,
        folder,
        order.recipe,
        stage,
        mix.dataset(),
        len(rows),
        ready.turns.tokenizer,
        sequences=order.sequences,
        cpu=order.on_cpu,
    )
    begun = newest(folder)
    made.accelerator.wait_for_everyone()
    if is_first():
        clear(folder)
    made.add_callback(Kept(ready.work.parent / TRAINING, number, made.schedule, begun, tell))
    if begun is not None:
        tell(f"going on from {begun.name}")
        if number == 1:
            _say(ready, 0, say)
    elif number == 1:
        made.add_callback(Before(lambda: _measure(ready, made, 0, say)))
    made.train(resume_from_checkpoint=str(begun) if begun is not None else None)
    _measure(ready, made, number, say)
    partial = folder / f"{MODEL}.partial"
    if is_first():
        rmtree(partial, ignore_errors=True)
    made.save_whole(partial, torch.float32)
    if is_first():
        os.rename(partial, folder / MODEL)
        for path in folder.glob("checkpoint-*"):
            rmtree(path)
    made.accelerator.wait_for_everyone()


def _measure(ready: Ready, made: StageTrainer, place: int, say: Tell) -> None:
    """Measure the model as it is, before (0) or after stage `place`, and save that entry of measured.json."""
    held = ready.held_out
    loss = made.loss_of(ready.rows.select(held).remove_columns(["length", "row"]))
    row = ready.rows[int(held[0])]["input_ids"]
    labels = ready.rows[int(held[0])]["labels"]
    # The assistant's last turn begins after the last unlabelled token that precedes a labelled one.
    begins = max((at for at in range(1, len(row)) if labels[at] >= 0 and labels[at - 1] < 0), default=1)
    room = made.model.config.max_position_embeddings - begins
    said = made.answer(row[:begins], ready.ends, max(1, min(ANSWER_TOKENS, room)))
    show = ready.turns.tokenizer.decode
    found = Measured(loss=loss, question=show(row[:begins]), answer=show(said))
    if is_first():
        path = ready.work / MEASURED
        before = json.loads(path.read_bytes())[:place] if place else []
        write(path, json.dumps([*before, found.model_dump()], allow_nan=False).encode())
        _say(ready, place, say)


def _say_counts(ready: Ready, say: Tell) -> None:
    """Print what of the rows is not used."""
    counts = read_counts(ready.work / CHATS)
    for kind, count in counts.bad.items():
        say(f"left out {count:,} rows: {kind}")
    for name, count in counts.left_out.items():
        say(f"the chat template leaves out {name} of {count:,} rows")


def _say(ready: Ready, place: int, say: Tell) -> None:
    """Print an entry of measured.json, possibly of an earlier process."""
    if is_first():
        found = Measured.model_validate(json.loads((ready.work / MEASURED).read_bytes())[place])
        when, question = (f"after stage {place}", "") if place else ("before", f"asked {found.question!r}: ")
        say(f"{when}: held-out chats {found.loss:.4f} nats a token; {question}{found.answer!r}")


def _finish(ready: Ready, setting: Setting, partial: Path) -> None:
    """Write every file of the model; its intermediate files are removed."""
    order, origin = ready.order, ready.origin
    last = ready.work / f"stage-{len(order.recipe.stages)}" / MODEL
    dtype = getattr(torch, origin.dtype)
    AutoModelForCausalLM.from_pretrained(last, dtype=dtype).save_pretrained(partial, max_shard_size="5GB")
    model = origin.run_spec.model
    table = config(model, origin.dtype, origin.end)
    table["max_position_embeddings"] = max(model.context, order.recipe.context)
    table["eos_token_id"] = ready.ends
    counts = read_counts(ready.work / CHATS)
    tuned = Tuned(
        setting=setting,
        measured=[Measured.model_validate(one) for one in json.loads((ready.work / MEASURED).read_bytes())],
        left_out=[len(ready.rows) - int(fitting(ready.rows, stage.context).sum()) for stage in order.recipe.stages],
        bad=counts.bad,
        not_in_template=counts.left_out,
    )
    copyfile(order.folder / TOKENIZER, partial / TOKENIZER)
    words = json.loads((order.folder / TOKENIZER_CONFIG).read_bytes())
    write(partial / TOKENIZER_CONFIG, as_json(words | {"chat_template": ready.turns.template}))
    write(partial / CONFIG, as_json(table))
    write(partial / GENERATION, as_json(generation_config(origin.end) | {"eos_token_id": ready.ends}))
    write(partial / "README.md", card(tuned))
    write(partial / TUNED, as_json(tuned.model_dump(mode="json")))
    for path in partial.iterdir():
        if path.is_file():  # safetensors makes its files readable by their owner only
            path.chmod((partial / CONFIG).stat().st_mode)
        sync(path)
    # Rename in one step: a process killed during the removal leaves either a complete model or a resumable state.
    os.rename(ready.work, partial / SPENT)
