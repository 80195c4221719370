"""LossScores against a model that is a plain function, and what the bounded update is."""

from itertools import pairwise
from math import inf, isnan, nan

import pytest

from gauntlet.evaluation import Samples
from gauntlet.loss import bounded, evaluate
from gauntlet.proof import NO_PROOF
from murmur.protocol.types import Page
from sparseloco.outer import OuterState, bounds
from tests.gauntlet.world import SPEC, make_update, peer_id, submission

PEERS = [peer_id(i) for i in range(3)]
PASSED = {peer: submission(i, make_update(i, scale=1.0 + i)) for i, peer in enumerate(PEERS)}
OWN = {peer: (Page(100 * i, 8),) for i, peer in enumerate(PEERS)}
SHARED = (Page(900, 8),)
SAMPLES = Samples(OWN, SHARED)
REFERENCES = {peer: tuple(other for other in PEERS if other != peer) for peer in PEERS}
FACTORS = bounded(PASSED, OuterState.initial(SPEC.layout))


class TableLoss:
    """Theta's losses are 5 and 6; each update takes 0.2 off everywhere and 0.1 more off its owner's pages."""

    def __init__(self, **broken):
        self.calls, self.broken = [], broken

    def __call__(self, update, factors, pages):
        owner = next((p for p in PEERS if PASSED[p].update is update), None)
        self.calls.append((owner, pages))
        if owner is None:
            return [5.0, self.broken.get("theta", 6.0)]
        assert factors == FACTORS[owner]
        if owner == PEERS[0] and "first" in self.broken:
            return [4.9, self.broken["first"]]
        fall = 0.2 + (0.1 if pages == OWN[owner] else 0.0)
        return [5.0 - fall, 6.0 - fall]


def test_scores_and_gaps_are_those_of_the_table():
    found = evaluate(TableLoss(), PASSED, FACTORS, SAMPLES, REFERENCES)
    assert set(found) == set(PEERS)
    for evaluation in found.values():
        assert evaluation.score.assigned == pytest.approx(0.3)
        assert evaluation.score.unassigned == pytest.approx(0.2)
        assert evaluation.gap == 0.5
        assert evaluation.references == 2


def test_nothing_is_evaluated_twice_and_one_updates_calls_come_together():
    loss = TableLoss()
    evaluate(loss, PASSED, FACTORS, SAMPLES, REFERENCES)
    assert len(loss.calls) == len(set(loss.calls))
    owners = [owner for owner, _ in loss.calls]
    switches = sum(a != b for a, b in pairwise(owners))
    assert switches == len(PEERS)


@pytest.mark.parametrize("value", [nan, inf])
def test_a_peer_whose_update_breaks_the_loss_gets_no_number_and_spoils_nobodys(value):
    found = evaluate(TableLoss(first=value), PASSED, FACTORS, SAMPLES, REFERENCES)
    assert found[PEERS[0]].gap == NO_PROOF
    assert isnan(found[PEERS[0]].score.assigned)
    assert isnan(found[PEERS[0]].score.unassigned)
    assert found[PEERS[1]].gap == 0.5
    assert found[PEERS[1]].references == 1


def test_a_peer_whose_references_all_break_the_loss_is_not_evaluated():
    references = {PEERS[0]: PEERS[1:], PEERS[1]: (PEERS[0],)}
    assert set(evaluate(TableLoss(first=nan), PASSED, FACTORS, SAMPLES, references)) == {PEERS[0]}


def test_our_own_broken_theta_is_an_error_and_nobodys_score():
    with pytest.raises(ValueError, match="theta"):
        evaluate(TableLoss(theta=nan), PASSED, FACTORS, SAMPLES, REFERENCES)


def test_a_peer_without_references_is_not_evaluated():
    assert evaluate(TableLoss(), PASSED, FACTORS, SAMPLES, {PEERS[0]: ()}) == {}
    assert set(evaluate(TableLoss(), PASSED, FACTORS, SAMPLES, {PEERS[0]: (PEERS[1],)})) == {PEERS[0]}


def test_a_large_update_is_scaled_down_to_the_round_s_median():
    state = OuterState.initial(SPEC.layout)
    order = sorted(PEERS)
    expected, _ = bounds([PASSED[peer].update.norms for peer in order], state)
    assert [FACTORS[peer] for peer in order] == list(expected)
    assert max(FACTORS[PEERS[2]]) < 1.0
    assert min(FACTORS[PEERS[0]]) == 1.0
