"""The machine that a plan is made for: its flags, what is measured in their place, and what it is too small for."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from math import isfinite
from typing import Any, TypeVar

from murmur.plan.phases import VALIDATORS
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import TrainerPlan, link
from murmur.plan.timeline import Timed
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import TrainingSpec

GB = 10**9

Planned = TypeVar("Planned", bound=TrainerPlan)


def add_machine(parser: argparse._ActionsContainer) -> None:
    """Flags that say which node is planned for."""
    parser.add_argument("--gpus", type=int, help="GPUs of the node (default 8; with --measure those of this machine)")
    parser.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GB",
        help="memory of each GPU, 10^9 bytes (default 180: B200; with --measure this machine's)",
    )
    parser.add_argument(
        "--gpu-tflops",
        type=float,
        metavar="TFLOP/s",
        help="speed of each GPU in training, not its peak (default 530: the published 72B run on B200; with "
        "--measure a test)",
    )
    parser.add_argument(
        "--up", type=float, metavar="Mb/s", help="uplink, 10^6 bits a second (default: the spec's; a cluster's: 500)"
    )
    parser.add_argument("--down", type=float, metavar="Mb/s", help="downlink (default: the spec's; a cluster's: 500)")
    parser.add_argument(
        "--validators",
        type=int,
        default=VALIDATORS,
        help=f"number of validators with equal stake: they share the copies of payloads (default {VALIDATORS})",
    )
    parser.add_argument(
        "--with-data", action="store_true", help="the data set is on the node's disk: nothing is fetched"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure this machine instead of assuming a server: hash, disk, memory, codec, and training. Takes "
        "about half a minute and uses the disk of the node's home",
    )


def machine(spec: TrainingSpec, options: argparse.Namespace) -> tuple[int, int]:
    """GPUs, and bytes of each. Raises ConfigError for a machine that cannot be."""
    for name in ("gpus", "gpu_memory", "gpu_tflops", "up", "down", "validators"):
        value = getattr(options, name)
        if value is not None and not 1e-6 <= value < 1e9:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {value}, expected a number above 0: see `murmur plan --help` for its unit")
    most = spec.inner.sequences
    if options.gpus is not None and options.gpus > most:
        raise ConfigError(
            f"--gpus is {options.gpus}, but an inner step of {spec.name} has {most} sequences, and every GPU "
            f"takes at least one: use {most} or fewer"
        )
    return options.gpus or 8, int((options.gpu_memory or 180.0) * GB)


def measured_or_given(options: argparse.Namespace, plan: Planned) -> Planned:
    """The plan with what was measured, and with what was given in place of that."""
    if options.measure:
        from murmur.plan.measure import measure  # torch, which arithmetic need not wait for

        plan = measure(plan, options, tell).plan
    rates = plan.rates
    return replace(
        plan,
        rates=replace(
            rates,
            compute=rates.compute if options.gpu_tflops is None else Rate(options.gpu_tflops * 1e12),
            up=rates.up if options.up is None else link(options.up),
            down=rates.down if options.down is None else link(options.down),
        ),
    )


def tell(what: str) -> None:
    """Tell the waiting user what is measured next."""
    print(f"measuring {what} ..", file=sys.stderr, flush=True)  # noqa: T201


def too_small(plan: TrainerPlan) -> list[str]:
    """Why its GPUs do not hold the model, if they do not."""
    if not plan.on_gpu or plan.micro_sequences:
        return []
    needed = plan.gpus_needed
    remedy = (
        "no number of GPUs is enough: use GPUs with more memory"
        if needed is None
        else f"it needs {needed} of them, or GPUs with more memory"
    )
    return [f"the model does not fit on {plan.gpus} x {plan.gpu_bytes / GB:,g} GB: {remedy}"]


def rates_table(rates: Rates) -> dict[str, Any]:
    """Units a second of one thread and of all, None where these are as many times one's; `threads` as it is."""
    found: dict[str, Any] = {"threads": rates.threads}
    for field in fields(rates):
        if field.name != "threads":
            rate: Rate = getattr(rates, field.name)
            found[field.name] = {"one": rate.one, "most": rate.most if isfinite(rate.most) else None}
    return found


FIGURES = (
    *("gpus", "on_gpu", "has_data", "parameters", "tokens", "flops", "payload_bytes", "download_bytes"),
    *("compute_seconds", "upload_seconds", "download_seconds", "round_seconds", "utilization", "published_utilization"),
    *("micro_sequences", "gpus_needed"),
)
"""Fields that the JSON of every plan has under the plan's own names."""


def figures_table(plan: TrainerPlan, refused: Sequence[str]) -> dict[str, Any]:
    """Return what the JSON of every plan has, in bytes and seconds."""
    return {
        "spec": plan.spec.name,
        "refused": list(refused),
        **{name: getattr(plan, name) for name in FIGURES},
        "gpu_memory_bytes": plan.gpu_bytes,
        "gpu_flops": plan.rates.compute.one,
        "up_mbps": 8e-6 * plan.rates.up.one,
        "down_mbps": 8e-6 * plan.rates.down.one,
        "memory": {name: asdict(part) for name, part in plan.memory().items()},
        "memory_total": asdict(plan.memory_total),
        "rates": rates_table(plan.rates),
    }


def phase_table(timed: Timed) -> dict[str, Any]:
    """Return a phase as the JSON of every plan has it."""
    return {
        "name": timed.phase.name,
        "begins": timed.begins,
        "seconds": timed.seconds,
        "critical": timed.critical,
        "overlaps": list(timed.overlaps),
    }
