"""Evaluation of a run's checkpoints, now or as they appear (murmur/export/follow.py)."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from murmur.cli.export.exports import data_of, open_source, tell
from murmur.export.evaluate import parse_tasks, require
from murmur.export.follow import Evaluation
from murmur.export.rows import described
from murmur.export.states import States
from murmur.export.tokenizer import run_tokenizer
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.page.evaluations import in_folder, in_home
from murmur.protocol.errors import ChainError, StorageError
from murmur.training.evaluate import held_out_sequences

LOOKS_A_ROUND = 4
SHORTEST_LOOK_SECONDS = 2.0


def evaluate_run(options: argparse.Namespace, evaluator: Mapping[str, Any]) -> int:
    """Evaluate the existing checkpoints, or follow the run until its end or an interrupt. `evaluator`: options of
    lm-eval. Raises ConfigError, StorageError, ChainError."""
    tasks = parse_tasks(options.tasks) if options.tasks is not None else {}
    if tasks:
        require()
    there = open_source(options, options.source, options.netuid)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    spec = there.run.first
    with data_of(there, options) as (shards, folder):
        evaluation = Evaluation(
            rows_of(there),
            held_out_sequences(shards, spec.data.held_out_sequences, spec.model.context),
            run_tokenizer(shards.index.tokenizer, shards.index.tokenizer_config, folder),
            device,
            tasks,
            evaluator,
        )
        evaluation.rows.parent.mkdir(parents=True, exist_ok=True)
        if not options.follow:
            found = evaluation.look(States(there.run, there.ports, tell), tell, newest=True)
        else:
            found = []
            for row in _followed(there, evaluation):
                _say(row, options)
        for row in sorted(found, key=lambda row: row["round"]):
            _say(row, options)
    sys.stdout.write(f"{evaluation.rows} has the results: murmur dashboard and murmur run show display them\n")
    return 0


def rows_of(there: OpenedNetwork) -> Path:
    """Return the file of a run's evaluations: in its run folder, or in the home of the evaluating process."""
    return in_folder(there.home) if there.recorded else in_home(there.home, there.run.id)


def _say(row: dict[str, object], options: argparse.Namespace) -> None:
    sys.stdout.write((json.dumps(row) if options.json else described(row)) + "\n")
    sys.stdout.flush()


def _followed(there: OpenedNetwork, evaluation: Evaluation) -> Iterator[dict[str, object]]:
    """Yield rows as they appear. Only a local network's end can be detected."""
    clock = there.run.first.clock
    pause = max(SHORTEST_LOOK_SECONDS, clock.round_blocks * clock.block_seconds / LOOKS_A_ROUND)
    tell(f"following run {there.run.first.name}: every {there.run.first.checkpoint_rounds} rounds")
    while True:
        ended = there.recorded and (there.home / "report.json").exists()
        try:
            yield from evaluation.look(States(there.run, there.ports, tell), tell, newest=ended)
        except (ChainError, StorageError) as fault:
            if ended:
                raise
            tell(f"{fault}; trying again in {pause:.0f} s")
        if ended:
            return
        time.sleep(pause)
