"""Decide whether a round ends: all living members have claimed, or most have and the rest took too long."""

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from murmur.protocol.cluster import Claim, ClusterTable
from murmur.protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A round's progress, as one member sees it. waiting: the living members that have not claimed. enough: whether
    more than half of the living members have claimed; from then on `grace` runs."""

    waiting: frozenset[PeerId]
    enough: bool

    def ends(self, enough_for: float, grace: float) -> bool:
        """Whether the round ends. enough_for: seconds since `enough`, counting only looks that the store answered."""
        return not self.waiting or (self.enough and enough_for > grace)


def round_progress(claimed: Collection[PeerId], living: Collection[PeerId]) -> RoundProgress:
    """Return the round's progress. claimed: the members that have; they count as living, whatever their beats say,
    since their updates are there."""
    everybody = {*claimed, *living}
    return RoundProgress(frozenset(everybody - {*claimed}), 2 * len(claimed) > len(everybody))


def grace_seconds(rules: ClusterTable, claims: Collection[Claim]) -> float:
    """Return how long the rest is waited for, from the times of the members that have claimed. It is two steps, since
    the rest is slower and in the middle of one; plus the time to send; plus the `grace` share of the training time, but
    at least two beats, so that claims can be seen."""
    if not claims:
        return 2 * rules.beat_seconds
    trained = median(claim.seconds for claim in claims)
    step = median(claim.seconds / claim.steps for claim in claims)
    return max(2 * rules.beat_seconds, rules.grace * trained) + 2 * step + median(claim.sending for claim in claims)
