"""Assignment of Muon's matrices to ranks for orthogonalisation, and its cost. No torch.

One rank orthogonalises each matrix whole (murmur/training/muon.py). In a turn every rank gets about the same work, at
most the model's largest matrix. So while one rank has a wide embedding the others have layers, and memory never holds
more than a few copies of one such matrix.
"""

from collections.abc import Sequence
from math import prod

from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training.sizes import BF16

ITERATIONS = 5
"""Newton-Schulz iterations."""

Shape = tuple[int, ...]
Turn = list[list[int]]
"""For each rank the indices of the matrices that it orthogonalises, in a list that is the same on all ranks."""


def deal(shapes: Sequence[Shape], ranks: int) -> list[Turn]:
    """Assign every matrix once, the largest first, each to the rank with the least work in its turn. The same on every
    rank."""
    sizes = [prod(shape) for shape in shapes]
    most = max(sizes, default=0)
    turns: list[Turn] = []
    loads: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        if not turns or min(loads) + sizes[place] > most:
            turns.append([[] for _ in range(ranks)])
            loads = [0] * ranks
        rank = loads.index(min(loads))
        turns[-1][rank].append(place)
        loads[rank] += sizes[place]
    return turns


def orthogonalising_flops(shape: Shape) -> int:
    """Return the FLOPs of orthogonalising one matrix: each iteration multiplies it by its transpose, squares that, and
    multiplies both by the matrix."""
    short, long = min(shape), max(shape)
    return ITERATIONS * (4 * short**2 * long + 2 * short**3)


def muon_flops(model: ModelSpec, inner: InnerSpec, ranks: int) -> int:
    """Return the orthogonalising FLOPs of the busiest rank in each turn of an inner step; the others wait for it. 0
    under AdamW."""
    shapes = _trained(model, inner)
    return sum(
        max(sum(orthogonalising_flops(shapes[place]) for place in theirs) for theirs in turn)
        for turn in deal(shapes, ranks)
    )


def muon_bytes(model: ModelSpec, inner: InnerSpec) -> int:
    """Return the most bytes that a rank's step takes temporarily: three times the largest matrix in bf16.

    They are its rows' directions, the rows that it sends and those that it receives; or a matrix, the next one and a
    square. 0 under AdamW.
    """
    return 3 * BF16 * max((prod(shape) for shape in _trained(model, inner)), default=0)


def _trained(model: ModelSpec, inner: InnerSpec) -> list[Shape]:
    """Return the shapes of the matrices that Muon trains: all of the model's, or none."""
    shapes: list[Shape] = [shape for _, shape in sorted(model.shapes().items()) if len(shape) == 2]
    return shapes if inner.optimizer == "muon" else []
