"""LossScore of bounded updates (Gauntlet, Eq. 2; docs/protocol.md section 9).

    s_p(D) = L(theta, D) - L(theta - beta_t * s_p * Delta_hat_p, D)

and each peer's gap, from the same losses (gauntlet/proof.py). The loss is an argument; nothing here touches a model.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from gauntlet.evaluation import Evaluation, Samples
from gauntlet.proof import NO_PROOF, gap, leads
from murmur.protocol.types import LossScore, Page, PeerId
from sparseloco.outer import OuterState, Scales, bounds
from sparseloco.update import Update
from sparseloco.wire import Submission

Losses = Callable[[Update | None, Scales, tuple[Page, ...]], Sequence[float]]
"""Each sequence's loss (nats a token) with theta - probe_step * scales * update; None means theta alone. Calls for one
update come one after the other, so that the probed weights can be kept between them."""


def bounded(passed: Mapping[PeerId, Submission], state: OuterState) -> dict[PeerId, Scales]:
    """Return every passing peer's s per tensor, as if all of them contributed."""
    order = sorted(passed)
    factors, _ = bounds([passed[peer].update.norms for peer in order], state)
    return dict(zip(order, factors, strict=True))


def evaluate(
    losses: Losses,
    passed: Mapping[PeerId, Submission],
    factors: Mapping[PeerId, Scales],
    samples: Samples,
    references: Mapping[PeerId, Sequence[PeerId]],
) -> dict[PeerId, Evaluation]:
    """Evaluate every peer that has references with finite losses; a peer without any is left out.

    Raises ValueError if theta's own loss is not finite: that is our fault, not a peer's.
    """
    picked = [peer for peer in sorted(references) if references[peer]]
    if not picked:
        return {}
    nothing: Scales = ()
    base = {peer: losses(None, nothing, samples.assigned[peer]) for peer in picked}
    base_unassigned = losses(None, nothing, samples.unassigned)
    if not all(isfinite(loss) for found in (*base.values(), base_unassigned) for loss in found):
        raise ValueError("the loss of theta itself is not finite: the run has diverged or our weights are damaged")
    unassigned: dict[PeerId, list[float]] = {}
    assigned: dict[tuple[PeerId, PeerId], list[float]] = {}
    for scored in sorted({*picked, *(q for peer in picked for q in references[peer])}):
        update, factor = passed[scored].update, factors[scored]
        unassigned[scored] = _falls(base_unassigned, losses(update, factor, samples.unassigned))
        for peer in picked:
            if scored == peer or scored in references[peer]:
                assigned[scored, peer] = _falls(base[peer], losses(update, factor, samples.assigned[peer]))
    evaluations: dict[PeerId, Evaluation] = {}
    for peer in picked:
        usable = [q for q in references[peer] if _finite(assigned[q, peer]) and _finite(unassigned[q])]
        if not usable:
            continue
        own, shared = assigned[peer, peer], unassigned[peer]
        found = NO_PROOF
        if _finite(own) and _finite(shared):
            found = gap(
                leads(own, [assigned[q, peer] for q in usable]),
                leads(shared, [unassigned[q] for q in usable]),
            )
        evaluations[peer] = Evaluation(LossScore(_mean(own), _mean(shared)), found, len(usable))
    return evaluations


def _falls(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [ours - theirs for ours, theirs in zip(before, after, strict=True)]


def _finite(falls: Sequence[float]) -> bool:
    return all(map(isfinite, falls))


def _mean(falls: Sequence[float]) -> float:
    return sum(falls) / len(falls) if _finite(falls) else float("nan")
