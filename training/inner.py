"""The inner loop: H AdamW steps of one peer on its own data. Knows nothing of rounds, peers or compression.

Deterministic on the CPU at a fixed number of threads. Mixed precision: bf16 autocast on CUDA, fp32 elsewhere (bf16
matrix products on a CPU are slower than fp32 on most machines). Source: SparseLoCo (arXiv 2508.15706), Algorithm 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from protocol.errors import CheckpointCorrupt
from protocol.spec import InnerSpec
from training.model import Transformer
from training.schedule import lr_at

OnStep = Callable[[int, float], None]
"""Called after each inner step with the step within the round, from 0, and its loss in nats a token."""

FIRST, SECOND = "adam.first/", "adam.second/"


@dataclass(frozen=True, slots=True)
class InnerReport:
    """What one inner round did. Losses in nats a token, measured before each step.

    `skipped_steps` had a non-finite gradient and changed nothing: one bad batch must not poison Adam's state for good.
    """

    losses: tuple[float, ...]
    num_tokens: int
    skipped_steps: int

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)


def make_optimizer(model: Transformer, spec: InnerSpec) -> torch.optim.AdamW:
    """AdamW over all parameters, gains included (as in the published runs). One fused call a step."""
    return torch.optim.AdamW(
        [parameter for _, parameter in sorted(model.named_parameters())],
        lr=spec.peak_lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def autocast(device: torch.device) -> torch.autocast:
    """bf16 where the device has it in hardware."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def inner_round(
    model: Transformer,
    optimizer: torch.optim.AdamW,
    batches: Sequence[Tensor],
    spec: InnerSpec,
    *,
    first_step: int,
    micro_sequences: int | None = None,
    on_step: OnStep | None = None,
) -> InnerReport:
    """One AdamW step for each batch (int64 [sequences, context + 1]); the model's parameters become theta_r.

    first_step: inner step of the first batch on the run's schedule. micro_sequences: most sequences on the device at
    once; the batch's gradient is accumulated over them (None: the whole batch). Gradients are clipped to spec.clip.
    """
    device = next(model.parameters()).device
    model.train()
    for group in optimizer.param_groups:
        # An amendment may have changed them since the optimizer was made.
        group.update(betas=(spec.beta1, spec.beta2), eps=spec.epsilon, weight_decay=spec.weight_decay)
    losses: list[float] = []
    skipped = 0
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(first_step + step, spec)
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for micro in torch.split(batch, micro_sequences or len(batch)):
            with autocast(device):
                total = model.loss(micro.to(device)).sum() / len(batch)
            torch.autograd.backward(total)
            loss += float(total.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
        if isfinite(float(norm)):
            optimizer.step()
        else:
            skipped += 1
        losses.append(loss)
        if on_step is not None:
            on_step(step, loss)
    optimizer.zero_grad(set_to_none=True)
    return InnerReport(tuple(losses), sum(batch.shape[0] * (batch.shape[1] - 1) for batch in batches), skipped)


def adam_state(model: Transformer, optimizer: torch.optim.AdamW) -> tuple[dict[str, Tensor], int]:
    """Adam's moments as CPU copies under `adam.first/NAME` and `adam.second/NAME`, and its number of steps; zeros
    and 0 before the first step, so that the set of tensors never depends on history."""
    tensors: dict[str, Tensor] = {}
    num_steps = 0
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        for prefix, key in ((FIRST, "exp_avg"), (SECOND, "exp_avg_sq")):
            moment = state[key] if state else torch.zeros_like(parameter)
            tensors[prefix + name] = moment.detach().to("cpu", copy=True)
        num_steps = int(state["step"]) if state else num_steps
    return tensors, num_steps


def load_adam_state(
    model: Transformer, optimizer: torch.optim.AdamW, tensors: Mapping[str, Tensor], num_steps: int
) -> None:
    """Inverse of `adam_state`: the next step is the same, bit for bit. Raises CheckpointCorrupt for other tensors."""
    for name, parameter in model.named_parameters():
        moments = {}
        for prefix, key in ((FIRST, "exp_avg"), (SECOND, "exp_avg_sq")):
            moment = tensors.get(prefix + name)
            if moment is None or moment.shape != parameter.shape:
                raise CheckpointCorrupt(f"saved optimizer state has no {prefix + name} of shape {parameter.shape}")
            moments[key] = moment.to(parameter.device, copy=True)
        step = torch.tensor(float(num_steps), device=parameter.device)
        optimizer.state[parameter] = {"step": step, **moments}
