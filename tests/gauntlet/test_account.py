"""What a hotkey is told: as much as its numbers can carry, and no more."""

from dataclasses import replace

import pytest

from gauntlet.account import (
    ADVICE,
    AWAY,
    CONTRIBUTING,
    DOUBTED,
    NOT_JUDGED,
    SETTLED,
    UNPROVEN,
    WEAK,
    advice,
    gap_error,
    outcome,
    shortfalls,
    sureness,
)
from gauntlet.average import Average
from gauntlet.book import PRESENCE_DECAY, PeerRecord, eligible
from gauntlet.report import ReportRow
from murmur.protocol.types import Reason, Standing, Uid
from tests.gauntlet.world import SPEC

RULES = SPEC.gauntlet
CONTRIBUTES = ReportRow(Uid(1), weight=0.788, contributing=True)


def record(evaluations: int, gap: float, score: float = 0.1) -> PeerRecord:
    """Of a hotkey evaluated so often, among honest ones with a gap of 0.2 and a LossScore of 0.1."""
    known = Average(0.2, 1.0), Average(0.1, 1.0)
    averages = {"gaps": Average(gap, 1.0), "units": known[0], "scores": Average(score, 1.0), "usual_scores": known[1]}
    return PeerRecord(0, evaluations=evaluations, last_evaluated=1, **averages)


def test_every_outcome_has_an_advice() -> None:
    assert ADVICE.keys() == {*Reason, *Standing}
    for reason in Reason:
        assert advice(ReportRow(Uid(1), rejected=reason), None, RULES) == ADVICE[reason]
    assert advice(ReportRow(Uid(1)), None, RULES) == NOT_JUDGED
    assert outcome(ReportRow(Uid(1)), None, RULES) == "not judged"


@pytest.mark.parametrize(
    ("known", "told", "sure"),
    [
        (None, UNPROVEN, "not evaluated yet"),
        (replace(record(0, 0.2), last_evaluated=None), UNPROVEN, "not evaluated yet"),
        (record(1, 0.2), "wait and see: 1 of about 10", "learning, 1 evaluation"),
        (record(SETTLED - 1, 0.2), "wait and see: 9 of about 10", "learning, 9 evaluations"),
        (record(40, 0.2), CONTRIBUTING, "settled, 40 evaluations"),
        (record(40, 0.65 * 0.2), DOUBTED, "in doubt after 40 evaluations"),
        (record(400, 0.16), WEAK, "settled, 400 evaluations"),
    ],
)
def test_a_contributor_is_told_to_go_on_only_when_that_is_known(known: PeerRecord | None, told: str, sure: str) -> None:
    rules = RULES.model_copy(update={"proof_floor": 0.65, "proof_allowance": 0.02, "proof_decay": 0.93})
    assert advice(CONTRIBUTES, known, rules).startswith(told)
    assert sureness(known, rules) == sure
    assert outcome(CONTRIBUTES, known, rules) == f"contributing; pay 78.80 %; {sure}"


def test_what_is_lacking_is_told_with_the_number_that_is_needed() -> None:
    rules = RULES.model_copy(
        update={"proof_floor": 0.65, "proof_allowance": 0.15, "proof_decay": 0.93, "score_floor": 0.25}
    )
    lazy = record(40, 0.02, score=0.01)
    assert not eligible(lazy, rules)
    score, gap = shortfalls(lazy, rules)
    assert score == "its LossScore on unassigned data averages 0.0100, needed is over 0.0250"
    assert gap.startswith(f"its gap averages 0.020 ± {gap_error(lazy, rules):.3f} (its proof of computation), needed")
    assert not list(shortfalls(record(40, 0.2), rules))


def test_a_gap_errs_less_the_more_it_was_measured() -> None:
    errors = [gap_error(record(evaluations, 0.2), RULES) for evaluations in (1, 3, 10, 100)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(RULES.proof_allowance / 1.5)


def test_who_missed_one_round_is_told_nothing_and_who_missed_several_that_pay_falls_with_them() -> None:
    def back(presence: float) -> float:
        return PRESENCE_DECAY * PRESENCE_DECAY * presence + 1 - PRESENCE_DECAY

    once, often = (replace(record(40, 0.2), presence=share) for share in (back(1.0), back(back(1.0))))
    assert advice(CONTRIBUTES, once, RULES) == CONTRIBUTING
    assert advice(CONTRIBUTES, often, RULES) == AWAY
