"""How fast the dense exchange (every value in int8) encodes and sums, against group-wise torch and against memory.

    python benchmarks/bench_dense.py --params 64000000 --json

The three alternate in one process, as in bench_codec.py: every ratio is the median over rounds of a ratio within one
round. `encode`: theta and theta_r in, records out. `mean`: records of all members in, validated, those of their mean
out. `step`: records, theta and velocity in, theta and velocity out. The streams have the same traffic and next to no
arithmetic. Torch: groups of 4096 as rows of a matrix, with one operator after the other. Needs g++ for the stream.
"""

import argparse
import ctypes
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from bench_codec import heavy_tailed, report, shapes_of, stream_library
from commit import commit
from torch import Tensor

from murmur.protocol.layout import CHUNK, DenseLayout
from sparseloco import kernels
from sparseloco.dense import DenseUpdate
from sparseloco.dense_native import DenseCodec

MEMBERS = 14
ALPHA, MOMENTUM = 0.7, 0.9
Groups = dict[str, tuple[Tensor, Tensor]]
"""Scales fp32 [groups, 1] and codes int8 [groups, 4096] of every tensor."""


def torch_encode(theta: dict[str, Tensor], theta_r: dict[str, Tensor]) -> Groups:
    return {name: torch_quantise(value - theta_r[name]) for name, value in theta.items()}


def torch_quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    groups = values.reshape(-1, min(CHUNK, values.numel()))
    scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    return scale, (groups / scale).round().clamp(-127, 127).to(torch.int8)


def torch_mean(payloads: Sequence[Groups]) -> Groups:
    found = {}
    for name in payloads[0]:
        total = torch.zeros(payloads[0][name][1].shape)
        for payload in payloads:
            scale, codes = payload[name]
            total += codes.float() * scale
        found[name] = torch_quantise(total / len(payloads))
    return found


def torch_step(theta: dict[str, Tensor], velocity: dict[str, Tensor], mean: Groups) -> None:
    for name, (scale, codes) in mean.items():
        gradient = (codes.float() * scale).reshape(theta[name].shape)
        velocity[name].mul_(MOMENTUM).add_(gradient)
        theta[name].sub_(ALPHA * (gradient + MOMENTUM * velocity[name]))


def clock(processor: bool) -> Callable[[Callable[[], object]], float]:
    """What takes the milliseconds of a call: of the wall, or of the processors, for a busy machine."""
    now = time.process_time if processor else time.perf_counter

    def milliseconds(work: Callable[[], object]) -> float:
        start = now()
        work()
        return (now() - start) * 1e3

    return milliseconds


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    milliseconds = clock(options.processor_time)
    shapes = shapes_of(options.params)
    layout = DenseLayout.of(shapes, 64)
    isa = options.isa or kernels.supported()[-1]
    codec, stream = DenseCodec(isa, options.threads), stream_library(folder)
    theta = heavy_tailed(shapes, 0)
    theta_r = {name: theta[name] - delta for name, delta in heavy_tailed(shapes, 1).items()}
    velocity, public_velocity = ({name: torch.zeros(shape) for name, shape in shapes.items()} for _ in range(2))
    public_theta = {name: value.clone() for name, value in theta.items()}
    out = {name: torch.zeros(shape) for name, shape in shapes.items()}
    flat = [torch.zeros(layout.num_parameters) for _ in range(3)]
    sent = [torch.zeros(layout.num_parameters, dtype=torch.uint8) for _ in range(options.members)]
    address = [ctypes.c_void_p(value.data_ptr()) for value in flat]
    into = ctypes.c_void_p(flat[2].data_ptr())
    all_sent = (ctypes.c_void_p * len(sent))(*(one.data_ptr() for one in sent))
    size = (ctypes.c_uint64(layout.num_parameters), ctypes.c_uint32(options.threads))
    count = ctypes.c_uint64(len(sent))
    payload, public = codec.encode(theta, theta_r, layout), torch_encode(theta, theta_r)
    payloads = [DenseUpdate(layout, bytes(bytearray(payload.records))) for _ in sent]
    publics = [{name: (s.clone(), c.clone()) for name, (s, c) in public.items()} for _ in sent]
    mean, public_mean = codec.mean(payloads, layout), torch_mean(publics)
    how = {"alpha": ALPHA, "momentum": MOMENTUM, "out": out}

    rows: dict[str, list[dict[str, float]]] = {"encode": [], "mean": [], "step": []}
    for number in range(-1, options.rounds):
        found = {
            "encode": {
                "stream": milliseconds(lambda: stream.stream_dense_encode(*address[:2], into, *size)),
                "ours": milliseconds(lambda: codec.encode(theta, theta_r, layout)),
                "torch": milliseconds(lambda: torch_encode(theta, theta_r)),
            },
            "mean": {
                "stream": milliseconds(lambda: stream.stream_dense_sum(all_sent, count, into, *size)),
                "ours": milliseconds(lambda: codec.mean(payloads, layout)),
                "torch": milliseconds(lambda: torch_mean(publics)),
            },
            "step": {
                "stream": milliseconds(lambda: stream.stream_compress(*address, *size)),
                "ours": milliseconds(lambda: codec.step(theta, mean, velocity, **how)),
                "torch": milliseconds(lambda: torch_step(public_theta, public_velocity, public_mean)),
            },
        }
        if number >= 0:
            for name, row in found.items():
                rows[name].append(row)
    extra = int(kernels.library().murmur_scratch_bytes())
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{platform.machine()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        "params": layout.num_parameters,
        "members": options.members,
        "rounds": options.rounds,
        "unit": "ms of processor time" if options.processor_time else "ms",
        "backend": f"native ({isa})",
        **{name: report(measured, extra) for name, measured in rows.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=64_000_000)
    parser.add_argument("--members", type=int, default=MEMBERS, help="payloads that are summed (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="alternating rounds that are measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=kernels.ISAS, help="default: the fastest here")
    parser.add_argument("--processor-time", action="store_true", help="instead of wall time, on a busy machine")
    parser.add_argument("--json", action="store_true", help="one line, for machines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")


if __name__ == "__main__":
    main()
