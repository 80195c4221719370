"""A round is passed over when our own side may be the cause, and no crowd of hotkeys can have that for nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.book import RoundOutcome, ScoreBook, eligible, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.observed import BLIND, PATIENCE_ROUNDS, Looked, Unobserved, is_unreadable, pass_over
from murmur.protocol.types import LossScore, PeerId, Reason, Rejection
from tests.gauntlet.world import CLOCK, make_spec, peer_id

SPEC = make_spec().gauntlet
GOOD = [peer_id(number) for number in range(20)]
CROWD = [peer_id(1000 + number) for number in range(200)]


def played(round: int, book: ScoreBook, passed: list[PeerId], silent: list[PeerId] = []) -> ScoreBook:  # noqa: B006
    """A round of honest work by `passed`; `silent` have committed and show nothing."""
    rejected = {peer: Rejection(peer, Reason.MISSING, "") for peer in silent}
    evaluations = {p: Evaluation(LossScore(0.06, 0.05 + 0.001 * i), 0.2 + 0.001 * i, 3) for i, p in enumerate(passed)}
    checked = Checked(dict.fromkeys(passed), rejected, frozenset([*passed, *silent]), {}, {})  # type: ignore[arg-type]
    return fold(book, RoundOutcome(round, checked, evaluations, frozenset(passed)), SPEC)


def rated(rounds: int = 4) -> ScoreBook:
    book = ScoreBook()
    for round in range(rounds):
        book = played(round, book, GOOD, CROWD)
    assert all(eligible(book.peers[peer], SPEC) for peer in GOOD)
    return book


BOOK = rated()


def unreadable(book: ScoreBook, read: list[PeerId], unread: list[PeerId], reason: Reason = Reason.MISSING) -> bool:
    outcomes: dict[PeerId, Reason | None] = dict.fromkeys(read) | dict.fromkeys(unread, reason)
    return is_unreadable(book, {*read, *unread}, outcomes, SPEC)


@pytest.mark.parametrize("reason", BLIND)
def test_a_round_in_which_most_of_good_standing_cannot_be_read_is_not_observed(reason: Reason) -> None:
    assert unreadable(BOOK, [], GOOD, reason)
    assert unreadable(BOOK, GOOD[:9], GOOD[9:], reason)
    assert not unreadable(BOOK, GOOD[:10], GOOD[10:], reason)


def test_what_was_read_and_is_bad_was_observed() -> None:
    assert not any(unreadable(BOOK, [], GOOD, reason) for reason in {*Reason} - {*BLIND})


def test_peers_that_were_never_looked_at_were_not_observed() -> None:
    assert is_unreadable(BOOK, GOOD, dict.fromkeys(GOOD[:9]), SPEC)
    assert not is_unreadable(BOOK, GOOD, dict.fromkeys(GOOD[:10]), SPEC)


@given(st.integers(0, 200), st.integers(0, 20), st.booleans())
def test_a_silent_crowd_changes_nothing_however_large(crowd: int, read: int, opening: bool) -> None:
    """In the opening rounds one honest peer that is readable is enough."""
    book = ScoreBook() if opening else BOOK
    without = unreadable(book, GOOD[:read], GOOD[read:])
    assert unreadable(book, GOOD[:read], [*GOOD[read:], *CROWD[:crowd]]) == without
    if opening:
        assert without == (read == 0)


def test_nobody_committed_means_nobody_worked() -> None:
    assert not unreadable(BOOK, [], [])


def test_hotkeys_of_good_standing_cannot_be_silent_for_ever() -> None:
    """Twelve of twenty stop working, and only promise: the rest is read, and soon counts."""
    book, passed_over = BOOK, []
    for round in range(4, 104):
        if unreadable(book, GOOD[12:], GOOD[:12]):
            before, book = book, pass_over(book, Unobserved.UNREADABLE)
            assert replace(book, unobserved=before.unobserved) == before
            passed_over.append(round)
        else:
            book = played(round, book, GOOD[12:], GOOD[:12])
    assert passed_over[:PATIENCE_ROUNDS] == list(range(4, 4 + PATIENCE_ROUNDS))
    assert len(passed_over) <= PATIENCE_ROUNDS + 92 / 8
    # What they once earned is gone: penalties have eaten it.
    assert all(book.peers[peer].penalty == 1.0 for peer in GOOD[:12])


@given(st.integers(-3, 20), st.integers(-3, 40))
def test_late_is_who_begins_in_the_second_half_of_the_reveal_window_or_ends_a_window_after_it(
    began: int, ended: int
) -> None:
    opened, closed = CLOCK.commit_deadline(7), CLOCK.reveal_deadline(7)
    half, window = (closed - opened) / 2, closed - opened
    late = Looked(opened + began, closed + ended).is_late(CLOCK, 7)
    assert late == (began > half or ended > window)


def test_coming_late_costs_no_patience() -> None:
    assert pass_over(BOOK, Unobserved.LATE) == BOOK
