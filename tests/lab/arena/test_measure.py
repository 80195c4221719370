"""Measures against stories small enough to count by hand."""

from math import inf

import pytest

from murmur.lab.arena.attack import Expected
from murmur.lab.arena.copies import CopycatLast
from murmur.lab.arena.game import RoundLog, Scenario, Story
from murmur.lab.arena.measure import honest_excluded, row
from murmur.lab.arena.shirkers import HalfWork, Noise
from murmur.protocol.types import PeerId, Reason, Standing

GOOD, BAD = PeerId(b"g" * 32), PeerId(b"b" * 32)


def log(paid: dict[PeerId, float], **changes) -> RoundLog:
    fields = {
        "players": {GOOD: "honest 0", BAD: "bad 0"},
        "sent": frozenset({GOOD, BAD}),
        "punctual": frozenset({GOOD, BAD}),
        "rejected": {},
        "standing": {},
        "contributing": frozenset(peer for peer, share in paid.items() if share),
        "evaluated": frozenset(),
        "paid": paid,
        "work": {"honest 0": 1.0, "bad 0": 0.5},
        "is_void": False,
        "loss": 3.0,
    }
    return RoundLog(**(fields | changes))


def story(kind: str, *logs: RoundLog) -> Story:
    return Story(Scenario(0, len(logs), 2), 4.0, {"bad 0": kind}, logs)


OUT, IN = log({GOOD: 1.0}), log({GOOD: 0.6, BAD: 0.4})


def test_out_for_good_counts_from_the_first_round_to_the_last_one_with_a_place_or_pay() -> None:
    found = row(Noise, "ours", [story("noise", OUT, IN, OUT, IN, *[OUT] * 8)])
    assert (found.ejection_median, found.ejection_p90, found.meets) == (4.0, 4.0, True)
    named = log({GOOD: 1.0}, contributing=frozenset({GOOD, BAD}))
    assert row(Noise, "ours", [story("noise", *[named] * 12, *[OUT] * 8)]).ejection_median == 12.0
    assert not row(Noise, "ours", [story("noise", *[named] * 12, *[OUT] * 8)]).meets


def test_who_is_named_near_the_end_is_not_out() -> None:
    assert row(Noise, "ours", [story("noise", IN, *[OUT] * 9, IN)]).ejection_median == inf
    assert row(Noise, "ours", [story("noise", *[OUT] * 9)]).ejection_median == 0.0


def test_pay_is_compared_with_an_honest_peers_and_with_the_work() -> None:
    found = row(HalfWork, "ours", [story("half-work", *[IN] * 4)])
    assert found.expected is Expected.PROPORTION
    assert (found.share, found.work, found.progress) == (pytest.approx(0.4 / 0.6), 0.5, 1.0)
    assert not found.meets
    third = log({GOOD: 0.75, BAD: 0.25})
    assert row(HalfWork, "ours", [story("half-work", *[third] * 4)]).meets


def test_rejected_at_once_means_every_submission() -> None:
    refused = log({GOOD: 1.0}, rejected={BAD: Reason.COPY})
    assert row(CopycatLast, "ours", [story(CopycatLast.kind, *[refused] * 6)]).meets
    found = row(CopycatLast, "ours", [story(CopycatLast.kind, *[refused] * 5, OUT)])
    assert (found.meets, found.rejected) == (False, pytest.approx(5 / 6))


def test_excluded_are_honest_peers_that_sent_in_time() -> None:
    wrong = log({}, rejected={GOOD: Reason.COPY, BAD: Reason.COPY})
    low = log({}, standing={GOOD: Standing.LOW_SCORE})
    late = log({}, punctual=frozenset({BAD}), rejected={GOOD: Reason.LATE})
    waiting = log({}, standing={GOOD: Standing.NOT_SELECTED})
    assert honest_excluded([story("noise", wrong, low, late, waiting, OUT)]) == pytest.approx(2 / 4)
