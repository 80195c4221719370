"""LossRating: OpenSkill's Plackett-Luce over scores on unassigned data (Gauntlet, section 4; Weng and Lin 2011).

openskill 6.2 mis-ranks ties: with four fresh players ranked 1, 1, 3, 4 it gives the third as much as the first two. So
it never gets a tie. Statistically equal peers form a band, and the band's order is rotated: each member is rated once
at every place of its band, and receives its mean. Fresh players of one band get equal ratings, and their order does not
depend on names or input order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from statistics import median

from murmur.protocol.types import PeerId

MU = 25.0
SIGMA = 25.0 / 3.0
BETA = 7.0
TAU = 0.1
DEVIATIONS = 1.4826
"""Standard deviations in a median absolute deviation, for a normal distribution."""


@dataclass(frozen=True, slots=True)
class Rating:
    mu: float = MU
    sigma: float = SIGMA


FRESH = Rating()
"""The rating of a new player."""


def bands(scores: Mapping[PeerId, float], band: float) -> list[list[PeerId]]:
    """Return peers of finite score in bands, best band first, sorted inside a band. A band reaches from its best score
    down by `band` times the scores' robust spread (from the median absolute deviation)."""
    finite = {peer: score for peer, score in scores.items() if isfinite(score)}
    if not finite:
        return []
    middle = median(finite.values())
    reach = band * DEVIATIONS * median(abs(score - middle) for score in finite.values())
    found: list[list[PeerId]] = []
    best = 0.0
    for peer in sorted(finite, key=lambda peer: (-finite[peer], peer)):
        if not found or finite[peer] < best - reach:
            found.append([])
            best = finite[peer]
        found[-1].append(peer)
    return [sorted(members) for members in found]


def rate(
    ratings: Mapping[PeerId, Rating], scores: Mapping[PeerId, float], failed: Collection[PeerId], band: float
) -> dict[PeerId, Rating]:
    """Return new ratings of all players: `scores` on unassigned data, better ones first; a score that is not finite and
    every peer of `failed` share the last place. With fewer than two players, or no finite score: {}."""
    ranked = bands({peer: score for peer, score in scores.items() if peer not in failed}, band)
    last = sorted({*scores, *failed} - {peer for members in ranked for peer in members})
    if not ranked or sum(map(len, ranked)) + len(last) < 2:
        return {}
    turns = max(map(len, ranked))
    runs = []
    for turn in range(turns):
        order = [members[(turn + place) % len(members)] for members in ranked for place in range(len(members))]
        runs.append(_rate_in_order([*order, *last], ratings))
    new: dict[PeerId, Rating] = {}
    for members in ranked:
        # Whole cycles only, so that every member has held every place equally often.
        cycles = runs[: turns - turns % len(members)]
        for peer in members:
            new[peer] = Rating(
                fsum(run[peer].mu for run in cycles) / len(cycles),
                fsum(run[peer].sigma for run in cycles) / len(cycles),
            )
    if last:
        # Too many to rotate (any peer can fail): all at the last place share its mean change.
        change = fsum(run[peer].mu - ratings[peer].mu for run in runs for peer in last) / (len(runs) * len(last))
        for peer in last:
            sigma = fsum(run[peer].sigma for run in runs) / len(runs)
            new[peer] = Rating(ratings[peer].mu + min(0.0, change), sigma)
    return new


def _rate_in_order(order: Sequence[PeerId], ratings: Mapping[PeerId, Rating]) -> dict[PeerId, Rating]:
    """Return ratings after one game in which every player has a place of its own."""
    from openskill.models import PlackettLuce

    model = PlackettLuce(mu=MU, sigma=SIGMA, beta=BETA, tau=TAU)
    teams = [[model.rating(mu=ratings[peer].mu, sigma=ratings[peer].sigma)] for peer in order]
    rated = model.rate(teams, ranks=[float(place) for place in range(1, len(order) + 1)])
    return {peer: Rating(team[0].mu, team[0].sigma) for peer, team in zip(order, rated, strict=True)}
