"""Which rank orthogonalises which matrix of a model that Muon trains, and what that takes. No torch.

A matrix is orthogonalised whole, by one rank (training/muon.py). In a turn every rank has matrices for about the same
work, together at most as large as the model's largest one: so while one rank has a wide embedding the others have
layers to do, and memory never holds more than a few copies of one such matrix.
"""

from collections.abc import Sequence
from math import prod

from protocol.spec import InnerSpec, ModelSpec
from training.sizes import BF16

ITERATIONS = 5
"""Of Newton and Schulz."""

Shape = tuple[int, ...]
Turn = list[list[int]]
"""For each rank the places of the matrices that it orthogonalises, in a list that all ranks have."""


def deal(shapes: Sequence[Shape], ranks: int) -> list[Turn]:
    """Every matrix once, the largest first, each to the rank that has least in its turn. The same on every rank."""
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
    """Of one matrix: in each iteration it times its transpose, that squared, and both times the matrix."""
    short, long = min(shape), max(shape)
    return ITERATIONS * (4 * short**2 * long + 2 * short**3)


def muon_flops(model: ModelSpec, inner: InnerSpec, ranks: int) -> int:
    """FLOPs of orthogonalising on the rank that has most to do in each turn of an inner step; the others wait for it.
    0 under AdamW."""
    shapes = _trained(model, inner)
    return sum(
        max(sum(orthogonalising_flops(shapes[place]) for place in theirs) for theirs in turn)
        for turn in deal(shapes, ranks)
    )


def muon_bytes(model: ModelSpec, inner: InnerSpec) -> int:
    """Most bytes that a rank's step takes for a moment: three times the largest matrix in bf16. That is what its rows
    want, what it sends and what it gets; or a matrix, the next one and a square. 0 under AdamW."""
    return 3 * BF16 * max((prod(shape) for shape in _trained(model, inner)), default=0)


def _trained(model: ModelSpec, inner: InnerSpec) -> list[Shape]:
    """Of the matrices that Muon trains: all of the model's, or none."""
    shapes: list[Shape] = [shape for _, shape in sorted(model.shapes().items()) if len(shape) == 2]
    return shapes if inner.optimizer == "muon" else []
