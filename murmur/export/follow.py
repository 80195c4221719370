"""Evaluation of a run's checkpoints, each once: rows of a file that the page shows. The held-out loss needs no
extra."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from murmur.export.evaluate import evaluate
from murmur.export.folder import Tell, rebuilt, write
from murmur.export.heldout import held_out_loss
from murmur.export.rows import append, read_rows
from murmur.export.states import States
from murmur.export.tensors import SHARD_BYTES
from murmur.export.tokenizer import TokenizerFiles
from murmur.protocol.errors import StorageError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation's settings, and the file for its rows. tasks: as for `murmur.export.evaluate.evaluate`, none
    without the extra `post`; options: its further arguments. held_out: int64 [num, context + 1]."""

    rows: Path
    held_out: Tensor
    tokenizer: TokenizerFiles
    device: torch.device
    tasks: Mapping[str, int | None]
    options: Mapping[str, Any]

    def done(self) -> set[int]:
        """Return the rounds at whose start the state is already evaluated, with tasks where there are tasks now."""
        return {row["round"] for row in read_rows(self.rows) if row["tasks"].keys() >= self.tasks.keys()}

    def look(self, states: States, tell: Tell, *, newest: bool) -> list[dict[str, Any]]:
        """Evaluate every checkpoint that has no row yet, the newest first, and write a row for each.

        Stops at the first one that no source has: older ones are gone too. newest: evaluate the newest state too.
        Raises ConfigError, ChainError; StorageError for a newest state that cannot be fetched.
        """
        done, every = self.done(), states.run.first.checkpoint_rounds
        due = [r for r in range(states.newest, 0, -1) if r % every == 0 or (newest and r == states.newest)]
        found = []
        for place, round in enumerate(due):
            if round in done:
                continue
            tell(f"evaluating the state at the start of round {round}")
            try:
                found.append(self._one(states, round, tell))
            except StorageError as fault:
                if not place:
                    raise
                tell(f"round {round} and what was before it is not to be had any more ({fault})")
                break
        return found

    def _one(self, states: States, round: int, tell: Tell) -> dict[str, Any]:
        run = states.run
        with TemporaryDirectory(dir=self.rows.parent, prefix=".evaluate-") as temporary:
            named, state = rebuilt(states, round, Path(temporary) / "work")
            loss = held_out_loss(run.first.model, state.theta, self.held_out, self.device)
            row: dict[str, Any] = {"round": round, "theta": state.digest.hex(), "loss": loss, "tasks": {}}
            if self.tasks:
                folder = Path(temporary) / "export"
                folder.mkdir()
                origin = write(folder, run.id, run.first, named, state, self.tokenizer, "bfloat16", SHARD_BYTES, tell)
                results = evaluate(folder, origin, self.tasks, **self.options)["results"]
                row["tasks"] = {name: _headline(entry["metrics"]) for name, entry in results.items()}
        row["time"] = time.time()
        append(self.rows, row)
        return row


def _headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without errors and counts."""
    return {name: value for name, value in metrics.items() if "_stderr" not in name and name != "sample_len"}
