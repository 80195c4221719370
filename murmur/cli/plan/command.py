"""`murmur plan`: what a run asks of a node, before anything is bought or started."""

import argparse
import json
import sys

from murmur.plan import presets
from murmur.plan.clock_fit import as_toml, fit
from murmur.plan.machine import add_machine
from murmur.plan.network import as_json, planned, refusals
from murmur.plan.requirements import Plan
from murmur.plan.timetable import duration, fitted, lines


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
        sys.stdout.writelines(
            f"{line}\n" for line in fitted(lines(plan, network, refusals(plan), measured=options.measure))
        )
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
