"""`murmur plan`: what a run asks of a miner, before anything is bought or started."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, astuple
from typing import Any

from murmur import presets
from protocol.errors import ConfigError
from protocol.run import Run
from training.plan import (
    COVENANT,
    RESERVE,
    STEP_PARTS,
    SUSTAINED_FLOPS,
    Part,
    Plan,
    milestones,
    transfer_seconds,
    utilization,
)

GB = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What a run asks of one miner: memory by part and phase, tokens and FLOPs of a round, bytes up and down, "
        "utilization. Arithmetic from the spec; nothing is measured or started."
    )
    parser.add_argument("--spec", required=True, help="a preset (configs/) or a TOML file")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the miner (default %(default)s)")
    parser.add_argument(
        "--gpu-memory", type=float, default=180.0, metavar="GB", help="of each, 10^9 bytes (default %(default)g: B200)"
    )
    parser.add_argument(
        "--gpu-tflops",
        type=float,
        metavar="TFLOP/s",
        help="what each GPU sustains in training, not its peak (default 530: the published 72B run on B200)",
    )
    parser.add_argument("--up", type=float, metavar="Mb/s", help="uplink, 10^6 bits a second (default: the spec's)")
    parser.add_argument("--down", type=float, metavar="Mb/s", help="downlink (default: the spec's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes and seconds")


def run(options: argparse.Namespace) -> int:
    """Print the plan; the exit status is 0 also for one that does not fit."""
    network = presets.read(options.spec)
    clock = network.first.clock
    for name in ("gpus", "gpu_memory", "gpu_tflops", "up", "down"):
        value = getattr(options, name)
        if value is not None and not 1e-6 <= value < 1e9:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {value}, expected a number above 0: see `murmur plan --help` for its unit")
    most = network.first.inner.sequences
    if options.gpus > most:
        raise ConfigError(
            f"--gpus is {options.gpus}, but an inner step of {network.first.name} has {most} sequences, and every GPU "
            f"takes at least one: use {most} or fewer"
        )
    plan = Plan(
        network.first,
        options.gpus,
        int(options.gpu_memory * GB),
        SUSTAINED_FLOPS if options.gpu_tflops is None else options.gpu_tflops * 1e12,
        clock.upload_mbps if options.up is None else options.up,
        clock.download_mbps if options.down is None else options.down,
    )
    if options.json:
        sys.stdout.write(json.dumps(_as_json(plan), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(plan, network))
    return 0


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "spec": plan.spec.name,
        "gpus": plan.gpus,
        "gpu_memory_bytes": plan.gpu_bytes,
        "gpu_flops": plan.gpu_flops,
        "up_mbps": plan.up_mbps,
        "down_mbps": plan.down_mbps,
        "parameters": plan.parameters,
        "parameters_untied": plan.parameters_untied,
        "tokens": plan.tokens,
        "flops": plan.flops,
        "payload_bytes": plan.payload_bytes,
        "download_bytes": plan.download_bytes,
        "compute_seconds": plan.compute_seconds,
        "upload_seconds": plan.upload_seconds,
        "download_seconds": plan.download_seconds,
        "utilization": plan.utilization,
        "memory": {name: asdict(part) for name, part in plan.memory().items()},
        "memory_total": asdict(plan.memory_total),
        "micro_sequences": plan.micro_sequences,
        "gpus_needed": plan.gpus_needed,
    }


# --- what a person sees --------------------------------------------------------------------------------------


def _lines(plan: Plan, run: Run) -> Iterator[str]:
    yield from _size(plan)
    yield ""
    yield from _time(plan)
    yield ""
    yield from _memory(plan)
    yield ""
    yield from _schedule(run)
    yield ""
    yield from _assumptions(plan)


def _size(plan: Plan) -> Iterator[str]:
    spec, model = plan.spec, plan.spec.model
    dense = 4 * plan.parameters / plan.payload_bytes
    yield (
        f"{spec.name}: {model.layers} layers, width {model.width:,}, {model.heads} heads ({model.kv_heads} KV), "
        f"FFN {model.ffn:,}, vocabulary {model.vocabulary:,}, context {model.context:,}"
    )
    yield ""
    untied = f"   ({plan.parameters_untied:,} with embedding and head counted separately)" * model.tie_embeddings
    yield f"parameters     {plan.parameters:,}{untied}"
    yield (
        f"one round      {spec.inner.steps} inner steps x {spec.inner.sequences} sequences x {model.context:,} = "
        f"{plan.tokens:,} tokens a peer, {plan.flops:.3g} FLOPs"
    )
    yield f"payload        {plan.payload_bytes:,} bytes, {dense:.1f} times smaller than dense fp32"


def _time(plan: Plan) -> Iterator[str]:
    clock = plan.spec.clock
    rate = f"{plan.gpus} x {plan.gpu_flops / 1e12:,.0f} TFLOP/s"
    up = f"{plan.up_mbps:,g} Mb/s"
    down = f"{plan.down_mbps:,g} Mb/s, from {plan.spec.gauntlet.contributors} peers"
    yield f"compute        {_seconds(plan.compute_seconds):>9}   {plan.flops:.3g} FLOPs at {rate}"
    yield f"upload         {_seconds(plan.upload_seconds):>9}   {_bytes(plan.payload_bytes)} at {up}"
    yield f"download       {_seconds(plan.download_seconds):>9}   {_bytes(plan.download_bytes)} at {down}"
    yield f"utilization    {plan.utilization:>9.1%}   compute / (compute + upload + download)"
    window = clock.commit * clock.block_seconds
    busy = plan.compute_seconds + plan.upload_seconds
    verdict = "in time" if busy <= window else "TOO LATE: take more or faster GPUs, or a faster uplink"
    yield (
        f"commit window  {_seconds(window):>9}   of a round of {_seconds(clock.round_blocks * clock.block_seconds)}; "
        f"compute and upload take {_seconds(busy)}: {verdict}"
    )


def _memory(plan: Plan) -> Iterator[str]:
    total = plan.memory_total
    unit, symbol = (GB, "GB") if max(astuple(total)) >= GB else (10**6, "MB")
    each = "the GPU" if plan.gpus == 1 else f"each of {plan.gpus} GPUs"

    def row(name: str, part: Part) -> str:
        cells = [f"{value / unit:,.1f}" if value else "-" for value in astuple(part)]
        return f"{name:<18}{cells[0]:>11}{cells[1]:>15}{cells[2]:>12}{cells[3]:>15}"

    yield f"{'memory in ' + symbol:<18}{each:>26}{'the host':>27}"
    yield f"{'':<18}{'computing':>11}{'communicating':>15}{'computing':>12}{'communicating':>15}"
    for name, part in plan.memory().items():
        yield row(name.replace("_", " ") + (" *" if name in STEP_PARTS else ""), part)
    yield row("total", total)
    yield "* for a moment of each inner step, at different ones: the total has the fullest."
    usable, fitting = (1 - RESERVE) * plan.gpu_bytes, plan.micro_sequences
    yield (
        f"A GPU has {plan.gpu_bytes / GB:,g} GB, of which {usable / GB:,.1f} GB can be planned with. "
        + (f"It fits, with up to {_count(fitting, 'sequence')} at once." if fitting else _too_big(plan))
    )


def _too_big(plan: Plan) -> str:
    if plan.gpus_needed is None:
        return "DOES NOT FIT on any number of them: take GPUs with more memory."
    return f"DOES NOT FIT: it needs {plan.gpus_needed} of them, or GPUs with more memory."


def _schedule(run: Run) -> Iterator[str]:
    yield f"{'from round':>10}{'inner step':>13}{'inner LR':>12}{'outer LR':>11}"
    for at in milestones(run):
        yield f"{at.round:>10,}{at.inner_step:>13,}{at.lr:>12.3g}{at.alpha:>11g}   {at.begins}"


def _assumptions(plan: Plan) -> Iterator[str]:
    rate = f"{plan.gpu_flops / 1e12:,.0f} TFLOP/s"
    if plan.gpu_flops == SUSTAINED_FLOPS:
        rate += ", like the published 72B run's"
    yield f"Assumed: a GPU sustains {rate}, and takes one sequence at once; parameters,"
    yield "gradients and Adam's moments in fp32, sharded; products in bf16; of a layer its input is kept, the rest"
    yield "computed again; transfers begin when computing ends, and nothing else uses the link."
    if plan.parameters_untied != COVENANT.num_parameters:
        return
    claim = COVENANT
    up = transfer_seconds(claim.payload_bytes, claim.up_mbps)
    down = transfer_seconds(claim.peers * claim.payload_bytes, claim.down_mbps)
    yield ""
    yield (
        f"Published: {_seconds(claim.compute_seconds)} of compute and {claim.communication_seconds:.0f} s of "
        f"communication, {utilization(claim.compute_seconds, claim.communication_seconds):.1%}, at "
        f"{claim.up_mbps:g} Mb/s up and {claim.down_mbps:g} Mb/s down."
    )
    yield (
        f"Its {claim.value_bits} bits a value are {_bytes(claim.payload_bytes)}: at those speeds {up:.0f} s up and "
        f"{down:.0f} s down from {claim.peers} peers, {utilization(claim.compute_seconds, up + down):.1%};"
    )
    yield f"were they megabytes a second, {up / 8:.0f} s and {down / 8:.0f} s."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1e3:.2g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _bytes(num_bytes: float) -> str:
    """In the decimal unit that fits."""
    for unit, symbol in ((GB, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.2f} {symbol}"
    return f"{num_bytes:.0f} B"
