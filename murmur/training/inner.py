"""The inner loop: H optimizer steps of one peer on its own data. Knows nothing of rounds, peers or compression.

Deterministic on the CPU at a fixed number of threads. On CUDA mixed precision as in FSDP2: weights are cast to bf16
once per micro-batch (autocast keeps the copies), activations are bf16, gradients are summed over micro-batches in fp32.
Elsewhere fp32: bf16 matrix products on a CPU are slower on most machines. Source: SparseLoCo (arXiv 2508.15706),
Algorithm 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from murmur.protocol.spec import InnerSpec
from murmur.training.loader import ahead
from murmur.training.model import Transformer
from murmur.training.optimizer import set_constants
from murmur.training.parallel import ALONE, Ranks, whole
from murmur.training.recorder import Recorder
from murmur.training.schedule import lr_at
from murmur.training.sizes import Recompute

OnStep = Callable[[int, float], None]
"""Called after each inner step with the step within the round, from 0, and its loss in nats per token."""

Stopped = Callable[[], bool]
"""Called after each inner step; True ends the round early. May not block."""


def never() -> bool:
    """Return False: the round runs to its end."""
    return False


@dataclass(frozen=True, slots=True)
class InnerReport:
    """The result of one inner round. Losses in nats per token, measured before each step; fewer than the round's steps
    when it was stopped.

    `skipped_steps` had a non-finite gradient and changed nothing: one bad batch must not corrupt Adam's state for good.
    """

    losses: tuple[float, ...]
    num_tokens: int
    skipped_steps: int

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    def __add__(self, more: "InnerReport") -> "InnerReport":
        """Append a report of later steps of the same round."""
        return InnerReport(
            self.losses + more.losses, self.num_tokens + more.num_tokens, self.skipped_steps + more.skipped_steps
        )


NOTHING_DONE = InnerReport((), 0, 0)


def autocast(device: torch.device) -> torch.autocast:
    """Return a bf16 autocast context where the device has bf16 in hardware (CUDA), else a disabled one."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def _move(optimizer: torch.optim.Optimizer, recorder: Recorder | None, step: int) -> None:
    if recorder is not None:
        recorder.before(step)
    optimizer.step()
    if recorder is not None:
        recorder.after(step)


def inner_round(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Tensor],
    spec: InnerSpec,
    *,
    first_step: int,
    done: int = 0,
    ranks: Ranks = ALONE,
    micro_sequences: int | None = None,
    recompute: Recompute = "none",
    on_step: OnStep | None = None,
    recorder: Recorder | None = None,
    stopped: Stopped = never,
) -> InnerReport:
    """Take one optimizer step for each batch (int64 [sequences, context + 1]); the model's parameters become theta_r.

    - first_step: the first batch's inner step on the run's schedule.
    - done: steps already made; their batches are skipped, and the report covers the rest.
    - ranks: those among which `model` is sharded; each takes its share of every batch, and all report the same.
    - micro_sequences: most sequences on a device at once; the batch's gradient is accumulated over them (None: the
      whole share).
    - recorder: looks at every step that changes something.
    - recompute: what layers recompute instead of keeping; no value depends on it.
    - stopped: when it returns True on any rank, all ranks end after the same step.

    Gradients are clipped to spec.clip.
    """
    device = next(model.parameters()).device
    model.train()
    losses: list[float] = []
    skipped = 0
    left = batches[done:]
    shares = ahead((ranks.share(batch) for batch in left), device)
    for step, (batch, (share, weights)) in enumerate(zip(left, shares, strict=True), done):
        set_constants(optimizer, spec, lr_at(first_step + step, spec))
        optimizer.zero_grad(set_to_none=True)
        size = micro_sequences or len(share)
        totals: list[Tensor] = []
        for micro, weight in zip(torch.split(share, size), torch.split(weights, size), strict=True):
            with autocast(device):
                # Sharded gradients are the ranks' mean.
                total = (model.loss(micro, recompute) * weight).sum() * ranks.size / len(batch)
            torch.autograd.backward(total)
            totals.append(total.detach())
        # Only now: a value that the host waits for stalls the GPU's queue.
        loss = ranks.mean(sum(float(total) for total in totals))
        norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip))
        if isfinite(float(norm)):
            _move(optimizer, recorder, step)
        else:
            skipped += 1
        losses.append(loss)
        if on_step is not None:
            on_step(step, loss)
        if ranks.any(stopped()):
            break
    optimizer.zero_grad(set_to_none=True)
    num_tokens = sum(batch.shape[0] * (batch.shape[1] - 1) for batch in left[: len(losses)])
    return InnerReport(tuple(losses), num_tokens, skipped)
