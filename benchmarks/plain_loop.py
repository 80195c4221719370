"""A training loop as small projects write it: bf16 autocast, accumulation, clipping, torch's own Muon and fused AdamW.

The form of nanochat's and torchtitan's loops, for bench_training.py: nothing of murmur/training/ takes part in a step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from murmur.protocol.spec import InnerSpec
from murmur.training.batch_trial import Fit


def optimizers(model: nn.Module, inner: InnerSpec) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers where the spec has Muon, AdamW for the rest."""
    named = dict(model.named_parameters())
    matrices = {
        name for name, each in named.items() if inner.optimizer == "muon" and "layers." in name and each.ndim == 2
    }
    rest = [each for name, each in named.items() if name not in matrices]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=inner.peak_lr, fused=True)]
    if matrices:
        found.append(torch.optim.Muon([named[name] for name in sorted(matrices)], lr=inner.peak_lr))
    return found


def plain_loop(
    model: Any, batches: Iterable[Tensor], inner: InnerSpec, fit: Fit, on_step: Callable[[int, float], None]
) -> list[float]:
    """Take a step for each batch; return the losses."""
    device = next(model.parameters()).device
    optimizing, losses = optimizers(model, inner), []
    for step, batch in enumerate(batches):
        total = torch.zeros((), device=device)
        for micro in batch.to(device).split(fit.micro_sequences):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = model.loss(micro).sum() / len(batch)
            torch.autograd.backward(loss)
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), inner.clip)
        for optimizer in optimizing:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(total))
        on_step(step, losses[-1])
    return losses
