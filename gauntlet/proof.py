"""Proof of computation: a peer does better than others on the pages that it was assigned (docs/protocol.md section 9).

A peer's lead on a sequence is the fall of the loss with its update, less the mean fall with the reference peers'
updates: the difficulty of the sequence cancels. Its gap is how much more often the lead on an assigned sequence exceeds
the lead on an unassigned one: the peer's general quality cancels too. Gaps are averaged over evaluations, and the
average's size is judged against the honest one, never one gap's sign.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import isfinite, sqrt
from statistics import fmean, median

from gauntlet.average import Average, error
from gauntlet.rating import DEVIATIONS
from murmur.protocol.spec import GauntletSpec

LARGEST_PROOF = 4.0
"""In honest gaps: an average honest gap that has just passed zero would make a proof arbitrarily large."""

NO_PROOF = -0.5
"""The gap of a peer whose own loss was not finite: behind on every sequence."""

ENOUGH = 3
"""Fewest values whose median counts as the honest one."""


def leads(falls: Sequence[float], references: Sequence[Sequence[float]]) -> list[float]:
    """Return each sequence's fall, less the references' mean fall on it."""
    return [fall - fmean(others) for fall, *others in zip(falls, *references, strict=True)]


def gap(assigned: Sequence[float], unassigned: Sequence[float]) -> float:
    """Return the probability that a lead on an assigned sequence exceeds one on an unassigned sequence, less 1/2; ties
    count half. -1/2 to 1/2, 0 for a peer that did nothing special on its own pages. Both have to be finite and not
    empty.

    Ranks, because few sequences with much to learn in them dominate a mean (docs/decisions/0009-ranked-gap.md).
    """
    ordered = sorted(unassigned)
    below = sum(bisect_left(ordered, lead) + bisect_right(ordered, lead) for lead in assigned)
    return below / (2 * len(assigned) * len(unassigned)) - 0.5


def usual(trusted: Iterable[float], everyone: Iterable[float], before: Average) -> float:
    """Return the value of honest peers in a round. It is the median of those in good standing; while fewer than three
    of them were evaluated, of all evaluated peers. With fewer than three values at all it is at most the value of the
    rounds `before`. Two values are too few to raise it; and a peer held to the first rounds' value would be excluded
    for good."""
    standing = [value for value in trusted if isfinite(value)]
    values = standing if len(standing) >= ENOUGH else [value for value in everyone if isfinite(value)]
    if not values:
        return before.value
    shown = median(values)
    return shown if len(values) >= ENOUGH or not before.weight else min(shown, before.value)


def usual_variance(trusted: Iterable[float], before: Average) -> float:
    """Return the variance among peers in good standing in a round, from their median absolute deviation; with fewer
    than three of them the value of the rounds `before`, 0 at first."""
    values = [value for value in trusted if isfinite(value)]
    if len(values) < ENOUGH:
        return before.value
    middle = median(values)
    return (DEVIATIONS * median(abs(value - middle) for value in values)) ** 2


def proof(gaps: Average, units: Average) -> float | None:
    """Return the averaged gap in units of the honest gap over the same evaluations: about 1 for honest work, 0 for
    none.

    A quotient of averages: rounds in which the honest gap is small have little weight. None while there is no honest
    gap to compare with (nothing evaluated, or its average is not positive, as in the first steps of a run). Bounded by
    LARGEST_PROOF on both sides.
    """
    if units.value <= 0:
        return None
    return max(-LARGEST_PROOF, min(LARGEST_PROOF, gaps.value / units.value))


def floor(units: Average, evaluations: int, spec: GauntletSpec) -> float:
    """Return the floor of the averaged gap after this number of evaluations: `proof_floor` of the honest one, less an
    allowance for the wider spread of an average of few evaluations.

    `proof_allowance` is about one and a half standard deviations of one honest gap. Ranks spread alike however much
    there is to learn, so in rounds with a small honest gap no peer is judged by noise.
    """
    wider = error(evaluations, spec.proof_decay) - sqrt((1 - spec.proof_decay) / (1 + spec.proof_decay))
    return spec.proof_floor * max(0.0, units.value) - spec.proof_allowance * wider


def score_floor(usual: Average, variances: Average, evaluations: int, spec: GauntletSpec) -> float:
    """Return the floor of the averaged unassigned LossScore, in nats a token: the share `score_floor` of the honest
    one, or `score_allowance` standard errors below the honest one if that is less.

    The longer a run learns, the less a round's update changes the loss, while honest scores continue to differ
    (docs/decisions/0017-doubt-in-standard-errors.md).
    """
    deviation = sqrt(variances.value) * error(evaluations, spec.score_decay)
    return min(spec.score_floor * usual.value, usual.value - spec.score_allowance * deviation)
