"""The filtered mean: contributors that push together against the others lose their weight (docs/protocol.md section 7).

Bounded updates of honest peers are nearly orthogonal: each is mostly the noise of its own pages. So a third of the
contributors that send one direction outweighs the others' common part, whatever bounds every single norm. But it must
show as one direction of unusual variance, which is removed. This is iterative filtering from robust statistics (named
and analysed by Diakonikolas, Kane and Pensia, NeurIPS 2020), on whole sparse vectors through their Gram matrix. If no
direction is unusual, all weights are 1 and the step is the mean's, bit for bit.

Deterministic on any machine: inner products are counted in integers. Everything after them is float64 with one
operation at a time in a fixed order, or `fsum`, which is exact.
"""

from collections.abc import Callable, Sequence
from math import fsum, sqrt

import numpy as np
import numpy.typing as npt
import torch

from murmur.protocol.layout import Region, TensorLayout
from sparseloco.quantize import level_values
from sparseloco.topk import slabs
from sparseloco.update import LEVELS, Update

LARGEST_VARIANCE = 1.75
VARIANCE_PER_PEER = 1 / 32
"""Bound of the variance along one direction, in units of the variance if all updates are orthogonal: up to 1.75 + M /
32 no contributor is filtered. Along the widest direction honest updates show a median of 1.5 for 6 to 8 contributors,
1.9 for 20 and 2.0 for 24 (docs/decisions/0011-filtered-mean.md): their noise differs between directions."""

FEWEST = 7
"""Fewest contributors: with fewer, less than a third is one peer, and one peer is bounded by its norm and its share."""

LARGEST_WEIGHT = 1.5
"""Weight of the others after a third is removed."""

NO_VARIANCE = 1e-9
"""Share of a squared norm: the rounding between equal updates."""

POWER_STEPS = 32
UNITS = 1 << 15
"""Integer value of a tensor's largest level in inner products: a product has at most 30 bits."""

Matrix = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Products = Callable[[Sequence[Update], npt.NDArray[np.int32]], Integers]
"""A function that sums exact inner products, like `exact_products`."""


def gram(updates: Sequence[Update], factors: Sequence[Sequence[float]], products: Products | None = None) -> Matrix:
    """Return inner products of the updates, each tensor scaled by its peer's factor; float64 [peers, peers], symmetric.

    Per tensor, values are integers in units of 2^-15 of the peer's largest level there. The products are summed exactly
    and weighted in float64, tensor by tensor in layout order. `products`: the summing function; None: this module's.
    """
    numbers, units = zip(*map(_integers, updates), strict=True)
    exact = (products or exact_products)(updates, np.stack(numbers))
    total = np.zeros((len(updates), len(updates)))
    for index, lower in enumerate(exact):
        scaled = np.array([unit[index] * factor[index] for unit, factor in zip(units, factors, strict=True)])
        whole = (lower + np.tril(lower, -1).T).astype(np.float64)
        total = total + scaled[:, None] * scaled[None, :] * whole
    return total


def _integers(update: Update) -> tuple[npt.NDArray[np.int32], tuple[float, ...]]:
    """Return [tensors, 256], the integer of each level code in a tensor, and each tensor's value of one unit."""
    levels = level_values(torch.arange(LEVELS)).numpy().astype(np.float64)
    numbers = np.zeros((len(update.layout.tensors), LEVELS), dtype=np.int32)
    units = []
    for own, histogram in zip(numbers, update.histograms, strict=True):
        present = np.flatnonzero(histogram)
        largest = float(levels[present[-1]]) if len(present) else 0.0
        if largest:
            # Levels above the largest one do not occur; at most UNITS, they could not overflow either.
            own[:] = np.minimum(np.rint(levels / largest * UNITS), UNITS)
        units.append(largest / UNITS)
    return numbers, tuple(units)


def exact_products(updates: Sequence[Update], numbers: npt.NDArray[np.int32]) -> Integers:
    """Return exact inner products of the updates' integer values, int64 [tensors, peers, peers], the lower triangle and
    the diagonal; zeros above. `numbers`: the integer of each level code, [peers, tensors, 256]."""
    layout = updates[0].layout
    total = np.zeros((len(layout.tensors), len(updates), len(updates)), dtype=np.int64)
    for index, tensor in enumerate(layout):
        for region in slabs(tensor):
            tables = numbers[:, index].astype(np.int64)
            parts = [_sparse(update, tensor, region, table) for update, table in zip(updates, tables, strict=True)]
            dense = np.zeros(region.down * region.across * region.n, dtype=np.int64)
            for one, (places, values) in enumerate(parts):
                dense[places] = values
                for other, (theirs, counted) in enumerate(parts[: one + 1]):
                    total[index, one, other] += int((dense[theirs] * counted).sum())
                dense[places] = 0
    return total


def _sparse(update: Update, tensor: TensorLayout, region: Region, table: Integers) -> tuple[Integers, Integers]:
    """Return places and integer values of an update in a slab."""
    chunks = update.chunks(tensor, region)
    first = np.arange(region.down * region.across)[:, None] * region.n
    signs = 1 - 2 * chunks.codes.signs.numpy().astype(np.int64)
    return (first + chunks.indices.numpy()).ravel(), (table[chunks.codes.levels().numpy()] * signs).ravel()


def trust(products: Matrix) -> tuple[float, ...]:
    """Return the weight of each of M contributors, from the Gram matrix of their bounded updates: 0 to 1.5; 1 on
    average, or less if more than a third has lost its weight.

    While the variance along the widest direction is unusual, every weight w loses w * (d / largest d)^2. Here d is the
    distance from the median along that direction: the farthest contributor loses all. At most ceil(M / 3) times.
    """
    count = len(products)
    kept = [1.0] * count
    for _ in range(-(-count // 3) if count >= FEWEST else 0):
        total = fsum(kept)
        weights = [w / total for w in kept]
        centred = _centred(products, weights)
        along = _widest(centred, weights)
        variance = fsum(w * p * p for w, p in zip(weights, along, strict=True))
        usual = sorted(np.diag(centred).tolist())[(count - 1) // 2] * fsum(w * w for w in weights)
        largest = (LARGEST_VARIANCE + VARIANCE_PER_PEER * count) * usual
        if variance <= max(largest, NO_VARIANCE * float(np.diag(products).max())):
            break
        middle = sorted(p for w, p in zip(weights, along, strict=True) if w)
        median = middle[(len(middle) - 1) // 2]
        squares = [(p - median) * (p - median) if w else 0.0 for w, p in zip(weights, along, strict=True)]
        farthest = max(squares)
        if not farthest:
            break
        kept = [w * (1.0 - square / farthest) for w, square in zip(kept, squares, strict=True)]
    total = fsum(kept)
    return tuple(min(LARGEST_WEIGHT, w * count / total) for w in kept)


def _centred(products: Matrix, weights: Sequence[float]) -> Matrix:
    """Return the Gram matrix of the updates less their weighted mean."""
    means = _times(products, np.array(weights))
    mean = fsum(w * m for w, m in zip(weights, means.tolist(), strict=True))
    return products - means[:, None] - means[None, :] + mean


def _widest(centred: Matrix, weights: Sequence[float]) -> list[float]:
    """Return each update's coordinate along the direction of most weighted variance, by power iteration from the update
    whose inner products with the others are largest. Zeros if nothing varies."""
    scales = np.array(weights)
    energies = [
        w * fsum(v * c * c for v, c in zip(weights, row, strict=True))
        for w, row in zip(weights, centred.tolist(), strict=True)
    ]
    combination = np.zeros(len(weights))
    combination[energies.index(max(energies))] = 1.0
    along = _times(centred, combination)
    for _ in range(POWER_STEPS):
        combination = scales * along
        along = _times(centred, combination)
        square = fsum((combination * along).tolist())
        if square <= 0.0:
            return [0.0] * len(weights)
        along = along / sqrt(square)
    found: list[float] = along.tolist()
    return found


def _times(matrix: Matrix, vector: Matrix) -> Matrix:
    """Return matrix @ vector with the columns added one after the other: a library's product has no fixed order."""
    total = np.zeros(len(vector))
    for column, value in zip(matrix.T, vector.tolist(), strict=True):
        total = total + column * value
    return total
