"""`murmur plan --sft`: the requirements of fine-tuning a run's model on a machine."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from murmur.export.cost import Cost, StageCost, cost
from murmur.export.recipes import recipe
from murmur.plan.machine import GB
from murmur.plan.requirements import DAY_SECONDS, Plan
from murmur.plan.timetable import duration, fitted
from murmur.protocol.spec import RunSpec
from murmur.training.memory import RESERVE


def show(source: str, plan: Plan, *, as_json: bool) -> int:
    """Print the plan; the exit status is 1 where it does not fit. Raises ConfigError for an invalid recipe."""
    found = cost(plan.spec, recipe(source), plan.gpus, plan.gpu_bytes, plan.rates.compute)
    refused = refusals(found, plan)
    if as_json:
        sys.stdout.write(json.dumps(table(source, found, plan, refused), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in fitted(lines(source, found, plan, refused)))
    return 1 if refused else 0


def refusals(found: Cost, plan: Plan) -> list[str]:
    """Return why it is impossible, one sentence for each stage."""
    told = []
    for number, stage in enumerate(found.stages, 1):
        if not stage.sequences_at_once:
            needed = stage.gpus_needed
            remedy = "no number of them suffices" if needed is None else f"it needs {needed} of them"
            told.append(
                f"stage {number} does not fit on {plan.gpus} x {plan.gpu_bytes / GB:,g} GB: {remedy}, or GPUs with "
                "more memory"
            )
        elif stage.stage.sequences % plan.gpus:
            told.append(f"stage {number} has {stage.stage.sequences} sequences a step, which {plan.gpus} cannot share")
    return told


def lines(source: str, found: Cost, plan: Plan, refused: Sequence[str]) -> Iterator[str]:
    """Yield the plan as text, at most 100 columns wide."""
    spec: RunSpec = plan.spec
    yield f"{spec.name}, fine-tuned by recipe {source}: {plan.parameters:,} parameters"
    yield f"on {plan.gpus} x {plan.gpu_bytes / GB:,g} GB at {plan.rates.compute.one / 1e12:,.3g} TFLOP/s sustained each"
    yield ""
    yield from (["REFUSED:", *(f"- {reason}" for reason in refused)] if refused else ["IT FITS."])
    yield ""
    yield f"{'':<34}" + "".join(f"{f'stage {number}':>16}" for number in range(1, len(found.stages) + 1))
    rows = [
        ("context", [f"{one.stage.context:,}" for one in found.stages]),
        ("sequences a step", [f"{one.stage.sequences:,}" for one in found.stages]),
        ("  of them replayed text", [f"{one.stage.replay_sequences:,}" for one in found.stages]),
        ("steps", [f"{one.steps:,}" for one in found.stages]),
        ("tokens, at most", [f"{one.tokens:.3g}" for one in found.stages]),
        ("FLOPs, at most", [f"{one.flops:.3g}" for one in found.stages]),
        ("a step, at most", [duration(one.seconds / one.steps) for one in found.stages]),
        ("time, at most", [_long(one.seconds) for one in found.stages]),
        ("memory of each GPU, GB", ["" for _ in found.stages]),
        *((f"  {name.replace('_', ' ')}", _sizes(found.stages, name)) for name in found.stages[0].gpu),
        ("  total", [f"{one.gpu_bytes / GB:,.1f}" for one in found.stages]),
        ("sequences at once", [f"{one.sequences_at_once:,}" for one in found.stages]),
    ]
    for label, cells in rows:
        yield f"{label:<34}{''.join(f'{cell:>16}' for cell in cells)}".rstrip()
    yield ""
    yield f"all of it      {_long(found.seconds)} at most: not packed, so shorter chats take less"
    yield f"a GPU's share  {(1 - RESERVE) * plan.gpu_bytes / GB:,.1f} GB of each can be planned with"
    yield f"host memory    {found.host_bytes / GB:,.1f} GB, while the first process reads the model for all"
    yield f"disk           {found.disk_bytes / GB:,.0f} GB: three checkpoints, the model between stages and at the end"


def _sizes(stages: Sequence[StageCost], name: str) -> list[str]:
    return [f"{one.gpu[name] / GB:,.1f}" if one.gpu[name] else "-" for one in stages]


def _long(seconds: float) -> str:
    return duration(seconds) if seconds < 2 * DAY_SECONDS else f"{seconds / DAY_SECONDS:,.1f} days"


def table(source: str, found: Cost, plan: Plan, refused: Sequence[str]) -> dict[str, Any]:
    """Return the plan for a program, in bytes and seconds."""
    return {
        "spec": plan.spec.name,
        "recipe": source,
        "refused": list(refused),
        "gpus": plan.gpus,
        "gpu_memory_bytes": plan.gpu_bytes,
        "gpu_flops": plan.rates.compute.one,
        "parameters": plan.parameters,
        "seconds": found.seconds,
        "host_bytes": found.host_bytes,
        "disk_bytes": found.disk_bytes,
        "stages": [
            {name: value for name, value in asdict(one).items() if name != "stage"}
            | {"gpu_bytes": one.gpu_bytes, "stage": one.stage.model_dump(mode="json")}
            for one in found.stages
        ],
    }
