"""`murmur plan --measure`: this machine's own rates instead of the stated ones (murmur/plan/rates.py).

Every rate is the median of three runs of a node's own calls, on a sample of a few hundred megabytes, by one thread and
by all. Training is tried (murmur/plan/training_speed.py). The plan keeps free the time by which a slow quarter of its
passes exceeds the median. Links are not measured: there is no server at the other end.
"""

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Generic, TypeVar

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from murmur.homes import expanded
from murmur.plan.rates import Rate
from murmur.plan.requirements import TrainerPlan
from murmur.plan.training_speed import Tell, Trial, trial
from murmur.protocol.layout import Layout
from sparseloco import ops
from sparseloco.outer import OuterState
from sparseloco.update import Update

SAMPLE_BYTES = 256 << 20
SLOW_BYTES = 64 << 20
"""Smaller sample for operations that take seconds per gigabyte."""
PIECE_BYTES = 16 << 20
PAYLOADS = 20
RUNS = 3
FILES = 4
"""Files written and read concurrently."""


Planned = TypeVar("Planned", bound=TrainerPlan)


@dataclass(frozen=True, slots=True)
class Measured(Generic[Planned]):
    """A plan with this machine's rates, and the trial of training that they come from; None if there was no trial."""

    plan: Planned
    trial: Trial | None


def measure(plan: Planned, options: Namespace, tell: Tell, home: Path | None = None) -> Measured[Planned]:
    """Return the plan on this machine, with its GPUs; without GPUs on its CPU, unless --gpu-tflops gives the GPUs to
    assume. Values given by options stay. `home`: the node's, whose disk is measured (default: MURMUR_HOME's)."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    before = torch.get_num_threads()
    home = home or expanded(os.environ.get("MURMUR_HOME", "~/.murmur"))
    machine = _Host(threads, before, tell, _existing(home))
    try:
        rates = replace(plan.rates, threads=threads, **machine.host_rates())
    finally:
        torch.set_num_threads(before)
    if torch.cuda.is_available():
        device = torch.device("cuda")
        memory = torch.cuda.get_device_properties(device).total_memory
        gpus = options.gpus or torch.cuda.device_count()
        plan = replace(plan, gpus=gpus, gpu_bytes=plan.gpu_bytes if options.gpu_memory else memory)
        rates = replace(rates, device=machine.device_rate(device))
    elif options.gpu_tflops is not None:
        return Measured(replace(plan, rates=rates), None)
    else:
        device = torch.device("cpu")
        plan = replace(plan, gpus=1, on_gpu=False)
    found = None if options.gpu_tflops is not None else trial(plan.spec, device, tell, gpus=plan.gpus)
    if found is not None:
        rates = replace(rates, compute=Rate(found.flops))
        plan = plan.with_spread(found.spread)
    return Measured(replace(plan, rates=rates), found)


@dataclass(frozen=True, slots=True)
class _Host:
    """Measures the host with `threads` threads; torch runs with its own number, which OMP_NUM_THREADS may limit."""

    threads: int
    torch_threads: int
    tell: Tell
    home: Path

    def host_rates(self) -> dict[str, Rate]:
        """Return the rates by their names in murmur/plan/rates.py Rates."""
        values = torch.randn(SAMPLE_BYTES // 4)
        data = bytes(values[: SLOW_BYTES // 4].numpy().tobytes())
        self.tell("memory")
        into = torch.empty_like(values).copy_(values)
        found = {
            "copy": self._torch(SAMPLE_BYTES, lambda: into.copy_(values)),
            "fresh": self._torch(SAMPLE_BYTES, lambda: values.clone()),
        }
        # By one thread: the copy to new memory of a checkpoint's encoding.
        found["fresh"] = replace(found["fresh"], one=SAMPLE_BYTES / _seconds(lambda: values.numpy().tobytes()))
        self.tell("hash and cipher")
        found["hash"] = self._pooled(data, lambda piece: sha256(piece).digest())
        found["cipher"] = self._pooled(data, _ciphered)
        found |= self._disk(data)
        found |= self._model(values[: SLOW_BYTES // 4])
        return {name: replace(rate, most=max(rate.one, rate.most)) for name, rate in found.items()}

    def device_rate(self, device: torch.device) -> Rate:
        """Measure host memory to a GPU, as weights are loaded."""
        self.tell("the way to the GPU")
        values, there = torch.randn(SAMPLE_BYTES // 4), torch.empty(SAMPLE_BYTES // 4, device=device)

        def load() -> None:
            there.copy_(values)
            torch.cuda.synchronize(device)

        load()
        return Rate(SAMPLE_BYTES / _seconds(load))

    def _torch(self, num_bytes: int, work: Callable[[], object]) -> Rate:
        """Measure with torch's own threads, which the codec uses too."""
        found = []
        for threads in (1, self.torch_threads):
            torch.set_num_threads(threads)
            found.append(num_bytes / _seconds(work))
        return Rate(*found)

    def _pooled(self, data: bytes, work: Callable[[memoryview], object]) -> Rate:
        """Measure in pieces, one after the other and all concurrently."""
        view = memoryview(data)
        pieces = [view[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        one = len(data) / _seconds(lambda: [work(piece) for piece in pieces])
        several = pieces * -(-self.threads // len(pieces))
        with ThreadPoolExecutor(self.threads) as pool:
            most = sum(map(len, several)) / _seconds(lambda: list(pool.map(work, several)))
        return Rate(one, most)

    def _disk(self, data: bytes) -> dict[str, Rate]:
        """Measure the file system of the node's home: files written with fsync, and read when they are not in
        memory."""
        self.tell(f"the disk under {self.home}")
        with tempfile.TemporaryDirectory(dir=self.home, prefix=".murmur-measure-") as folder:
            paths = [Path(folder) / str(number) for number in range(FILES)]
            with ThreadPoolExecutor(FILES) as pool:
                written = Rate(
                    len(data) / _seconds(lambda: _write(paths[0], data)),
                    FILES * len(data) / _seconds(lambda: list(pool.map(lambda path: _write(path, data), paths))),
                )
                read = Rate(
                    len(data) / _seconds(lambda: _read(paths[0])),
                    FILES * len(data) / _seconds(lambda: list(pool.map(_read, paths))),
                )
        return {"write": written, "read": read}

    def _model(self, values: Tensor) -> dict[str, Rate]:
        """Measure the codec, on one matrix."""
        self.tell(f"the codec, {ops.backend()}")
        matrix = values if not ops.is_fallback() else values[: len(values) // 16]
        theta = {"matrix": matrix.reshape(1024, -1)}
        layout = Layout.of({"matrix": tuple(theta["matrix"].shape)}, 64)
        theta_r = {"matrix": theta["matrix"] - 1e-3 * torch.randn_like(theta["matrix"])}
        error, out = {"matrix": torch.zeros_like(theta["matrix"])}, {"matrix": torch.zeros_like(theta["matrix"])}
        num_bytes, state = 4 * layout.num_parameters, OuterState.initial(layout)
        compressed = self._torch(num_bytes, lambda: ops.compress(theta, theta_r, error, layout, 0.95, out))
        update = ops.counted(ops.compress(theta, theta_r, error, layout, 0.95, out)[0])

        def step(payloads: int) -> Rate:
            return self._torch(
                1, lambda: ops.outer_step(theta, [update] * payloads, state, alpha=1.0, aggregate="mean", out=out)
            )

        several, single = step(PAYLOADS), step(1)
        moved = 2 * len(update.records)
        return {
            "compress": compressed,
            "apply": Rate(
                _added(update, several.one, single.one),
                _added(update, several.most, single.most),
            ),
            "probe": self._torch(moved, lambda: _probed(out, update)),
        }


def _probed(values: dict[str, Tensor], update: Update) -> None:
    """Probe and undo the probe."""
    kept = ops.probe(values, update, (1.0,), 0.25)
    ops.undo_probe(values, update, kept)


def _added(update: Update, several: float, single: float) -> float:
    """Return the bytes per second of added payloads, from the rates at which PAYLOADS payloads, and one, are
    applied."""
    payload_bytes, slower = len(update.records), 1 / several - 1 / single
    return (PAYLOADS - 1) * payload_bytes / slower if slower > 0 else PAYLOADS * payload_bytes * several


def _seconds(work: Callable[[], object]) -> float:
    """Return the median seconds of RUNS runs."""
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def _ciphered(piece: memoryview) -> bytes:
    return Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor().update(piece)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):  # elsewhere it is read from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
