"""Error feedback: what a peer could not send this round it adds to what it sends next (SparseLoCo, Algorithm 1).

acc = beta * e + delta and e' = acc - Delta_hat, every multiply, add and subtract rounded to fp32 by itself: torch's
`add(alpha=)`, `addcmul` and the like fuse on some machines and are not used here.
"""

from collections.abc import Mapping
from itertools import repeat

import torch
from torch import Tensor

from sparseloco.floats import fp32, tensor_of
from sparseloco.outer import Moves, moves
from sparseloco.update import Update


def accumulate(delta: Tensor, error: Tensor | None, beta: float) -> Tensor:
    """beta * error + delta as a new contiguous fp32 tensor; no error is a zero error. beta is rounded to fp32 first."""
    decayed = (torch.zeros_like(delta) if error is None else error) * fp32(beta)
    return (decayed + delta).contiguous()


def restore(error: Mapping[str, Tensor], update: Update) -> dict[str, Tensor]:
    """The error after a void round: e + Delta_hat in fp32, new tensors, so that nothing that was sent is lost."""
    return {
        tensor.name: tensor_of(error, tensor, torch.float32) + update.dense(index).to(error[tensor.name].device)
        for index, tensor in enumerate(update.layout)
    }


def strike(error: Mapping[str, Tensor], update: Update, moves: Moves = moves) -> None:
    """Where the error lies (contiguous fp32): e <- 0 wherever `update` has a value, for an error of before it was sent.
    What it holds there is in the update, but for what rounding left. moves: who decodes."""
    one = fp32(1.0)
    for index, tensor in enumerate(update.layout):
        flat = tensor_of(error, tensor, torch.float32).view(-1)
        for places, _ in moves(update, index, one, None):
            flat[places.to(flat.device)] = 0.0


def give_back(error: Mapping[str, Tensor], update: Update, sent: Update | None = None, moves: Moves = moves) -> None:
    """Where the error lies (contiguous fp32): what of `update`, to which it belongs, is not sent returns into it.

    sent: the update lowered (sparseloco/restraint.py), e <- e + (Delta_hat - sent); None: nothing, as in `restore`. It
    costs what the update's values cost: others are left alone. moves: who decodes.
    """
    one = fp32(1.0)
    for index, tensor in enumerate(update.layout):
        ours = slice(tensor.offset, tensor.offset + tensor.num_bytes)
        if sent is not None and update.records[ours] == sent.records[ours]:
            continue
        flat = tensor_of(error, tensor, torch.float32).view(-1)
        # The same places in the same order: restraint changes levels only.
        less = (part for _, part in moves(sent, index, one, None)) if sent is not None else repeat(torch.tensor(0.0))
        for (places, values), kept in zip(moves(update, index, one, None), less, strict=False):
            there, back = places.to(flat.device), values - kept
            flat[there] = flat[there] + back.to(flat.device)
