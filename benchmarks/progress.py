"""What a run goes on with of every update: a measure of work for benchmarks/bench_pay.py and pay_rules.py.

A LossScore is taken at theta, where the loss falls most along the few steep directions that every worker, half work
too, has settled in long before its round ends; what carries a run is the part of an update along which the next rounds
go on. So, with s_j what the outer step of round j subtracted from theta, f = min(1, b / |u|) by the round's bound b,

    progress = f <u, d> / |d|,   d = s_{r+1} + .. + s_{r+LATER}, less its part in the span of s_{r-BEFORE} .. s_{r-1}

The last part keeps out who sends what the run has done already. Only what everybody has goes in: payloads and records.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from arena import forge
from protocol.types import PeerId
from sparseloco.outer import OuterState, bound
from sparseloco.update import Update

LATER = 2
"""Rounds after an update's own in which the run shows where it goes."""
BEFORE = 4
"""Rounds before it whose steps are nobody's work any more."""


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """All tensors in one row, in the order of their names; float64."""
    return torch.cat([values[name].reshape(-1).double() for name in sorted(values)])


def usual_norm(chosen: Sequence[Update], outer: OuterState) -> float:
    """The bound of whole norms in a round with these contributors."""
    return bound([update.norms for update in chosen], outer)[0].whole


def progress(
    updates: Mapping[PeerId, Update], usual: float, before: Sequence[Tensor], later: Sequence[Tensor]
) -> dict[PeerId, float]:
    """Of every update of a round; `before` and `later`: flat steps."""
    way = torch.stack(list(later)).sum(0)
    if before:
        span, _ = torch.linalg.qr(torch.stack(list(before), 1))
        way = way - span @ (span.T @ way)
    way = way / way.norm()
    return {
        peer: float(flat(forge.dense(update)) @ way) * min(1.0, usual / update.norms.whole)
        for peer, update in updates.items()
        if update.norms.whole
    }
