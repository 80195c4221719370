"""Error feedback: a peer adds the unsent part of this round to its next update (SparseLoCo, Algorithm 1).

acc = beta * e + delta and e' = acc - Delta_hat. Every multiply, add and subtract is rounded to fp32 separately: torch's
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
    """Return beta * error + delta as a new contiguous fp32 tensor; no error is a zero error. beta is rounded to fp32
    first."""
    decayed = (torch.zeros_like(delta) if error is None else error) * fp32(beta)
    return (decayed + delta).contiguous()


def restore(error: Mapping[str, Tensor], update: Update) -> dict[str, Tensor]:
    """Return the error after a void round: e + Delta_hat in fp32, new tensors. So the sent values are not lost."""
    return {
        tensor.name: tensor_of(error, tensor, torch.float32) + update.dense(index).to(error[tensor.name].device)
        for index, tensor in enumerate(update.layout)
    }


def remove_from_error_feedback(error: Mapping[str, Tensor], update: Update, moves: Moves = moves) -> None:
    """Set the error (contiguous fp32, in place) to 0 wherever `update` has a value. For an error from before the update
    was sent: its values there are in the update, up to rounding. moves: the decoder."""
    one = fp32(1.0)
    for index, tensor in enumerate(update.layout):
        flat = tensor_of(error, tensor, torch.float32).view(-1)
        for places, _ in moves(update, index, one, None):
            flat[places.to(flat.device)] = 0.0


def restore_to_error_feedback(
    error: Mapping[str, Tensor], update: Update, sent: Update | None = None, moves: Moves = moves
) -> None:
    """Return the unsent part of `update`, a peer's own, to the error (contiguous fp32, in place).

    sent: the lowered update (sparseloco/restraint.py), e <- e + (Delta_hat - sent); None: nothing was sent, as in
    `restore`. The cost is that of the update's values: others are left alone. moves: the decoder.
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
