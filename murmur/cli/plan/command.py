"""`murmur plan`: what a run asks of a node, before anything is bought or started."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from math import isfinite
from typing import Any, TypeVar

from murmur.plan import presets
from murmur.plan.clock_fit import as_toml, fit
from murmur.plan.phases import VALIDATORS
from murmur.plan.rates import Rate, Rates
from murmur.plan.requirements import ROLES, Missed, Plan, TrainerPlan, link
from murmur.plan.timetable import duration, lines
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec, TrainingSpec
from murmur.training.memory import Role, disk_parts

GB = 10**9
TOLD = 3
"""Phases that a refusal names."""

Planned = TypeVar("Planned", bound=TrainerPlan)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What a run needs from one node: a round's phases and deadlines, memory, disk, tokens and FLOPs, "
        "bytes up and down, utilization. It is calculated from the spec; nothing is started. The exit status "
        "is 1 when the plan cannot work: GPUs too small, a miner that commits too late, a validator that "
        "judges too late."
    )
    parser.add_argument("--spec", required=True, help="a preset (murmur/configs/), or a TOML or JSON file")
    add_machine(parser)
    parser.add_argument(
        "--members",
        type=int,
        help="plan a cluster with this number of members over one bucket (murmur cluster), instead of a run on a chain",
    )
    parser.add_argument(
        "--sft",
        metavar="RECIPE",
        help="plan fine-tuning of the run's model instead of the run: a recipe of murmur sft, by name or file",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="find the shortest clock that this machine can keep, and print it as TOML (with --json: the plan with "
        "that clock)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes and seconds")


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


def run(options: argparse.Namespace) -> int:
    """Print the plan; the exit status is 1 for one that is refused."""
    if options.members is not None or presets.is_cluster(options.spec):
        from murmur.plan import cluster

        return cluster.run(options)
    network = presets.read(options.spec)
    plan = planned(network.first, options)
    if options.sft is not None:
        from murmur.cli.plan.fine_tuning import show

        return show(options.sft, plan, as_json=options.json)
    if options.fit:
        plan = fit(plan)
        if not options.json:
            return _show_fit(plan)
    if options.json:
        sys.stdout.write(json.dumps(as_json(plan), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(plan, network, refusals(plan), measured=options.measure))
    return 1 if refusals(plan) else 0


def _show_fit(plan: Plan) -> int:
    """The clock as a spec has it, with what it gives; the exit status."""
    refused = refusals(plan)
    clock = plan.spec.clock
    told = [
        f"{clock.round_blocks} blocks of {clock.block_seconds:g} s: {duration(plan.round_seconds)} a round, of which "
        f"{plan.utilization:.1%} is compute",
        f"for {plan.gpus} x {plan.rates.compute.one / 1e12:g} TFLOP/s; {plan.margin:.0%} of the compute is kept free",
        *(f"STILL REFUSED: {reason}" for reason in refused),
    ]
    sys.stdout.write("".join(f"# {line}\n" for line in told) + "\n" + as_toml(plan))
    return 1 if refused else 0


def planned(spec: RunSpec, options: argparse.Namespace) -> Plan:
    """The spec on the machine that the options say (`add_machine`). Raises ConfigError for one that cannot be."""
    gpus, memory = machine(spec, options)
    plan = Plan(spec, gpus, memory, validators=options.validators, has_data=options.with_data)
    return measured_or_given(options, plan)


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
    """What is measured next, to whoever waits."""
    print(f"measuring {what} ..", file=sys.stderr, flush=True)  # noqa: T201


def refusals(plan: Plan, roles: Sequence[Role] = ROLES) -> list[str]:
    """Why a node as planned cannot take part in one of these roles, one sentence each; none when it can."""
    found = too_small(plan)
    found += [_late(missed) for missed in plan.missed if missed.deadline.role in roles]
    if "validator" in roles and plan.uplink_share > 1:
        found.append(
            f"a validator's uplink is needed {plan.uplink_share:.0%} of the time: its copies and checkpoints are "
            "never finished, and joiners find none"
        )
    return found


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


def _late(missed: Missed) -> str:
    deadline = missed.deadline
    longest = ", ".join(f"{timed.phase.name!r} {duration(timed.seconds)}" for timed in missed.path[:TOLD])
    return (
        f"a {deadline.role} {deadline.does} {duration(missed.ends - missed.by)} after {deadline.when}: "
        f"{deadline.missed}. The longest phases before it: {longest}"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for a program, in bytes and seconds."""
    return {
        "spec": plan.spec.name,
        "refused": refusals(plan),
        "loses_own_state": plan.loses_own_state,
        "gpus": plan.gpus,
        "on_gpu": plan.on_gpu,
        "validators": plan.validators,
        "has_data": plan.has_data,
        "margin": plan.margin,
        "clock": plan.spec.clock.model_dump(),
        "gpu_memory_bytes": plan.gpu_bytes,
        "gpu_flops": plan.rates.compute.one,
        "up_mbps": 8e-6 * plan.rates.up.one,
        "down_mbps": 8e-6 * plan.rates.down.one,
        "parameters": plan.parameters,
        "parameters_untied": plan.parameters_untied,
        "tokens": plan.tokens,
        "flops": plan.flops,
        "optimizer_flops": plan.optimizer_flops,
        "payload_bytes": plan.payload_bytes,
        "download_bytes": plan.download_bytes,
        "compute_seconds": plan.compute_seconds,
        "upload_seconds": plan.upload_seconds,
        "download_seconds": plan.download_seconds,
        "round_seconds": plan.round_seconds,
        "utilization": plan.utilization,
        "correction_seconds": plan.correction_seconds,
        "published_after_correction": plan.published_after_correction,
        "uplink_share": plan.uplink_share,
        "published_utilization": plan.published_utilization,
        "phases": _phases_table(plan),
        "restart": [
            {"name": name, "role": role, "seconds": seconds} for role in ROLES for name, seconds in plan.restart(role)
        ],
        "memory": {name: asdict(part) for name, part in plan.memory().items()},
        "memory_total": asdict(plan.memory_total),
        "micro_sequences": plan.micro_sequences,
        "gpus_needed": plan.gpus_needed,
        "host_bytes_peak": plan.host_bytes_peak("miner"),
        "disk_bytes": plan.disk_bytes("miner"),
        "disk_bytes_per_day": plan.disk_bytes_per_day("miner"),
        "nodes": {role: _node_table(plan, role) for role in ROLES},
        "rates": rates_table(plan.rates),
    }


def _phases_table(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": timed.phase.name,
            "role": role,
            "begins": timed.begins,
            "seconds": timed.seconds,
            "critical": timed.critical,
            "overlaps": list(timed.overlaps),
        }
        for role in ROLES
        for timed in plan.timeline(role)
    ]


def _node_table(plan: Plan, role: Role) -> dict[str, Any]:
    return {
        "host_bytes": plan.host(role),
        "host_bytes_peak": plan.host_bytes_peak(role),
        "disk": disk_parts(plan.spec, role),
        "disk_bytes": plan.disk_bytes(role),
        "disk_bytes_per_day": plan.disk_bytes_per_day(role),
        "data_bytes_per_day": plan.data_bytes_per_day(role),
    }


def rates_table(rates: Rates) -> dict[str, Any]:
    """Units a second of one thread and of all, None where these are as many times one's; `threads` as it is."""
    found: dict[str, Any] = {"threads": rates.threads}
    for field in fields(rates):
        if field.name != "threads":
            rate: Rate = getattr(rates, field.name)
            found[field.name] = {"one": rate.one, "most": rate.most if isfinite(rate.most) else None}
    return found
