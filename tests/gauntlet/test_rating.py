"""OpenSkill's golden numbers, and that ties, order of input and broken scores do no harm."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.rating import FRESH, MU, Rating, bands, rate
from tests.gauntlet.world import peer_id

FOUR = [peer_id(i) for i in range(4)]


def fresh(peers):
    return dict.fromkeys(peers, FRESH)


def test_four_fresh_players_in_clear_order_get_the_published_ratings():
    new = rate(fresh(FOUR), dict(zip(FOUR, [0.4, 0.3, 0.2, 0.1], strict=True)), (), band=0.0)
    assert [new[peer].mu for peer in FOUR] == pytest.approx([27.3931, 26.3295, 24.7341, 21.5433], abs=1e-4)
    ordinals = [new[peer].mu - 3 * new[peer].sigma for peer in FOUR]
    assert ordinals == pytest.approx([2.5232, 1.6168, 0.1995, -2.9912], abs=1e-4)


def test_fresh_players_of_one_band_come_out_equal_and_above_the_next():
    """openskill itself gives the third of the ranks 1, 1, 3, 4 as much as the first two."""
    new = rate(fresh(FOUR), dict(zip(FOUR, [0.4, 0.4, 0.2, 0.1], strict=True)), (), band=0.0)
    first, second, third, fourth = (new[peer].mu for peer in FOUR)
    assert first == pytest.approx(second, abs=1e-12)
    assert second > third + 1
    assert third > fourth + 1


def test_equal_scores_draw_unequal_ratings_together():
    one, two = FOUR[:2]
    new = rate({one: Rating(30.0, 5.0), two: Rating(20.0, 5.0)}, {one: 0.1, two: 0.1}, (), band=0.5)
    assert 20 < new[two].mu < new[one].mu < 30


def test_a_band_reaches_as_far_as_the_measured_spread_says():
    scores = dict(zip(FOUR, [0.40, 0.39, 0.20, 0.19], strict=True))
    assert bands(scores, 0.0) == [[peer] for peer in FOUR]
    assert bands(scores, 0.5) == [sorted(FOUR[:2]), sorted(FOUR[2:])]
    assert bands(scores, 100.0) == [sorted(FOUR)]


def test_a_score_that_is_no_number_and_a_failed_peer_share_the_last_place():
    good, other, broken, failed = FOUR
    new = rate(fresh(FOUR), {good: 0.2, other: 0.1, broken: nan}, [failed], band=0.0)
    assert new[broken].mu == new[failed].mu < new[other].mu < new[good].mu
    assert new[failed].mu < MU


def test_fewer_than_two_players_or_nobody_with_a_score_change_nothing():
    one, two = FOUR[:2]
    assert rate(fresh([one]), {one: 0.3}, (), band=0.5) == {}
    assert rate({}, {}, (), band=0.5) == {}
    assert rate(fresh([one, two]), {}, [one, two], band=0.5) == {}
    assert rate(fresh([one, two]), {one: inf, two: nan}, (), band=0.5) == {}


def test_failing_never_raises_a_rating():
    """Even for a peer whose rating is so low that nobody expects more of it than the last place."""
    good, low = FOUR[:2]
    new = rate({good: Rating(40.0, 1.0), low: Rating(-10.0, 8.0)}, {good: 0.2}, [low], band=0.5)
    assert new[low].mu <= -10.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, nan]), min_size=2, max_size=7), st.randoms(use_true_random=False))
def test_ratings_do_not_depend_on_the_order_of_input(scores, random):
    players = [peer_id(i) for i in range(len(scores))]
    table = dict(zip(players, scores, strict=True))
    shuffled = list(table.items())
    random.shuffle(shuffled)
    expected = rate(fresh(players), table, (), band=0.5)
    assert rate(fresh(reversed(players)), dict(shuffled), (), band=0.5) == expected
