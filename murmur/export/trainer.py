"""One stage of a fine-tuning by TRL's trainer: its settings, its schedule, and the saved state from which a killed
process resumes. Needs the extra `post`."""

import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from murmur.export.recipes import Recipe, Schedule, Stage
from murmur.files import sync, write
from murmur.protocol.errors import Spoilt
from murmur.training.meeting import launched

SEED = 0
WHOLE = "whole"
"""Marker file of a complete checkpoint."""
CHECKPOINT = "checkpoint-"
TELL_SECONDS = 10.0

Tell = Callable[[str], None]


def processes() -> int:
    """Return the number of this fine-tuning's processes, one per device (from `murmur torchrun`)."""
    place = launched()
    return 1 if place is None else place.size


def is_first() -> bool:
    """Whether this process writes the shared files."""
    place = launched()
    return place is None or place.rank == 0


class StageTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's trainer with a recipe's schedule, and a method to save the whole model."""

    schedule: Schedule

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        schedule = self.schedule
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda step: schedule.lr(step) / schedule.peak)
        return self.lr_scheduler

    def loss_of(self, rows: Dataset) -> float:
        """Return the mean loss of the rows' labelled tokens, each alike, nats per token. Raises Spoilt where it is not
        finite."""
        # The library's mean is of rows; those of few tokens would count as much as those of many.
        tokens = sum(sum(label >= 0 for label in row[1:]) for row in rows["labels"])
        loss = float(self.evaluate(eval_dataset=rows)["eval_loss"]) * len(rows) / max(1, tokens)
        if not math.isfinite(loss):
            raise Spoilt(f"the held-out chats' loss is {loss} after step {self.state.global_step} of this stage")
        return loss

    def prediction_step(self, model: Any, inputs: Any, *words: Any, **named: Any) -> tuple[Any, Any, Any]:
        """Return a row's loss as the sum over its labelled tokens."""
        loss, logits, labels = super().prediction_step(model, inputs, *words, **named)
        return loss * (inputs["labels"][:, 1:] >= 0).sum().to(loss.device), logits, labels

    def answer(self, question: list[int], ends: list[int], most: int) -> list[int]:
        """Return the model's greedy answer."""
        model = self.accelerator.unwrap_model(self.model) if processes() == 1 else self.model
        was = model.training
        model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            tokens = torch.tensor([question], device=self.args.device)
            found = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=most,
                eos_token_id=ends,
                pad_token_id=ends[0],
            )
        model.train(was)
        return [int(token) for token in found[0, len(question) :]]

    def save_whole(self, folder: Path, dtype: torch.dtype) -> None:
        """Save the model to `folder` as safetensors with its config. Every process calls it."""
        state = self.accelerator.get_state_dict(self.model)
        if is_first():
            model = self.accelerator.unwrap_model(self.model)
            low = {name: value.to(dtype) for name, value in state.items()}
            if model.config.tie_word_embeddings:
                low.pop("lm_head.weight", None)
            model.save_pretrained(folder, state_dict=low, max_shard_size="5GB")
        self.accelerator.wait_for_everyone()


def trainer(
    model: Path, folder: Path, recipe: Recipe, stage: Stage, data: Dataset, rows: int, tokenizer: Any, **given: Any
) -> StageTrainer:
    """Return the trainer of a stage that begins with the model in `model` and saves to `folder`. rows: of chat, which
    determine the schedule. given: `sequences` at once, `cpu`."""
    schedule = stage.schedule(rows)
    set_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about names that TRL itself still uses
        args = _config(folder, recipe, stage, schedule, **given)
    # After the settings: under FSDP they make only the first process read the weights.
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    whole.config.max_position_embeddings = max(whole.config.max_position_embeddings, recipe.context)
    made = StageTrainer(model=whole, args=args, train_dataset=data, processing_class=tokenizer)
    made.schedule = schedule
    made.remove_callback(PrinterCallback)
    return made


def _config(folder: Path, recipe: Recipe, stage: Stage, schedule: Schedule, *, sequences: int, cpu: bool) -> SFTConfig:
    count = processes()
    return SFTConfig(
        output_dir=str(folder),
        max_steps=schedule.steps,
        per_device_train_batch_size=sequences,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=stage.sequences // (count * sequences),
        learning_rate=schedule.peak,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        optim="adamw_torch",
        bf16=not cpu,
        use_cpu=cpu,
        seed=SEED,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=not cpu and count == 1,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would log another loss in place of one that is not finite
        save_strategy="steps",
        save_steps=min(recipe.save_steps, schedule.steps),
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        **(_sharded() if count > 1 else {}),
    )


def _sharded() -> dict[str, Any]:
    """Return the settings of FSDP2 through accelerate: weights, gradients and moments in fp32 shards, layers
    recomputed."""
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": True,
        },
        # Unsharded gradients that wait for the last micro-batch would be the whole model on every device.
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


# --- going on ----------------------------------------------------------------------------------------------------


def newest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint."""
    whole = [path.parent for path in folder.glob(f"{CHECKPOINT}*/{WHOLE}")]
    return max(whole, key=_step, default=None)


def clear(folder: Path) -> None:
    """Remove incomplete checkpoints of a killed process."""
    for path in folder.glob(f"{CHECKPOINT}*"):
        if not (path / WHOLE).exists():
            rmtree(path)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


class Before(TrainerCallback):  # type: ignore[misc]
    """Calls a function when everything is set up and no step is done. Earlier, an evaluation would make the trainer
    consider the model prepared, and several processes would each train their own."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._do()


class Kept(TrainerCallback):  # type: ignore[misc]
    """Marks complete checkpoints, and writes each step's learning rate and loss to `log`. Lines after the checkpoint
    from which training resumes are dropped."""

    def __init__(self, log: Path, number: int, schedule: Schedule, begun: Path | None, tell: Tell) -> None:
        self._log, self._number, self._schedule, self._tell = log, number, schedule, tell
        self._first = _step(begun) if begun is not None else 0
        self._lr = 0.0
        self._began = self._told = time.monotonic()
        if is_first():
            _cut(log, number, self._first)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.distributed_state.wait_for_everyone()
        if is_first():
            checkpoint = Path(args.output_dir) / f"{CHECKPOINT}{state.global_step}"
            for path in checkpoint.rglob("*"):
                sync(path)
            (checkpoint / WHOLE).touch()
            sync(checkpoint)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any) -> None:
        self._lr = optimizer.param_groups[0]["lr"]

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **_: Any) -> None:
        if "loss" not in logs:
            return
        # Before this step's state is saved: who resumed from it would never come further.
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise Spoilt(
                    f"stage {self._number}, step {state.global_step}: {name} is {logs[name]}, so the model is spoilt. "
                    "Use a lower learning rate, or look at what the export and the chats hold"
                )
        if not is_first():
            return
        step, of, now = state.global_step, self._schedule.steps, time.monotonic()
        line = {"stage": self._number, "step": step, "lr": self._lr, "loss": float(logs["loss"])}
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        if now - self._told >= TELL_SECONDS:
            self._told = now
            left = (of - step) * (now - self._began) / max(1, step - self._first)
            minutes = f"{left / 60:,.0f} min left"
            self._tell(f"stage {self._number}, step {step:,} of {of:,}: loss {line['loss']:.4f}, {minutes}")


def _cut(log: Path, number: int, step: int) -> None:
    """Drop this stage's lines after `step`, those of later stages, and an incomplete last line of a killed process."""
    if not log.exists():
        return
    kept = [line for line in log.read_text(encoding="utf-8").splitlines(True) if _before(line, number, step)]
    write(log, "".join(kept).encode())


def _before(line: str, number: int, step: int) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return (found["stage"], found["step"]) <= (number, step)
