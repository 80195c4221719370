"""Proof of computation by the size of a double difference (docs/protocol.md section 9).

    gap_p = [s_p(D_p) - mean_q s_q(D_p)] - [s_p(U) - mean_q s_q(U)]

s is the fall of the loss, D_p the peer's assigned sample, U the sample of nobody, q the reference peers. How hard a
page is cancels, and so does how good the peer is in general; what stays is that it trained on its own pages. Gaps are
averaged over evaluations in units of the honest gap, and the average's size is judged, never one gap's sign.
"""

from collections.abc import Iterable
from math import isfinite, sqrt
from statistics import fmean, median

from gauntlet.average import Average
from gauntlet.loss import Evaluation
from protocol.spec import GauntletSpec

LARGEST_GAP = 4.0
"""In units: beyond it a gap counts as this, so that no single evaluation carries or sinks a peer."""


ENOUGH = 3
"""Values whose median is taken for the honest one."""


def gap(evaluation: Evaluation) -> float | None:
    """The double difference in nats a token; None without a finite reference. -inf when the peer's own loss was not
    finite."""
    references = [score for score in evaluation.references if isfinite(score.assigned) and isfinite(score.unassigned)]
    if not references:
        return None
    own = evaluation.score.assigned - evaluation.score.unassigned
    if not isfinite(own):
        return float("-inf")
    return own - fmean(score.assigned - score.unassigned for score in references)


def usual(trusted: Iterable[float], everyone: Iterable[float], before: Average) -> float:
    """What honest peers show in a round: the median of those in good standing, while fewer than three of them were
    evaluated that of everyone evaluated; with fewer than three values at all, what rounds `before` showed."""
    standing = [value for value in trusted if isfinite(value)]
    finite = standing if len(standing) >= ENOUGH else [value for value in everyone if isfinite(value)]
    if finite and (len(finite) >= ENOUGH or not before.weight):
        return median(finite)
    return before.value


def clipped(value: float, unit: float) -> float:
    """A gap in nats, at most LARGEST_GAP honest gaps (of `unit` > 0 nats) to either side."""
    return max(-LARGEST_GAP * unit, min(LARGEST_GAP * unit, value))


def proof(gaps: Average, units: Average) -> float | None:
    """Averaged gap in units of the honest gap over the same evaluations: about 1 for honest work, 0 for none.

    A quotient of averages: rounds in which the honest gap is small and noisy weigh little. None while there is no
    honest gap to compare with (nothing evaluated, or it averages to nothing, as in the first steps of a run).
    At most LARGEST_GAP to either side: an average of honest gaps that has just passed zero would make any size of it.
    """
    return clipped(gaps.value, units.value) / units.value if units.value > 0 else None


def floor(evaluations: int, spec: GauntletSpec) -> float:
    """What the averaged proof has to exceed after so many evaluations.

    `proof_floor`, less an allowance for how much wider an average of few evaluations spreads than one of many:
    `proof_allowance` is about two standard deviations of one honest evaluation, in units.
    """
    decay = spec.proof_decay
    settled = (1 - decay) / (1 + decay)
    now = settled * (1 + decay**evaluations) / (1 - decay**evaluations) if evaluations else 1.0
    return spec.proof_floor - spec.proof_allowance * (sqrt(now) - sqrt(settled))
