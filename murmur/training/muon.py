"""Muon for matrices that are whole or sharded by rows. One rank orthogonalises each matrix whole, so the result does
not depend on the number of ranks.

A rank keeps momentum and weights of its own rows. In each turn (murmur/training/muon_assignment.py) it sends its rows'
directions to the ranks that orthogonalise these matrices. It orthogonalises the matrices assigned to itself and sends
the rows back. All in bf16; on a CPU the products are in fp32. Sources: Muon (kellerjordan.github.io/posts/muon); scaled
for AdamW's learning rate and weight decay (arXiv 2502.16982).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from murmur.training.muon_assignment import ITERATIONS, deal
from murmur.training.parallel import Ranks, local

MOMENTUM = 0.95
COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Coefficients of x, (x x^T) x and (x x^T)^2 x: the steepest at 0 that bring singular values to about 1, not to 1
exactly."""
RMS = 0.2
"""Root mean square of an orthogonalised step at a learning rate of 1: AdamW's value in practice."""
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon over `matrices`, two-dimensional parameters of which this rank has its rows among `ranks`. All ranks step at
    the same time. Nesterov's momentum, decoupled weight decay."""

    def __init__(self, matrices: Sequence[torch.nn.Parameter], ranks: Ranks, *, lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._ranks = ranks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step. `closure` is torch's and not supported."""
        assert closure is None
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            for turn in deal([tuple(matrix.shape) for matrix in matrices], self._ranks.size):
                dealt = [[matrices[place] for place in theirs] for theirs in turn]
                self._step_together(dealt, group["lr"], group["weight_decay"])

    def _step_together(self, dealt: list[list[torch.nn.Parameter]], lr: float, weight_decay: float) -> None:
        """Step with the matrices of a turn; rank r orthogonalises `dealt[r]`."""
        steps = self._orthogonalised([[self._wanted(matrix) for matrix in theirs] for theirs in dealt], dealt)
        for theirs, ours in zip(dealt, steps, strict=True):
            for matrix, step in zip(theirs, ours, strict=True):
                scale = RMS * max(matrix.shape) ** 0.5
                local(matrix).mul_(1 - lr * weight_decay).add_(step, alpha=-lr * scale)

    def _wanted(self, matrix: Tensor) -> Tensor:
        """Return this rank's rows of the direction to orthogonalise, in bf16."""
        assert matrix.grad is not None
        state, grad = self.state[matrix], local(matrix.grad)
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix, requires_grad=False)
        momentum = local(state["momentum_buffer"]).lerp_(grad, 1 - MOMENTUM)
        return grad.lerp(momentum, MOMENTUM).bfloat16()

    def _orthogonalised(self, wanted: list[list[Tensor]], dealt: list[list[torch.nn.Parameter]]) -> list[list[Tensor]]:
        """Return this rank's orthogonalised rows of every matrix of a turn, from its rows of the directions,
        `wanted`."""
        ranks = self._ranks
        mine = [matrix.shape for matrix in dealt[ranks.index]]
        rows = [[ranks.rows(height, rank) for height, _ in mine] for rank in range(ranks.size)]
        shapes = [
            [torch.Size((cut.stop - cut.start, width)) for cut, (_, width) in zip(cuts, mine, strict=True)]
            for cuts in rows
        ]
        parts = ranks.exchange(wanted, shapes)
        wanted.clear()  # free tensors already sent, and below each part once its matrix is whole
        wholes = [orthogonalised(torch.cat([theirs.pop(0) for theirs in parts])) for _ in mine]
        back = [[whole[cut] for whole, cut in zip(wholes, cuts, strict=True)] for cuts in rows]
        return ranks.exchange(back, [[local(matrix).shape for matrix in theirs] for theirs in dealt])


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of Muon's products. A CPU without instructions for bf16 takes 8 to 73 times as long for them as
    for fp32 (benchmarks/bench_muon.py)."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return nearly the nearest matrix with orthonormal rows or columns: singular values become 0.7 to 1.2. bf16. The
    matrix may be changed in place."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(product_dtype(matrix.device))
    del matrix  # its memory would otherwise live as long as that of x
    x = x.div_(x.norm().clamp(min=SMALLEST_NORM))
    for _ in range(ITERATIONS):
        square = x @ x.T
        square = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, square, x, beta=a)
        del square
    return (x.T if tall else x).bfloat16()
