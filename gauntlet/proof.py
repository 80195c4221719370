"""Proof of computation: a peer is ahead of others on the pages that it was assigned (docs/protocol.md section 9).

A peer's lead on a sequence is the fall of the loss with its update, less the mean fall with the reference peers'
updates: how hard the sequence is cancels. Its gap is how much more often the lead on an assigned sequence exceeds the
lead on one that is nobody's: how good the peer is in general cancels as well. Gaps are averaged over evaluations, and
the average's size is judged against the honest one, never one gap's sign.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import isfinite, sqrt
from statistics import fmean, median

from gauntlet.average import Average
from protocol.spec import GauntletSpec

LARGEST_PROOF = 4.0
"""In honest gaps: an average honest gap that has just passed zero would make any size of a proof."""

NO_PROOF = -0.5
"""The gap of a peer whose own loss was not finite: behind on every sequence."""

ENOUGH = 3
"""Values whose median is taken for the honest one."""


def leads(falls: Sequence[float], references: Sequence[Sequence[float]]) -> list[float]:
    """Each sequence's fall, less the references' mean fall on it."""
    return [fall - fmean(others) for fall, *others in zip(falls, *references, strict=True)]


def gap(assigned: Sequence[float], unassigned: Sequence[float]) -> float:
    """Probability that a lead on an assigned sequence exceeds one on an unassigned sequence, less 1/2; ties count
    half. -1/2 to 1/2, 0 for a peer that did nothing special on its own pages. Both have to be finite and not empty.

    Ranks, because few sequences with much to learn in them carry a mean (docs/decisions/0009-ranked-gap.md).
    """
    ordered = sorted(unassigned)
    below = sum(bisect_left(ordered, lead) + bisect_right(ordered, lead) for lead in assigned)
    return below / (2 * len(assigned) * len(unassigned)) - 0.5


def usual(trusted: Iterable[float], everyone: Iterable[float], before: Average) -> float:
    """What honest peers show in a round: the median of those in good standing, while fewer than three of them were
    evaluated that of everyone evaluated; with fewer than three values at all, what rounds `before` showed."""
    standing = [value for value in trusted if isfinite(value)]
    finite = standing if len(standing) >= ENOUGH else [value for value in everyone if isfinite(value)]
    if finite and (len(finite) >= ENOUGH or not before.weight):
        return median(finite)
    return before.value


def proof(gaps: Average, units: Average) -> float | None:
    """Averaged gap in units of the honest gap over the same evaluations: about 1 for honest work, 0 for none.

    A quotient of averages: rounds in which the honest gap is small weigh little. None while there is no honest gap to
    compare with (nothing evaluated, or it averages to nothing, as in the first steps of a run). At most LARGEST_PROOF
    to either side.
    """
    if units.value <= 0:
        return None
    return max(-LARGEST_PROOF, min(LARGEST_PROOF, gaps.value / units.value))


def floor(units: Average, evaluations: int, spec: GauntletSpec) -> float:
    """What the averaged gap has to exceed after so many evaluations: `proof_floor` of the honest one, less an allowance
    for how much wider an average of few evaluations spreads than one of many.

    `proof_allowance` is about one and a half standard deviations of one honest gap. Ranks spread alike whatever there
    is to learn, so in rounds with a small honest gap nobody is judged by noise.
    """
    decay = spec.proof_decay
    settled = (1 - decay) / (1 + decay)
    now = settled * (1 + decay**evaluations) / (1 - decay**evaluations) if evaluations else 1.0
    return spec.proof_floor * max(0.0, units.value) - spec.proof_allowance * (sqrt(now) - sqrt(settled))
