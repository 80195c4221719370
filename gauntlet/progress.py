"""Progress: how far a run continues along every update, the measure of work that is paid (docs/protocol.md section 9;
docs/decisions/0056-pay-by-progress.md).

A LossScore is measured at theta, where the loss falls most along the few steep directions. Every worker, half work too,
has settled in those long before its round ends. A run advances by another part of an update: the part along which the
others continue in the next round, from a theta that they did not know and on pages that none had seen. So take an
update u of the round before, and the updates v that the guides (gauntlet/remembered.py) send in this round:

    progress = median over the guides other than u's sender of <u, v> / (|v| * max(|u|, usual norm))

In the product, the components of u and v in the span of the last steps are left out. These are the steps of the BEFORE
rounds before u's. All peers know them: to send them again would show more than work does. The median is over the
others, without the peer's own update. A peer that keeps to a direction of its own repeats it in its own next update,
and so do its accomplices; but most others do not.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median_high

import numpy as np
import numpy.typing as npt

from gauntlet.remembered import Remembered
from gauntlet.sketch import Sample, Sketch
from murmur.protocol.spec import PROGRESS_ROUNDS
from murmur.protocol.types import PeerId
from sparseloco.wire import Submission

BEFORE = PROGRESS_ROUNDS - 1
"""Rounds before an update's own whose steps are common knowledge, not a peer's own work."""

MEASURED_VALUES = 1 << 15
"""Chunks are sampled until they hold about this many values; all of them in a small model. Two updates of cosine c that
share about one place in 64 show it with an error of 1 / sqrt(64 MEASURED_VALUES) = 0.0007."""

ROUNDING = 1e-9
"""Share of a step's norm: less than this outside the span of the steps before is only rounding."""

Vector = npt.NDArray[np.float64]


def shown(sample: Sample, guides: Iterable[PeerId], passed: Mapping[PeerId, Submission]) -> list[Sketch]:
    """Return sketches of the guides' payloads of this round."""
    return [
        Sketch(peer, one.round, one.update.digest, sample.excerpt(one.update.records))
        for peer in guides
        if (one := passed.get(peer)) is not None
    ]


def progress(
    sample: Sample, now: Collection[Sketch], past: Collection[Sketch], named: Collection[Remembered]
) -> dict[PeerId, float]:
    """Return the progress of every peer with a payload of the round before `now`, whether it sent one since or not: a
    cosine, about 0 for noise. `now`: the guides' payloads, by `sample` like those of `past`. `past`: those of `named`
    (looked_at) that are available. Return {} if one of them, or all of a needed round, is lost: a value measured from a
    part would be wrong."""
    rounds = sorted({one.round for one in past})
    if not now or len(past) < len(named) or not rounds or rounds[-1] != next(iter(now)).round - 1:
        return {}
    judged = rounds[-1]
    if rounds != list(range(max(0, judged - BEFORE), judged + 1)):
        return {}
    leading = {one.peer for one in now}
    span = _orthonormal(
        [_step(sample, [one for one in past if one.round == earlier]) for earlier in rounds[:-1]], sample.num_elements
    )
    updates = _Updates(sample, [one for one in past if one.round == judged], span)
    others = _Updates(sample, now, span)
    usual = _usual([norm for peer, norm in zip(updates.peers, updates.norms, strict=True) if peer in leading])
    products = updates.products(others)
    found = {}
    for peer, norm, row in zip(updates.peers, updates.norms, products.tolist(), strict=True):
        likeness = [
            product / length
            for product, length, other in zip(row, others.norms, others.peers, strict=True)
            if other != peer and length
        ]
        if likeness and norm and usual:
            # The higher of the two in the middle: their mean would be as low as half of the others want.
            found[peer] = median_high(likeness) * min(1.0, usual / norm) / usual
    return found


def _step(sample: Sample, sketches: Sequence[Sketch]) -> Vector:
    """Return the sum of a round's updates, each cut at their median norm, float64 [elements]."""
    found = np.zeros(sample.num_elements)
    places, values = sample.values(sketches)
    norms = np.sqrt((values * values).sum(axis=1))
    usual = _usual(norms.tolist())
    for where, value, norm in zip(places, values, norms.tolist(), strict=True):
        if norm:
            found[where] += value * min(1.0, usual / norm)
    return found


def _orthonormal(steps: Sequence[Vector], elements: int) -> Vector:
    """Return an orthonormal basis of the steps' span, float64 [elements, at most as many]."""
    basis = np.zeros((elements, 0))
    for step in steps:
        rest = step - basis @ (basis.T @ step)
        rest = rest - basis @ (basis.T @ rest)  # once more: the first pass leaves its rounding
        length = float(np.linalg.norm(rest))
        if length > ROUNDING * float(np.linalg.norm(step)):
            basis = np.concatenate([basis, (rest / length)[:, None]], axis=1)
    return basis


class _Updates:
    """The sampled values of some payloads of one round: their norms, and coordinates of their parts in the span."""

    def __init__(self, sample: Sample, sketches: Collection[Sketch], span: Vector) -> None:
        ordered = sorted(sketches, key=lambda one: one.peer)
        self.peers = [one.peer for one in ordered]
        self.places, self.values = sample.values(ordered)
        self.norms: list[float] = np.sqrt((self.values * self.values).sum(axis=1)).tolist()
        rows = [value @ span[where] for where, value in zip(self.places, self.values, strict=True)]
        self.within = np.stack(rows) if rows else np.zeros((0, span.shape[1]))
        self._elements = sample.num_elements

    def products(self, others: "_Updates") -> Vector:
        """Return inner products of the parts outside the span, [mine, others]."""
        found = -self.within @ others.within.T
        dense = np.zeros(self._elements)
        for column, (where, value) in enumerate(zip(others.places, others.values, strict=True)):
            dense[where] = value
            found[:, column] += (dense[self.places] * self.values).sum(axis=1)
            dense[where] = 0.0
        return found


def _usual(norms: Sequence[float]) -> float:
    """Return the lower median of the norms that are not 0; 0 without any."""
    ordered = sorted(norm for norm in norms if norm)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0
