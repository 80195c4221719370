"""The CUDA codec on a GPU: first its bytes against the codec on the CPU, then its speed against a copy.

    python benchmarks/bench_cuda.py --params 64000000 --json

`ms` is of the kernel alone (CUDA events around several launches). It alternates with a device-to-device copy that moves
as many bytes; `copy_share` is the median of copy / kernel within one round. `call_ms` is the whole call as a node makes
it, records to or from the host included. `aggregate` is of 20 payloads that were validated before; `validate` of one.
Stops with status 1 when a byte differs.
"""

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from bench_codec import BETA, PEERS, K, heavy_tailed, milliseconds, percentile, shapes_of
from commit import commit
from torch import Tensor

from murmur.protocol.layout import Layout
from sparseloco import cuda, kernels, native
from sparseloco.outer import OuterState
from sparseloco.update import Update

Tensors = dict[str, Tensor]
Side = tuple[Callable[[], object], Callable[[], object], int]
"""The kernel alone, the whole call, and the bytes that must move."""

LAUNCHES = 5
WARM_UP = 2


def moved(values: Mapping[str, Tensor], device: torch.device | str) -> Tensors:
    return {name: value.to(device) for name, value in values.items()}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return all(bool((left[name].cpu().view(torch.int32) == right[name].cpu().view(torch.int32)).all()) for name in left)


def differences(codec: cuda.Codec, given: list[Tensors], layout: Layout) -> list[str]:
    """What the GPU computes otherwise than the CPU, on the values that are timed afterwards."""
    cpu = native.Codec(kernels.supported()[-1])
    found = []
    theta, theta_r, error = given
    halves = {name: value.bfloat16() for name, value in theta_r.items()}
    updates: list[Update] = []
    for name, ends in (("fp32", theta_r), ("bf16", halves)):
        update, new_error = codec.compress(
            *(moved(group, codec.device) for group in (theta, ends, error)), layout, BETA
        )
        expected, expected_error = cpu.compress(theta, ends, error, layout, BETA)
        found += [f"compress {name}"] * (update != expected or not same(new_error, expected_error))
        found += [f"norms {name}"] * (codec.counted(update).norms != cpu.counted(expected).norms)
        updates.append(expected)
    state = OuterState.initial(layout)
    step: dict[str, Any] = {"alpha": 1.0, "aggregate": "mean"}
    after, _, scales = codec.outer_step(moved(theta, codec.device), updates, state, **step)
    expected_after, _, expected_scales = cpu.outer_step(theta, updates, state, **step)
    found += ["mean"] * (not same(after, expected_after) or scales != expected_scales)
    return found


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of the GPU for one of LAUNCHES runs."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(LAUNCHES):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / LAUNCHES


def report(rounds: list[dict[str, float]]) -> dict[str, float]:
    ours = [row["ours"] for row in rounds]
    return {
        "ms": percentile(ours, 0.5),
        "p10_ms": percentile(ours, 0.1),
        "p90_ms": percentile(ours, 0.9),
        "copy_ms": percentile([row["copy"] for row in rounds], 0.5),
        "copy_share": percentile([row["copy"] / row["ours"] for row in rounds], 0.5),
        "call_ms": percentile([row["call"] for row in rounds], 0.5),
    }


class Launches:
    """The library's functions on prepared addresses, without the checks and waits of sparseloco/cuda.py."""

    def __init__(self, device: torch.device, layout: Layout) -> None:
        self.device = device
        self.sizes = len(layout.tensors)
        self.regions, _ = kernels.tables(layout, device)
        self.fault = torch.full((1,), -1, dtype=torch.int64, device=device)
        self.kept: list[Tensor] = []

    def _run(self, name: str, *arguments: Any) -> None:
        where = (self.device.index, torch.cuda.current_stream(self.device).cuda_stream)
        table = (self.regions.data_ptr(), self.regions.shape[0])
        error = getattr(cuda.library(), name)(*where, *table, *arguments, self.fault.data_ptr())
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def _addresses(self, tensors: list[Tensor]) -> int:
        self.kept.append(cuda._pointers(tensors, self.device))
        return self.kept[-1].data_ptr()

    def compress(self, theta: Tensors, theta_r: Tensors, error: Tensors, records: Tensor) -> Callable[[], None]:
        start, end, carried = (self._addresses(list(group.values())) for group in (theta, theta_r, error))
        half = int(any(value.dtype == torch.bfloat16 for value in theta_r.values()))
        beta = ctypes.c_float(BETA)
        arguments = (start, end, half, carried, beta, carried, records.data_ptr())
        return lambda: self._run("murmur_cuda_compress", *arguments)

    def validate(self, records: Tensor, counts: Tensor) -> Callable[[], None]:
        return lambda: self._run("murmur_cuda_validate", records.data_ptr(), counts.data_ptr())

    def aggregate(self, payloads: list[Tensor], weights: Tensor, rule: int, theta: Tensors) -> Callable[[], None]:
        records, moving = self._addresses(payloads), self._addresses(list(theta.values()))
        arguments = (records, len(payloads), self.sizes, weights.data_ptr(), rule, moving, moving)
        return lambda: self._run("murmur_cuda_aggregate", *arguments)


def alternating(sides: Mapping[str, Side], rounds: int, device: torch.device) -> dict[str, Any]:
    """Each side in turn with a copy that moves as many bytes."""
    found: dict[str, Any] = {}
    most = max(traffic for _, _, traffic in sides.values()) // 2
    source, target = (torch.zeros(most, dtype=torch.uint8, device=device) for _ in range(2))
    for name, (ours, call, traffic) in sides.items():
        part = (target[: traffic // 2], source[: traffic // 2])  # read once and written once
        rows = [
            {"copy": timed(lambda part=part: part[0].copy_(part[1])), "ours": timed(ours), "call": milliseconds(call)}
            for _ in range(WARM_UP + rounds)
        ]
        found[name] = report(rows[WARM_UP:])
    found["copy_gb_a_second"] = 2 * most / timed(lambda: target.copy_(source)) / 1e6
    torch.cuda.synchronize()
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda", torch.cuda.current_device())
    codec = cuda.codec(device)
    layout = Layout.of(shapes_of(options.params), K)
    shapes = {tensor.name: tensor.shape for tensor in layout}  # in the layout's order
    given = [heavy_tailed(shapes, seed) for seed in range(3)]
    found: dict[str, Any] = {"different": differences(codec, given, layout)}
    theta, theta_r, error = (moved(group, device) for group in given)
    halves = {name: value.bfloat16() for name, value in theta_r.items()}

    launches = Launches(device, layout)
    sent = (codec.compress(theta, theta_r, error, layout, BETA, out=error)[0] for _ in range(PEERS))
    payloads = [codec.counted(update) for update in sent]
    uploaded = [cuda._uploaded(update, device) for update in payloads]
    records = torch.empty(layout.records_bytes, dtype=torch.uint8, device=device)
    counts = torch.zeros(len(layout.tensors), 256, dtype=torch.int64, device=device)
    weights = torch.full((PEERS, len(layout.tensors)), 1 / PEERS, device=device)
    state = OuterState.initial(layout)

    def compress(ends: Tensors) -> Side:
        element = 14 if ends is halves else 16
        return (
            launches.compress(theta, ends, error, records),
            lambda: codec.compress(theta, ends, error, layout, BETA, out=error),
            element * layout.num_parameters + layout.records_bytes,
        )

    sides = {
        "compress": compress(theta_r),
        "compress_bf16": compress(halves),
        "aggregate": (
            launches.aggregate(uploaded, weights, 0, theta),
            lambda: codec.outer_step(theta, payloads, state, alpha=1.0, aggregate="mean", out=theta),
            8 * layout.num_parameters + PEERS * layout.records_bytes,
        ),
        "validate": (
            launches.validate(uploaded[0], counts),
            lambda: codec.counted(Update(layout, payloads[0].records)),
            layout.records_bytes,
        ),
    }
    found |= alternating(sides, options.rounds, device)
    if int(launches.fault.item()) != -1:
        found["different"].append("a payload was refused while it was timed")
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name(device),
        "backend": f"cuda ({codec.isa})",
        "torch": torch.__version__,
        "params": layout.num_parameters,
        "peers": PEERS,
        "rounds": options.rounds,
        "unit": "ms",
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=64_000_000)
    parser.add_argument("--rounds", type=int, default=21, help="alternating rounds that are measured")
    parser.add_argument("--json", action="store_true", help="one line, for machines")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU: nothing to measure here")
    found = measure(options)
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")
    sys.exit(1 if found["different"] else 0)


if __name__ == "__main__":
    main()
