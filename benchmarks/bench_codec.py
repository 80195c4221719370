"""How fast the codec compresses and aggregates, against torch operators and against memory (stream.cpp).

    python benchmarks/bench_codec.py --params 64000000 --json

The torch operators are codec_baseline.py's. The three sides alternate in one process; every ratio is the median over
rounds of a ratio within one round, so that a machine that is busy for a while slows both sides. `compress` writes the
new error over the old one; `aggregate` is the whole outer step of 20 payloads from their bytes: validated, counted,
norms, bounds, decoded, mean, theta in place. `validated` beside it: the same with payloads that were validated when
they arrived, as in a node.

Errors are relative L2 errors of the kept values, with the public 4-bin quantiser's for comparison, on synthetic
heavy-tailed data and on real pseudo-gradients of the local network's model. Needs g++ for the stream.
"""

import argparse
import ctypes
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import codec_baseline as baseline
import torch
from commit import commit
from torch import Tensor

from murmur.protocol.layout import Layout
from murmur.protocol.messages import ENVELOPE_BYTES
from sparseloco import kernels, native
from sparseloco.outer import OuterState
from sparseloco.topk import blocks, slabs, top_k
from sparseloco.update import Update
from sparseloco.wire import plaintext_bytes

BETA = 0.95
K = 64
PEERS = 20
Tensors = dict[str, Tensor]


def shapes_of(params: int) -> dict[str, tuple[int, ...]]:
    """A Llama-like model of about so many parameters, all sizes multiples of 64."""
    d, hidden = 1024, 2816
    shapes: dict[str, tuple[int, ...]] = {}
    left, layer = params, 0
    while left >= 4 * d * d + 3 * d * hidden + 2 * d:
        for name in ("q", "k", "v", "o"):
            shapes[f"layers.{layer}.{name}"] = (d, d)
        shapes |= {f"layers.{layer}.up": (hidden, d), f"layers.{layer}.gate": (hidden, d)}
        shapes |= {f"layers.{layer}.down": (d, hidden), f"layers.{layer}.norm": (d,), f"layers.{layer}.norm2": (d,)}
        left -= 4 * d * d + 3 * d * hidden + 2 * d
        layer += 1
    return shapes | {"embedding": (max(64, left // d // 64 * 64), d)}


def heavy_tailed(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Student's t with 3 degrees of freedom, scaled per tensor."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        chi = sum(torch.randn(shape, generator=generator) ** 2 for _ in range(3)) / 3
        found[name] = 1e-3 * torch.randn(shape, generator=generator) / chi.sqrt()
    return found


def real(rounds: int) -> tuple[Tensors, Layout]:
    """beta * e + Delta of a miner of the local network's model after some rounds alone."""
    from tiny_spec import spec_with, word

    from murmur.data.shards import Shards
    from murmur.lab.localnet.training_text import text_data
    from murmur.protocol.assignment import assigned
    from murmur.protocol.types import PeerId
    from murmur.training.loader import sequences
    from murmur.training.model import genesis_theta
    from murmur.training.replica import ERROR, Replica

    shards = Shards.open(text_data(lambda line: None))
    spec = spec_with({}, shards)
    replica = Replica(spec, genesis_theta(spec.model, 0))
    for round in range(rounds):
        pages = assigned(
            word("run"),
            word(round),
            PeerId(word("peer")),
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
        )
        replica.inner_round(sequences(shards.train, pages, spec.model.context))
        theta_r = {name: value.detach() for name, value in replica.model.named_parameters()}
        saved = replica.own_state().tensors
        acc = {n: BETA * saved[ERROR + n] + (replica.theta[n] - theta_r[n]) for n in theta_r}
        replica.outer_step([replica.compress()], alpha=1.0, aggregate="mean")
    return acc, replica.layout


def quality(acc: Tensors, layout: Layout) -> dict[str, float]:
    """Errors of the values that Top-k keeps: ours and the public quantiser's."""
    zeros = {name: torch.zeros_like(value) for name, value in acc.items()}
    update, _ = native.Codec(kernels.supported()[-1]).compress(acc, zeros, None, layout, BETA)
    norm = ours = public = 0.0
    wrong = public_wrong = count = 0
    for tensor in layout:
        kept, decoded = [], []
        for region in slabs(tensor):
            chunks = blocks(acc[tensor.name], tensor, region)
            kept.append(chunks.gather(1, top_k(chunks, region.k)).flatten())
            decoded.append(update.chunks(tensor, region).codes.values().flatten())
        values, found = torch.cat(kept), torch.cat(decoded)
        codes, lookup = baseline.quantise(values)
        other = lookup[codes.long()]
        norm += float(values.double().square().sum())
        ours += float((values - found).double().square().sum())
        public += float((values - other).double().square().sum())
        wrong += int((values * found < 0).sum())
        public_wrong += int((values * other < 0).sum())
        count += values.numel()
    return {
        "kept_error": (ours / norm) ** 0.5,
        "wrong_signs": wrong / count,
        "public_kept_error": (public / norm) ** 0.5,
        "public_wrong_signs": public_wrong / count,
    }


def stream_library(folder: Path) -> ctypes.CDLL:
    source, library = Path(__file__).with_name("stream.cpp"), folder / "stream.so"
    command = ["g++", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(rounds: list[dict[str, float]], extra: int) -> dict[str, float]:
    """Medians of `ours`, and of the other sides of the same rounds as ratios to it."""
    ours = [row["ours"] for row in rounds]
    found: dict[str, float] = {"ms": percentile(ours, 0.5), "p10_ms": percentile(ours, 0.1)}
    found["p90_ms"] = percentile(ours, 0.9)
    found["ratio_torch"] = percentile([row["torch"] / row["ours"] for row in rounds], 0.5)
    found["stream_share"] = percentile([row["stream"] / row["ours"] for row in rounds], 0.5)
    found["torch_ms"] = percentile([row["torch"] for row in rounds], 0.5)
    found["stream_ms"] = percentile([row["stream"] for row in rounds], 0.5)
    found["extra_bytes_per_thread"] = extra
    return found


def aggregated(
    codec: native.Codec,
    theta: Tensors,
    payloads: list[Update],
    public: list[dict[str, baseline.Sent]],
    stream: Callable[[], object],
    rounds: int,
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Rounds of outer steps, theta in place: of payloads from their bytes, and of validated ones."""
    layout = payloads[0].layout
    state, counted = OuterState.initial(layout), [codec.counted(update) for update in payloads]
    public_theta = {name: value.clone() for name, value in theta.items()}
    step: dict[str, Any] = {"alpha": 1.0, "aggregate": "mean", "out": theta}
    from_bytes, validated = [], []
    for number in range(-1, rounds):
        fresh = [Update(layout, update.records) for update in payloads]
        row = {
            "stream": milliseconds(stream),
            "ours": milliseconds(lambda fresh=fresh: codec.outer_step(theta, fresh, state, **step)),
            "torch": milliseconds(lambda: baseline.aggregate(public_theta, public, 1.0)),
        }
        other = row | {"ours": milliseconds(lambda: codec.outer_step(theta, counted, state, **step))}
        if number >= 0:
            from_bytes.append(row)
            validated.append(other)
    return from_bytes, validated


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    shapes = shapes_of(options.params)
    layout = Layout.of(shapes, K)
    isa = options.isa or kernels.supported()[-1]
    codec = native.Codec(isa, options.threads)
    theta = heavy_tailed(shapes, 0)
    theta_r = {name: theta[name] - delta for name, delta in heavy_tailed(shapes, 1).items()}
    error = heavy_tailed(shapes, 2)
    public_error = {name: value.clone() for name, value in error.items()}
    stream = stream_library(folder)
    flat = [torch.zeros(layout.num_parameters) for _ in range(3)]
    pointers = [ctypes.c_void_p(value.data_ptr()) for value in flat]
    size = (ctypes.c_uint64(layout.num_parameters), ctypes.c_uint32(options.threads))

    compress_rounds = []
    payloads: list[Update] = []
    public: list[dict[str, baseline.Sent]] = []
    for number in range(-1, options.rounds):
        row = {
            "stream": milliseconds(lambda: stream.stream_compress(*pointers, *size)),
            "ours": milliseconds(
                lambda: payloads.append(codec.compress(theta, theta_r, error, layout, BETA, out=error)[0])
            ),
            "torch": milliseconds(lambda: public.append(baseline.compress(theta, theta_r, public_error, BETA, K))),
        }
        if number >= 0:
            compress_rounds.append(row)
    aggregate_rounds, validated_rounds = aggregated(
        codec,
        theta,
        (payloads * PEERS)[:PEERS],
        (public * PEERS)[:PEERS],
        lambda: stream.stream_aggregate(pointers[0], *size),
        options.rounds,
    )
    extra = int(kernels.library().murmur_scratch_bytes())
    on_real, on_heavy = quality(*real(options.real_rounds)), quality(theta_r, layout)
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{platform.machine()}, {options.threads} threads",
        "torch": torch.__version__,
        "params": layout.num_parameters,
        "rounds": options.rounds,
        "unit": "ms",
        "backend": f"native ({isa})",
        "compress": report(compress_rounds, extra),
        "aggregate": report(aggregate_rounds, extra) | {"peers": PEERS, "validated": report(validated_rounds, extra)},
        "bytes_per_chunk": Layout.of({"t": (64, 64)}, K).records_bytes,
        "ratio_fp32": 4 * layout.num_parameters / (ENVELOPE_BYTES + plaintext_bytes(layout)),
        "kept_error": on_real["kept_error"],
        "wrong_signs": on_real["wrong_signs"],
        "quality": {"real": on_real, "heavy_tailed": on_heavy},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=64_000_000)
    parser.add_argument("--rounds", type=int, default=11, help="alternating rounds that are measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=kernels.ISAS, help="default: the fastest here")
    parser.add_argument("--real-rounds", type=int, default=5, help="rounds of training before real data is taken")
    parser.add_argument("--json", action="store_true", help="one line, for machines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")


if __name__ == "__main__":
    main()
