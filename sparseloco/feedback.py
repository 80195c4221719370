"""Error feedback: what a peer could not send this round it adds to what it sends next (SparseLoCo, Algorithm 1).

acc = beta * e + delta and e' = acc - Delta_hat, every multiply, add and subtract rounded to fp32 by itself: torch's
`add(alpha=)`, `addcmul` and the like fuse on some machines and are not used here.
"""

from collections.abc import Mapping

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


def give_back(error: Mapping[str, Tensor], update: Update, moves: Moves = moves) -> None:
    """`restore` where the error lies (contiguous fp32), at the cost of what was sent: a value that was not is left
    alone. moves: who decodes the update."""
    for index, tensor in enumerate(update.layout):
        flat = tensor_of(error, tensor, torch.float32).view(-1)
        for places, sent in moves(update, index, fp32(1.0), None):
            there = places.to(flat.device)
            flat[there] = flat[there] + sent.to(flat.device)
