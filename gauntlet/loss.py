"""LossScore of bounded updates (Gauntlet, Eq. 2; docs/protocol.md section 9).

    s_p(D) = L(theta, D) - L(theta - beta_t * s_p * Delta_hat_p, D)

The loss is an argument; nothing here touches a model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from protocol.types import LossScore, Page, PeerId
from sparseloco.outer import OuterState, Scales, bounds
from sparseloco.update import Update
from sparseloco.wire import Submission

Loss = Callable[[Update | None, Scales, tuple[Page, ...]], float]
"""Mean loss (nats a token) over the sequences of theta - probe_step * scales * update; None stands for theta alone.
Calls for one update come one after the other, so that the probed weights can be kept between them."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Sequences to evaluate, each as a Page of one context's tokens, ascending: of every picked peer's own pages, and
    one set of pages that are nobody's this round."""

    assigned: Mapping[PeerId, tuple[Page, ...]]
    unassigned: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A peer's scores, and each reference peer's on the same two samples (`assigned` is the evaluated peer's own).
    A value is NaN when the loss with that update was not finite."""

    score: LossScore
    references: tuple[LossScore, ...]


def bounded(passed: Mapping[PeerId, Submission], state: OuterState) -> dict[PeerId, Scales]:
    """Every passing peer's s per tensor, as if all of them contributed."""
    order = sorted(passed)
    factors, _ = bounds([passed[peer].update.norms for peer in order], state)
    return dict(zip(order, factors, strict=True))


def evaluate(
    loss: Loss,
    passed: Mapping[PeerId, Submission],
    factors: Mapping[PeerId, Scales],
    samples: Samples,
    references: Mapping[PeerId, Sequence[PeerId]],
) -> dict[PeerId, Evaluation]:
    """Scores of every peer that has references; a peer without any is not evaluated.

    Raises ValueError when theta's own loss is not finite: that is our fault, not a peer's.
    """
    picked = [peer for peer in sorted(references) if references[peer]]
    if not picked:
        return {}
    nothing: Scales = ()
    base = {peer: loss(None, nothing, samples.assigned[peer]) for peer in picked}
    base_unassigned = loss(None, nothing, samples.unassigned)
    if not all(map(isfinite, (*base.values(), base_unassigned))):
        raise ValueError("the loss of theta itself is not finite: the run has diverged or our weights are damaged")
    unassigned: dict[PeerId, float] = {}
    assigned: dict[tuple[PeerId, PeerId], float] = {}
    for scored in sorted({*picked, *(q for peer in picked for q in references[peer])}):
        update, factor = passed[scored].update, factors[scored]
        unassigned[scored] = _fall(base_unassigned, loss(update, factor, samples.unassigned))
        for peer in picked:
            if scored == peer or scored in references[peer]:
                assigned[scored, peer] = _fall(base[peer], loss(update, factor, samples.assigned[peer]))

    def score(scored: PeerId, peer: PeerId) -> LossScore:
        return LossScore(assigned[scored, peer], unassigned[scored])

    return {
        peer: Evaluation(score(peer, peer), tuple(score(other, peer) for other in references[peer])) for peer in picked
    }


def _fall(before: float, after: float) -> float:
    return before - after if isfinite(after) else float("nan")
