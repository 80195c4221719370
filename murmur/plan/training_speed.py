"""This machine's training speed: a trial of a node's own inner step, on as many of the model's layers as fit.

The step is the node's (murmur/training/inner.py): its threads, its micro-batch, the clipping of gradients, layers
compiled on a GPU. One-time costs of the first steps are excluded. A model too large for a whole batch is tried on a
smaller one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import median, quantiles

import torch
from torch import Tensor

from murmur.protocol.spec import ModelSpec, TrainingSpec
from murmur.training.batch_trial import Fit, fit_cpu, fit_planned
from murmur.training.inner import autocast
from murmur.training.model import Transformer, initialise
from murmur.training.muon_assignment import muon_flops
from murmur.training.optimizer import make_optimizer
from murmur.training.sizes import Recompute, flops_per_token

TRIALS = 9
"""Passes from which the median, the quickest and a slow quarter are taken."""
WARM_UP = 2
"""Passes and steps before those that count: memory is allocated, threads start, layers are compiled."""
GROWTH_RUNS = 3
"""Passes in each size: the quickest decides whether it is large enough, whatever the machine's other load."""
TRIAL_SECONDS = 0.5
"""A forward and backward pass of this duration is long enough."""
TRIAL_PARAMETERS = 100_000_000
"""Most parameters of a trial on a CPU; on a GPU as many as half of its memory trains."""
TRAINED_BYTES = 16
"""A parameter, its gradient and two moments."""

Tell = Callable[[str], None]
"""Called with the name of the next measurement."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Inner steps of one device. flops: per second, by the median. quickest_flops: by the quickest pass. spread: how
    much longer than the median a slow quarter takes. threads: of a CPU."""

    flops: float
    quickest_flops: float
    spread: float
    threads: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A model and its inner step on a device."""

    module: Transformer
    optimizer: torch.optim.Optimizer
    clip: float
    recompute: Recompute

    def forward_backward(self, tokens: Tensor) -> None:
        with autocast(tokens.device):
            total = self.module.loss(tokens, self.recompute).sum()
        torch.autograd.backward(total)
        _settle(tokens.device)

    def update(self) -> None:
        """Do the inner step except its passes."""
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        float(norm)
        self.optimizer.step()
        _settle(norm.device)


def trial(spec: TrainingSpec, device: torch.device, tell: Tell, *, gpus: int = 1) -> Trial | None:
    """Try one device of `gpus` in inner steps of `spec`; None where not even one layer fits."""
    model, fitting = cut(spec.model, most_parameters(device)), _fitting(spec, device, gpus)
    if model is None or fitting is None:
        tell("training: not measured, a layer of this model is too large for this machine; the stated speed is used")
        return None
    tell(f"training, {model.layers} of {spec.model.layers} layers")
    module = Transformer(model)
    initialise(module, 0)
    module.to(device)
    step = _Step(module, make_optimizer(module, spec.inner), spec.inner.clip, fitting.recompute)
    tokens = _large_enough(step, model.context, fitting.micro_sequences, device)
    if device.type == "cuda":
        module.compile()
    timed = partial(step.forward_backward, tokens)
    _all_seconds(timed, WARM_UP)
    passes = _all_seconds(timed, TRIALS)
    _all_seconds(step.update, WARM_UP)
    updated = median(_all_seconds(step.update, GROWTH_RUNS))
    return _rated(spec, model, tokens, passes, updated)


def _rated(spec: TrainingSpec, model: ModelSpec, tokens: Tensor, passes: list[float], updated: float) -> Trial:
    """Extrapolate from seconds on fewer layers and tokens to the run's own steps."""
    sequences, context = tokens.shape[0], tokens.shape[1] - 1
    tried = sequences * context * flops_per_token(model.model_copy(update={"context": context}))
    whole = spec.inner.sequences * spec.model.context * flops_per_token(spec.model)
    muons, muons_tried = muon_flops(spec.model, spec.inner, 1), muon_flops(model, spec.inner, 1)
    larger = muons / muons_tried if muons_tried else spec.layout.num_parameters / _size(model)

    def flops(seconds: float) -> float:
        return (whole + muons) / (whole * seconds / tried + updated * larger)

    usual = median(passes)
    return Trial(flops(usual), flops(min(passes)), quantiles(passes, n=4)[-1] / usual - 1, torch.get_num_threads())


def _fitting(spec: TrainingSpec, device: torch.device, gpus: int) -> Fit | None:
    """Return a node's micro-batch and recomputation, by arithmetic."""
    most = ceil(spec.inner.sequences / gpus)
    if device.type != "cuda":
        return fit_cpu(spec, most)
    return fit_planned(spec, gpus, torch.cuda.get_device_properties(device).total_memory, most)


def most_parameters(device: torch.device) -> int:
    """Return how many parameters a trial on this device has at most."""
    if device.type != "cuda":
        return TRIAL_PARAMETERS
    return int(torch.cuda.get_device_properties(device).total_memory // 2 // TRAINED_BYTES)


def _large_enough(step: _Step, context: int, micro_sequences: int, device: torch.device) -> Tensor:
    """Return tokens on which a pass takes TRIAL_SECONDS, or a whole micro-batch."""
    length, sequences = min(context, 64), 1
    while True:
        tokens = torch.zeros((sequences, length + 1), dtype=torch.int64, device=device)
        if (length, sequences) == (context, micro_sequences):
            return tokens
        if min(_all_seconds(partial(step.forward_backward, tokens), GROWTH_RUNS)) >= TRIAL_SECONDS:
            return tokens
        if length < context:
            length = min(2 * length, context)
        else:
            sequences = min(2 * sequences, micro_sequences)


def cut(model: ModelSpec, fitting: int) -> ModelSpec | None:
    """Return the model with as many layers as fit, and a smaller vocabulary if that is what does not fit; None when
    nothing fits."""
    for vocabulary in (model.vocabulary, min(model.vocabulary, 1024)):
        one = model.model_copy(update={"layers": 1, "vocabulary": vocabulary})
        if _size(one) <= fitting:
            layer = _size(one.model_copy(update={"layers": 2})) - _size(one)
            return one.model_copy(update={"layers": min(model.layers, 1 + (fitting - _size(one)) // layer)})
    return None


def _size(model: ModelSpec) -> int:
    """Return the number of parameters."""
    return sum(torch.Size(shape).numel() for shape in model.shapes().values())


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_seconds(work: Callable[[], object], runs: int) -> list[float]:
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found
