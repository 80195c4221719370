"""The micro-batch size and recomputation that fit a device, found before training begins.

Each node chooses its own: accumulation keeps the batch of an inner step whole, and its gradient the same up to
rounding. One GPU finds it by trial. Several GPUs use the plan's arithmetic: a rank that runs out of memory inside a
collective would leave the others waiting. A CPU uses arithmetic too, so that results do not depend on the machine's
other load.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import get_args

import torch

from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import TrainingSpec
from murmur.training.inner import autocast
from murmur.training.memory import CPU_BYTES, RESERVE, cpu_activations, gpu_parts, gpu_total, gpus_needed, largest
from murmur.training.model import Transformer
from murmur.training.muon_assignment import muon_bytes
from murmur.training.optimizer import state_shapes
from murmur.training.parallel import Ranks
from murmur.training.sizes import FP32, Recompute

TryStep = Callable[[int, Recompute], bool]
"""Whether a micro-batch of that many sequences runs within memory."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Sequences of a micro-batch on each device, and what layers recompute."""

    micro_sequences: int
    recompute: Recompute


def fit(model: Transformer, optimizer: torch.optim.Optimizer, spec: TrainingSpec, ranks: Ranks) -> Fit:
    """Return the largest micro-batch of `model`, on its device and sharded among `ranks`, with the least recomputation
    with which one sequence fits. The same on every rank.

    Call it before the model is compiled: each trial size would be compiled too. Plain layers take more memory, so a
    size that fits them suffices. Leaves weights and the optimizer's state unchanged. Raises ConfigError, with the
    plan's memory figures, when not even one sequence fits.
    """
    most = -(-spec.inner.sequences // ranks.size)
    if ranks.device.type != "cuda":
        return fit_cpu(spec, most)
    gpu_bytes = _smallest(torch.cuda.get_device_properties(ranks.device).total_memory, ranks)
    if ranks.size > 1:
        found = fit_planned(spec, ranks.size, gpu_bytes, most)
    else:
        found = fit_tried(step_on_gpu(model, optimizer, spec, ranks.device, gpu_bytes), most)
    if found is None:
        raise ConfigError(too_big(spec, ranks.size, gpu_bytes))
    return found


def fit_tried(try_step: TryStep, most: int) -> Fit | None:
    """Find the fit by trial: double the size from one sequence until it does not run or reaches `most`. None when none
    runs."""
    for recompute in get_args(Recompute):
        size, following = 0, 1
        while following > size and try_step(following, recompute):
            size, following = following, min(2 * following, most)
        if size:
            return Fit(size, recompute)
    return None


def fit_planned(spec: TrainingSpec, gpus: int, gpu_bytes: int, most: int) -> Fit | None:
    """Find the fit by arithmetic (murmur/training/memory.py), with RESERVE of the memory left free. None when nothing
    fits."""
    usable_bytes = (1 - RESERVE) * gpu_bytes
    for recompute in get_args(Recompute):
        size = largest(lambda size: gpu_total(spec, gpus, size, recompute)[0] <= usable_bytes, most)  # noqa: B023
        if size:
            return Fit(size, recompute)
    return None


def fit_cpu(spec: TrainingSpec, most: int) -> Fit:
    """Find the fit by arithmetic: `most`, or as many sequences as keep activations and logits within CPU_BYTES; at
    least one."""
    return Fit(max(1, largest(lambda size: cpu_activations(spec.model, size) <= CPU_BYTES, most)), "none")


def step_on_gpu(
    model: Transformer, optimizer: torch.optim.Optimizer, spec: TrainingSpec, device: torch.device, gpu_bytes: int
) -> TryStep:
    """Return the trial of an unsharded model: two forward and backward passes, so that gradients accumulate, and room
    for the optimizer's step.

    During the passes the trial also holds the memory that the optimizer's state will take, and RESERVE of the device as
    a margin.
    """
    to_keep = sum(FP32 * prod(shape) for shape in state_shapes(spec.model, spec.inner).values())
    held_bytes = int(RESERVE * gpu_bytes) + (0 if optimizer.state else to_keep)
    step_bytes = muon_bytes(spec.model, spec.inner)

    def step(size: int, recompute: Recompute) -> None:
        held = torch.empty(held_bytes, dtype=torch.uint8, device=device)
        sequences = torch.zeros(size, spec.model.context + 1, dtype=torch.int64, device=device)
        for _ in range(2):
            with autocast(device):
                total = model.loss(sequences, recompute).sum()
            torch.autograd.backward(total)
        del total
        stepped = torch.empty(step_bytes, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        del held, stepped

    def try_step(size: int, recompute: Recompute) -> bool:
        try:
            step(size, recompute)
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    return try_step


def too_big(spec: TrainingSpec, gpus: int, gpu_bytes: int) -> str:
    """Return the operator's message when not even one sequence fits: the plan's figures and the advice."""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {computing / 1e9:.1f}"
        for name, (computing, _) in gpu_parts(spec, gpus, 1).items()
        if computing
    )
    each = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
    enough = gpus_needed(spec, gpu_bytes)
    if enough is None:
        advice = "Take GPUs with more memory: no number of these suffices"
    elif enough <= gpus:
        advice = "By this it fits: stop what else uses the GPU (nvidia-smi shows it)"
    else:
        advice = (
            f"Start it on {enough} of them (murmur torchrun --nproc_per_node {enough}), or take GPUs with more memory"
        )
    return (
        f"out of memory: not even one sequence of {spec.model.context} tokens can be trained on at once. The plan "
        f"(murmur plan) for {each}, in GB, with every layer computed again: {parts}; "
        f"{gpu_total(spec, gpus, 1)[0] / 1e9:.1f} in all at the fullest moment, of {gpu_bytes / 1e9:.1f} there "
        f"are, {RESERVE:.0%} of them to be left free. {advice}"
    )


def _smallest(num_bytes: int, ranks: Ranks) -> int:
    """Return the smallest value over all ranks."""
    given = torch.zeros(ranks.size, dtype=torch.int64)
    given[ranks.index] = num_bytes
    return int(ranks.sum(given).min())
