"""Aggregation, norm bounds and the outer step, bit for bit the same on every node (docs/protocol.md section 7).

With p the contributors in PeerId order and R their number as the record names them, per tensor t and in fp32:

    mean (SparseLoCo, Eq. 2)   w = alpha * s_{p,t} / R;  acc += w * v_p;  theta -= acc
    filtered_mean              as mean, w times p's weight (sparseloco/spectral.py), which is 1 on average

w is computed in float64 and rounded once; every multiply, add and subtract after it is rounded separately. A w below
2^-96 counts as 0: with levels of at least 2^-29 no product is denormal.

A contributor whose payload does not parse (None) has s = 0, takes no part in the medians and still counts in R.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Literal

import torch
from torch import Tensor

from murmur.protocol.layout import Layout, Region, TensorLayout
from sparseloco.floats import destination, fp32, require_denormals, tensor_of
from sparseloco.spectral import Products, gram, trust
from sparseloco.topk import blocks, elements, slabs, write_blocks
from sparseloco.update import Norms, Update

Aggregate = Literal["mean", "filtered_mean"]
Scales = tuple[float, ...]
"""s of one peer, per tensor in layout order, 0 to 1."""

BOUND_OVER_AVERAGE = 3.0
AVERAGE_KEEPS = 0.9
AVERAGE_TAKES = 0.1
SMALLEST_WEIGHT = 2.0**-96


@dataclass(frozen=True, slots=True)
class OuterState:
    """Consensus state besides theta: the number of non-void rounds so far, and the slow averages A of the norm bounds,
    per tensor in layout order and of the whole. An average of 0 is not set yet."""

    rounds: int
    averages: tuple[float, ...]
    whole: float

    @classmethod
    def initial(cls, layout: Layout) -> "OuterState":
        return cls(0, (0.0,) * len(layout.tensors), 0.0)

    def encode(self) -> bytes:
        """Encode u32 rounds, then float64 averages in layout order, then the whole; little-endian."""
        return struct.pack(f"<I{len(self.averages)}dd", self.rounds, *self.averages, self.whole)


def bound(norms: Sequence[Norms], state: OuterState) -> tuple[Norms, OuterState]:
    """Return b of this round from the contributors' norms, and the state after it.

    b = min(lower median, 3 A), then A <- 0.9 A + 0.1 b in float64. While A is 0 (the first non-void round; a tensor
    that has never moved) b and A are the median. Without norms b is 0 and the averages stay.
    """
    if not norms:
        return Norms((0.0,) * len(state.averages), 0.0), OuterState(state.rounds + 1, state.averages, state.whole)
    per_tensor = [
        _bound([norm.tensors[index] for norm in norms], average) for index, average in enumerate(state.averages)
    ]
    whole, whole_average = _bound([norm.whole for norm in norms], state.whole)
    new = OuterState(state.rounds + 1, tuple(average for _, average in per_tensor), whole_average)
    return Norms(tuple(limit for limit, _ in per_tensor), whole), new


def _bound(norms: list[float], average: float) -> tuple[float, float]:
    median = sorted(norms)[(len(norms) - 1) // 2]
    if average == 0.0:
        return median, median
    limit = min(median, _most(average))
    return limit, AVERAGE_KEEPS * average + AVERAGE_TAKES * limit


def most(state: OuterState) -> Norms:
    """Return the largest norms that the outer step applies whole: 3 A, no bound if A is not set yet."""
    tensors = tuple(_most(average) for average in state.averages)
    return Norms(tensors, _most(state.whole))


def _most(average: float) -> float:
    return BOUND_OVER_AVERAGE * average or inf


def scales(norms: Norms, limit: Norms) -> Scales:
    """Return s_{p,t} = min(1, b_t / n_{p,t}) * min(1, b / n_p) in float64; 0 where a norm is 0.

    A larger update is cut by both on purpose: with one cut only, inflating an update would pay
    (docs/decisions/0019-bounded-once.md).
    """
    whole = min(1.0, limit.whole / norms.whole) if norms.whole else 0.0
    return tuple(
        min(1.0, b / norm) * whole if norm else 0.0 for b, norm in zip(limit.tensors, norms.tensors, strict=True)
    )


def bounds(norms: Sequence[Norms | None], state: OuterState) -> tuple[tuple[Scales, ...], OuterState]:
    """Return every contributor's scales (zeros for None) and the state after the round."""
    limit, new = bound([norm for norm in norms if norm is not None], state)
    nothing = (0.0,) * len(state.averages)
    return tuple(nothing if norm is None else scales(norm, limit) for norm in norms), new


def outer_step(
    theta: Mapping[str, Tensor],
    updates: Sequence[Update | None],
    state: OuterState,
    *,
    alpha: float,
    aggregate: Aggregate,
    out: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], OuterState, tuple[Scales, ...]]:
    """Apply a non-void round: `updates` of the named contributors in PeerId order, None for one that does not parse.

    Return the new theta (fp32, in new tensors or those of `out`: contiguous fp32, apart from theta's; `theta` is not
    changed), the new state and each contributor's scales. Raises ValueError if theta or `out` does not fit the updates'
    layout.
    """
    require_denormals()
    layout = next((update.layout for update in updates if update is not None), None)
    factors, new_state = bounds([None if update is None else update.norms for update in updates], state)
    if layout is None:
        return unchanged(theta, out), new_state, factors
    present = [(update, factor) for update, factor in zip(updates, factors, strict=True) if update is not None]
    counted = peer_weights(present, len(updates), alpha=alpha, aggregate=aggregate)
    new_theta: dict[str, Tensor] = {}
    for index, tensor in enumerate(layout):
        before = tensor_of(theta, tensor, torch.float32)
        if out is None:
            values = before.clone(memory_format=torch.contiguous_format)
        else:
            values = destination(out, tensor).copy_(before)
        parts = [(update, _weight(weight[index])) for (update, _), weight in zip(present, counted, strict=True)]
        for region in slabs(tensor):
            step = _mean_step(parts, tensor, region).to(values.device)
            write_blocks(values, tensor, region, blocks(values, tensor, region) - step)
        new_theta[tensor.name] = values
    return new_theta, new_state, factors


def unchanged(theta: Mapping[str, Tensor], out: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return theta in other tensors: the result of a round in which no payload parses."""
    values = {name: value.detach() for name, value in theta.items()}
    return {name: value.clone() if out is None else out[name].copy_(value) for name, value in values.items()}


def peer_weights(
    present: Sequence[tuple[Update, Scales]],
    named: int,
    *,
    alpha: float,
    aggregate: Aggregate,
    products: Products | None = None,
) -> tuple[tuple[float, ...], ...]:
    """Return w of each contributor that parsed, per tensor, in float64. `named`: R, with those that do not parse.
    `products`: the function that sums the filtered mean's inner products; None: sparseloco/spectral.py."""
    trusted: tuple[float, ...] = (1.0,) * len(present)
    if aggregate == "filtered_mean":
        updates, factors = zip(*present, strict=True)
        trusted = trust(gram(updates, factors, products))
    return tuple(tuple(alpha * s * trusted[place] / named for s in factor) for place, (_, factor) in enumerate(present))


def _weight(value: float) -> Tensor:
    return fp32(value if value >= SMALLEST_WEIGHT else 0.0)


def _mean_step(parts: list[tuple[Update, Tensor]], tensor: TensorLayout, region: Region) -> Tensor:
    """Return acc of a slab, fp32 [chunks, n]."""
    acc = torch.zeros(region.down * region.across, region.n, dtype=torch.float32)
    for update, weight in parts:
        chunks = update.chunks(tensor, region)
        # A chunk's indices are distinct, so each element receives one rounded addition: the order is the peers'.
        acc.scatter_add_(1, chunks.indices, chunks.codes.values() * weight)
    return acc


def apply_probe(theta: Mapping[str, Tensor], update: Update, factor: Scales, step: float) -> dict[str, Tensor]:
    """Return theta - step * s * Delta_hat in new tensors: one peer's bounded update, as Gauntlet probes it.

    `factor` is the peer's s per tensor, `step` the spec's probe step. The caller keeps `theta` and copies it back.
    """
    probed: dict[str, Tensor] = {}
    for index, tensor in enumerate(update.layout):
        values = tensor_of(theta, tensor, torch.float32)
        delta = update.dense(index) * _weight(step * factor[index])
        probed[tensor.name] = values - delta.to(values.device)
    return probed


Rows = Mapping[str, slice]
"""The held rows (of the first dimension) of each tensor, if not all are held."""


Moves = Callable[[Update, int, Tensor, Rows | None], Iterable[tuple[Tensor, Tensor]]]
"""The type of `moves` below."""


def moves(update: Update, index: int, weight: Tensor, rows: Rows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an update's effect on its tensor number `index`, slab by slab, on the CPU: int64 places among the held
    values, each once, and the fp32 values subtracted there, the sent value times `weight` (fp32 scalar)."""
    for places, sent in _sent(update, update.layout.tensors[index], rows):
        yield places, sent * weight


def probe(
    values: Mapping[str, Tensor],
    update: Update,
    factor: Scales,
    step: float,
    rows: Rows | None = None,
    moves: Moves = moves,
) -> Tensor:
    """Apply `apply_probe` in place: `values` (contiguous fp32 tensors, or with `rows` those rows of them) get its
    result, bit for bit, at the cost of the update's values.

    Values may be on a GPU: places and moves are copied there. moves: the decoder. Return the input of `undo_probe`,
    about 4 bytes for each of the update's values. Values that do not move are not touched.
    """
    kept: list[Tensor] = [torch.empty(0)]
    for index, tensor in enumerate(update.layout):
        flat, weight = held_part(values, tensor, rows).view(-1), _weight(step * factor[index])
        for places, moved in moves(update, index, weight, rows):
            there = places.to(flat.device)
            before = flat[there]
            flat[there] = before - moved.to(flat.device)
            kept.append(before.cpu())
    return torch.cat(kept)


def undo_probe(
    values: Mapping[str, Tensor], update: Update, kept: Tensor, rows: Rows | None = None, moves: Moves = moves
) -> None:
    """Restore the values from before `probe` of the same update by the same `moves`, which returned `kept`."""
    first = 0
    for index, tensor in enumerate(update.layout):
        flat = held_part(values, tensor, rows).view(-1)
        for places, _ in moves(update, index, _weight(0.0), rows):
            flat[places.to(flat.device)] = kept[first : first + len(places)].to(flat.device)
            first += len(places)


def _sent(update: Update, tensor: TensorLayout, rows: Rows | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (places among the held values, values) of a tensor, slab by slab."""
    begin, end = span(tensor, rows)
    for region in slabs(tensor):
        chunks = update.chunks(tensor, region)
        places = elements(chunks.indices, tensor, region)
        ours = (places >= begin) & (places < end)
        yield places[ours] - begin, chunks.codes.values()[ours]


def span(tensor: TensorLayout, rows: Rows | None) -> tuple[int, int]:
    """Return the first held element of a tensor, counted row-major, and the one after the last."""
    if rows is None:
        return 0, tensor.numel
    held, wide = rows[tensor.name], prod(tensor.shape[1:])
    return held.start * wide, held.stop * wide


def held_part(values: Mapping[str, Tensor], tensor: TensorLayout, rows: Rows | None) -> Tensor:
    """Return the held part of a tensor. Raises ValueError if it is not contiguous fp32 of these rows."""
    found = values[tensor.name].detach()
    begin, end = span(tensor, rows)
    if found.numel() != end - begin or found.dtype != torch.float32 or not found.is_contiguous():
        raise ValueError(f"tensor {tensor.name!r} is not contiguous fp32 of {end - begin} elements")
    return found
