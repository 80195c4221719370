"""`murmur doctor --trace`: how far executions of one inner round on this machine are apart, beside the limits that
validators apply to miners' steps (docs/protocol.md section 9)."""

import json
import os
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gauntlet.repetition import LIMITS, Repetition
from murmur.cli.doctor.examination import lines, width
from murmur.cli.doctor.executions import Round, apart, worst
from murmur.data.shards import Shards
from murmur.lab.localnet.training_text import text_data
from murmur.node.config.device import choose_device, describe
from murmur.node.config.settings import given, load
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import Check, Status
from murmur.node.doctor.start import CHECKS
from murmur.node.program import process
from murmur.plan import presets
from murmur.plan.training_speed import cut, most_parameters
from murmur.protocol.assignment import page_at
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec
from murmur.training.loader import sequences

NAME = 17
HEADS = {"moves: median": 15, "largest ": 9, "gradients: median": 19, "largest": 9}
"""Columns of a row and how wide they are, behind the NAME of an execution."""
UNCONFIGURED = "tiny"
"""The preset that is played where no run is configured."""
VERDICTS = {
    "half": "Within half of the limits: honest steps of such a machine are far from being taken for work that was not "
    "done. An owner may count on that",
    "within": "Within the limits, but beyond half of them: honest steps of such a machine pass here, and one of "
    "another kind may find them beyond. An owner should try both kinds before miners with them join",
    "beyond": "BEYOND THE LIMITS: a validator with such a machine takes honest steps for work that was not done, and "
    "does not pay it. Use it in no run with traces, and report these figures",
}


def trace(options: Namespace) -> int:
    """Play the round, show the distances, and return the exit status: 1 beyond the limits. Raises ConfigError."""
    process.log_to_stderr("ERROR")
    spec, text, device = named(options.trace) if options.trace else _configured(options)
    model = cut(spec.model, most_parameters(device))
    if model is None:
        raise ConfigError(f"not even one layer of {spec.name} is small enough for a trial on this machine")
    round = Round(RunSpec.model_validate(spec.model_dump() | {"model": model.model_dump()}), text, device)
    if not options.json:
        _write("\n".join([*textwrap.wrap(heading(round, spec), width()), "", row("", HEADS)]))
    found = {}
    for what, one in apart(round, _tell):
        found[what] = one
        if not options.json:
            _write(row(what, [f"{far:.4f}" for far in one.distances]))
    verdict = judged(found.values())
    if options.json:
        _write(json.dumps({"trace": as_table(round, found, verdict)}, indent=2))
    else:
        _write(row("limits", [f"{limit:g}" for limit in LIMITS]) + "\n")
        _write("\n".join(textwrap.wrap(f"{VERDICTS[verdict]}.", width())))
    return 1 if verdict == "beyond" else 0


# --- the round -----------------------------------------------------------------------------------------------------


def named(source: str) -> tuple[RunSpec, Tensor, torch.device]:
    """Return the preset or spec file, the local network's text for it, and the best device. Raises ConfigError."""
    spec = presets.read(source).first
    train = Shards.open(text_data(_tell)).train
    needed = spec.inner.steps * spec.inner.sequences * spec.model.context + 1
    tokens = np.resize(train.tokens(0, min(needed, train.num_tokens)), needed)  # again and again, if it is too short
    text = torch.from_numpy(tokens).unfold(0, spec.model.context + 1, spec.model.context)
    return spec, text, choose_device("auto")


def _configured(options: Namespace) -> tuple[RunSpec, Tensor, torch.device]:
    """Return what `named` does of the run that is configured, with its own first pages; of UNCONFIGURED where none is.
    Raises ConfigError with what a check found."""
    flags = {"config": options.config} if options.config else {}
    if "netuid" not in given(flags, os.environ):
        _tell(f"no run is configured: the preset {UNCONFIGURED} is played")
        return named(UNCONFIGURED)
    words = ["--config", options.config] if options.config else []
    node = ExaminedNode(load("murmur doctor", "", words, os.environ), options.role, keeps=False)
    try:
        return first_pages(node)
    finally:
        node.close()


def first_pages(node: ExaminedNode) -> tuple[RunSpec, Tensor, torch.device]:
    """Return the run of a node, its first pages and its device, by the checks that open them. Raises ConfigError."""
    for finding in node.examine(needed("device", "data")):
        if finding.status is Status.FAULT:
            raise ConfigError("\n".join(lines(finding, width())))
    spec = node.run.spec_at(node.round)
    pages = [page_at(spec.inner.first_page + number, spec.page_tokens) for number in range(spec.pages_per_round)]
    text = sequences(node.shards.train, pages, spec.model.context)[: spec.inner.steps * spec.inner.sequences]
    return spec, text, choose_device(node.config.device)


def needed(*names: str) -> list[Check]:
    """Return these checks of a node's start and those that they need, in order."""
    wanted, found = set(names), list[Check]()
    for check in reversed(CHECKS):
        if check.name in wanted:
            wanted |= set(check.needs)
            found.insert(0, check)
    return found


# --- what is shown -------------------------------------------------------------------------------------------------


def heading(round: Round, spec: RunSpec) -> str:
    inner, layers = round.spec.inner, f"{round.spec.model.layers} of {spec.model.layers} layers"
    return (
        f"{spec.name}, {layers}, seeded weights, on {describe(round.device)}: {inner.steps} steps of "
        f"{inner.sequences} sequences, {round.places} places. How far other executions are from a plain one:"
    )


def row(name: str, cells: Iterable[str]) -> str:
    columns = zip(cells, HEADS.values(), strict=True)
    return f"{name:<{NAME}}{''.join(f'{cell.strip():>{wide}}' for cell, wide in columns)}"


def judged(found: Iterable[Repetition]) -> str:
    """Return the word for the farthest of these, a key of VERDICTS."""
    share = max(map(worst, found))
    return "half" if share <= 0.5 else "within" if share <= 1.0 else "beyond"


def as_table(round: Round, found: Mapping[str, Repetition], verdict: str) -> dict[str, Any]:
    """Return what was found for a program. Of each pair of distances, the median and the largest."""
    return {
        "spec": round.spec.name,
        "layers": round.spec.model.layers,
        "device": describe(round.device),
        "executions": {what: _pairs(one.distances) for what, one in found.items()},
        "limits": _pairs(LIMITS),
        "verdict": verdict,
    }


def _pairs(distances: tuple[float, ...]) -> dict[str, list[float]]:
    return {"moves": list(distances[:2]), "gradients": list(distances[2:])}


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(what: str) -> None:
    """Tell the waiting user what is done."""
    print(what, "..", file=sys.stderr, flush=True)  # noqa: T201
