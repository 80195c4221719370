"""The published formulas, against the figures and the arithmetic that were published."""

import pytest

from gauntlet.rating import Rating
from murmur.lab.arena.policies import Published, _Score, _sync_score
from murmur.lab.arena.stage import named
from murmur.protocol.types import PeerId, Uid

PEERS = [PeerId(named("peer", index)) for index in range(4)]


def test_four_fresh_players_get_the_published_ratings() -> None:
    policy = Published(scores={peer: _Score() for peer in PEERS})
    policy._rate({peer: -float(place) for place, peer in enumerate(PEERS)})
    assert [policy.scores[peer].rating.mu for peer in PEERS] == pytest.approx(
        [27.3931, 26.3295, 24.7341, 21.5433], abs=1e-4
    )
    ordinals = [policy.scores[peer].rating.mu - 3 * policy.scores[peer].rating.sigma for peer in PEERS]
    assert ordinals == pytest.approx([2.5232, 1.6168, 0.1995, -2.9912], abs=1e-4)


def test_the_sync_score_falls_with_the_rounds_behind() -> None:
    digests = [named("theta", round) for round in range(5)]
    assert [_sync_score(digest, digests) for digest in digests[::-1]] == pytest.approx(
        [1.0, (2 / 3) ** 2.5, (1 / 3) ** 2.5, 0.0, 0.0]
    )
    assert _sync_score(named("elsewhere"), digests) == 0.0


def test_pay_is_the_square_of_positive_scores() -> None:
    scores = dict(zip(PEERS, (_Score(Rating(), 0, final) for final in (3.0, 1.0, 0.0, -2.0)), strict=True))
    uids = {peer: Uid(place) for place, peer in enumerate(PEERS)}
    found = Published(scores=scores).pay(type("Round", (), {"uids": uids})(), None)
    assert found == pytest.approx({Uid(0): 0.9, Uid(1): 0.1})
