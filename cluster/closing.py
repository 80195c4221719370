"""Whether a round ends: when all that live have claimed, or when enough of them have and the rest took too long."""

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from protocol.cluster import Claim, ClusterTable
from protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class Closing:
    """Where a round stands, as one member sees it. waiting: who lives and has not claimed. enough: whether more than
    half of those that live have claimed, from when on `grace` runs."""

    waiting: frozenset[PeerId]
    enough: bool

    def ends(self, enough_for: float, grace: float) -> bool:
        """enough_for: seconds since it was enough, of looks that the store answered."""
        return not self.waiting or (self.enough and enough_for > grace)


def closing(claimed: Collection[PeerId], living: Collection[PeerId]) -> Closing:
    """claimed: who has; it counts as living, whatever its beat says: its update is there."""
    everybody = {*claimed, *living}
    return Closing(frozenset(everybody - {*claimed}), 2 * len(claimed) > len(everybody))


def grace_seconds(rules: ClusterTable, claims: Collection[Claim]) -> float:
    """How long the rest is waited for, by what those that have claimed needed: two steps, since the rest is slower and
    in the middle of one; sending; and for claims to be seen, two beats at least."""
    if not claims:
        return 2 * rules.beat_seconds
    trained = median(claim.seconds for claim in claims)
    step = median(claim.seconds / claim.steps for claim in claims)
    return max(2 * rules.beat_seconds, rules.grace * trained) + 2 * step + median(claim.sending for claim in claims)
