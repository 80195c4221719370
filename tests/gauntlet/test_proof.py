"""The gap by ranks, its floor, and what cancels in it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.average import NOTHING, Average, error
from gauntlet.proof import floor, gap, leads, score_floor, usual, usual_variance
from murmur.protocol.spec import GauntletSpec

SPEC = GauntletSpec()
UNIT = Average(0.15, 0.9)
FALLS = st.lists(st.floats(-1, 1), min_size=1, max_size=12)


@given(FALLS, FALLS)
def test_the_gap_is_the_share_of_pairs_that_the_assigned_side_wins(assigned, unassigned):
    wins = sum((a > u) + 0.5 * (a == u) for a in assigned for u in unassigned)
    assert gap(assigned, unassigned) == pytest.approx(wins / (len(assigned) * len(unassigned)) - 0.5)
    assert gap(unassigned, assigned) == pytest.approx(-gap(assigned, unassigned))


def test_the_gap_reaches_from_never_ahead_to_always_ahead():
    assert gap([2.0, 3.0], [0.0, 1.0]) == 0.5
    assert gap([0.0, 1.0], [2.0, 3.0]) == -0.5
    assert gap([1.0, 1.0], [1.0]) == 0.0


def test_how_hard_a_sequence_is_and_how_good_a_peer_is_cancel():
    random = Random(5)
    own, shared = ([random.gauss(m, 1.0) for _ in range(40)] for m in (1.5, 0.0))
    others = [[random.gauss(0.0, 1.0) for _ in range(40)] for _ in range(3)]
    on_shared = [[random.gauss(0.0, 1.0) for _ in range(40)] for _ in range(3)]
    before = gap(leads(own, others), leads(shared, on_shared))
    hard = [random.choice([0.0, 8.0, -3.0]) for _ in range(40)]

    def harder(falls):
        return [fall + extra for fall, extra in zip(falls, hard, strict=True)]

    # Everybody's fall on a sequence moves alike, and the peer is better everywhere.
    better = [fall + 4.0 for fall in harder(own)]
    same = [fall + 4.0 for fall in harder(shared)]
    after = gap(leads(better, [harder(o) for o in others]), leads(same, [harder(o) for o in on_shared]))
    assert after == pytest.approx(before, abs=0.005)
    assert before > 0.1


def test_one_sequence_moves_the_gap_by_its_share_however_much_it_holds():
    flat = [0.0] * 63
    assert gap([*flat, 1e9], [0.0] * 64) == pytest.approx(0.5 / 64)


def test_the_floor_rises_with_evaluations_to_its_share_of_the_honest_gap():
    floors = [floor(UNIT, count, SPEC) for count in range(1, 200)]
    assert floors == sorted(floors)
    spread = ((1 - SPEC.proof_decay) / (1 + SPEC.proof_decay)) ** 0.5
    assert floors[0] == pytest.approx(SPEC.proof_floor * 0.15 - SPEC.proof_allowance * (1 - spread))
    assert floors[-1] == pytest.approx(SPEC.proof_floor * 0.15)


def test_without_an_honest_gap_the_floor_lies_at_or_below_nothing():
    for unit in (NOTHING, Average(-0.05, 0.9)):
        assert floor(unit, 1, SPEC) < floor(unit, 1000, SPEC) <= 0.0


def test_the_honest_gap_comes_from_peers_in_good_standing_where_there_are_enough():
    assert usual([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, -9.0, -9.0, -9.0], NOTHING) == 2.0
    assert usual([1.0], [1.0, 5.0, 6.0], NOTHING) == 5.0
    assert usual([], [4.0], Average(2.0, 0.5)) == 2.0
    assert usual([], [4.0, 6.0], NOTHING) == 5.0


def test_two_peers_lower_what_is_usual_and_never_raise_it():
    assert usual([], [1.0, 2.0], Average(4.0, 0.5)) == 1.5
    assert usual([], [6.0, 8.0], Average(4.0, 0.5)) == 4.0
    assert usual([], [], Average(4.0, 0.5)) == 4.0


@given(st.integers(1, 40), st.floats(0.0, 0.99))
def test_the_error_of_an_average_is_that_of_its_weights(count, decay):
    averages = [NOTHING] * count
    for place in range(count):
        # One value of 1 at a place of its own shows the weight of that place.
        averages = [average.push(float(place == own), decay) for own, average in enumerate(averages)]
    assert error(count, decay) == pytest.approx(sum(average.value**2 for average in averages) ** 0.5)


def test_the_honest_variance_is_that_of_a_normal_distribution_and_a_third_of_outliers_hardly_moves_it():
    random = Random(3)
    honest = [random.gauss(0.1, 0.02) for _ in range(2000)]
    assert usual_variance(honest, NOTHING) ** 0.5 == pytest.approx(0.02, rel=0.1)
    assert usual_variance([*honest, *[-5.0] * 1000], NOTHING) ** 0.5 < 0.06
    assert usual_variance([1.0, 2.0], Average(0.3, 0.5)) == 0.3
    assert usual_variance([], NOTHING) == 0.0


def test_the_score_floor_is_a_share_where_scores_agree_and_errors_below_where_they_do_not():
    usual_score, agree, differ = Average(0.1, 0.9), Average(0.01**2, 0.9), Average(0.1**2, 0.9)
    assert score_floor(usual_score, agree, 1, SPEC) == pytest.approx(SPEC.score_floor * 0.1)
    assert score_floor(usual_score, differ, 1, SPEC) == pytest.approx(0.1 - SPEC.score_allowance * 0.1)
    floors = [score_floor(usual_score, differ, count, SPEC) for count in range(1, 40)]
    assert floors == sorted(floors)


def test_honest_scores_that_differ_more_than_they_are_worth_are_hardly_ever_below_the_floor():
    """Late in a run: one score's deviation is 1.3 of the honest mean."""
    random, low = Random(8), 0
    for _ in range(1000):
        scores = NOTHING
        for count in range(1, 9):
            scores = scores.push(random.gauss(1.0, 1.3), SPEC.score_decay)
            low += scores.value <= score_floor(Average(1.0, 0.9), Average(1.3**2, 0.9), count, SPEC)
    assert low <= 0.025 * 8000
