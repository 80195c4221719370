"""Verified work: whose steps are repeated, what is as shown, and what that earns."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.remembered import NO_TWINS, Twins
from gauntlet.repetition import (
    LARGEST_GRADIENT,
    LARGEST_MOVE,
    NOTHING_ALIKE,
    TYPICAL_GRADIENT,
    TYPICAL_MOVE,
    Repetition,
    work_after,
)
from gauntlet.selection import Ranking
from gauntlet.verification import compare, draw
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Digest, PeerId
from sparseloco.trace import Trace

RUN, BLOCK = Digest(bytes(32)), Digest(bytes(range(32)))
ME = PeerId(bytes([99]) * 32)
PEERS = [PeerId(bytes([number]) * 32) for number in range(1, 9)]


def found(moves: list[float], gradients: list[float] | None = None, steps: int = 4, declared: int = 4) -> Repetition:
    return Repetition(3, steps, declared, tuple(moves), tuple(gradients or [0.0] * len(moves)))


# --- the draw ------------------------------------------------------------------------------------------------------


def drawn(
    round: int,
    repeated: dict[PeerId, int] | None = None,
    count: int = 1,
    first_seen: int = 0,
    peers: Sequence[PeerId] = PEERS,
    twins: Twins = NO_TWINS,
    validator: PeerId = ME,
) -> list[PeerId]:
    book = ScoreBook(round, {p: PeerRecord(first_seen, repeated=n) for p, n in (repeated or {}).items()})
    ranking = Ranking(tuple(peers), tuple(peers[:4]), tuple(peers[4:]), {})
    return draw(RUN, BLOCK, round, validator, ranking, twins, book, GauntletSpec(verifications=count))


def test_each_is_drawn_as_often() -> None:
    times = Counter(peer for round in range(4000) for peer in drawn(round))
    assert max(abs(times[peer] - 500) for peer in PEERS) < 5 * 500**0.5


@pytest.mark.parametrize(("times", "weight"), [(1, 64), (2, 16), (3, 4), (4, 1), (100, 1)])
def test_who_was_seldom_repeated_since_the_opening_is_four_times_as_likely_for_each_that_lacks(
    times: int, weight: int
) -> None:
    repeated = dict.fromkeys(PEERS, 4) | {PEERS[0]: times}
    found = Counter(peer for round in range(4000) for peer in drawn(round, repeated))
    assert found[PEERS[0]] == pytest.approx(4000 * weight / (7 + weight), rel=0.1)


def test_who_comes_later_is_drawn_no_sooner_than_others() -> None:
    """Else who worked as a newcomer alone would be paid for long before it is drawn again."""
    repeated = dict.fromkeys(PEERS, 0) | {PEERS[0]: 4}
    opening = GauntletSpec().opening_rounds
    found = Counter(peer for round in range(4000) for peer in drawn(round, repeated, first_seen=opening))
    assert found[PEERS[0]] == pytest.approx(500, rel=0.2)
    assert Counter(drawn(round, repeated, first_seen=opening - 1)[0] for round in range(400))[PEERS[0]] < 10


def test_a_twin_of_who_has_a_place_is_drawn_from_too_and_no_other_peer() -> None:
    """It counts as present, and is not in the order."""
    twin, other = PeerId(bytes([50]) * 32), PeerId(bytes([51]) * 32)
    twins = {twin: frozenset([PEERS[0]]), PEERS[0]: frozenset([twin]), other: frozenset([ME]), ME: frozenset([other])}
    assert {peer for round in range(400) for peer in drawn(round, twins=twins)} == {*PEERS, twin}


def test_several_are_different_ones_and_never_more_than_there_are() -> None:
    assert len(set(drawn(1, count=3))) == 3
    assert set(drawn(1, count=20)) == set(PEERS)
    assert drawn(1, count=2, peers=[]) == []


def test_it_follows_from_the_block_the_round_and_the_validator_alone() -> None:
    first = [drawn(round) for round in range(20)]
    assert [drawn(round, peers=PEERS[::-1]) for round in range(20)] == first
    assert [drawn(round, validator=PeerId(bytes([98]) * 32)) for round in range(20)] != first


# --- what is as shown ----------------------------------------------------------------------------------------------


def traced(seed: int, steps: int = 4) -> Trace:
    values = np.random.default_rng(seed).standard_normal((2, steps, 50)).astype(np.float32)
    return Trace(*values)


def test_what_is_equal_is_as_shown_and_another_work_is_far_from_it() -> None:
    own = traced(0)
    assert compare(3, 4, own, own) == found([0.0] * 4)
    other = compare(3, 4, traced(1), own)
    assert min(other.moves) > 1.0
    assert not other.passed


def test_fewer_steps_are_compared_as_far_as_they_are_declared_and_nothing_with_nothing() -> None:
    own = Trace(traced(0).gradients[:2], traced(0).moves[:2])
    assert compare(3, 4, own, own) == found([0.0, 0.0], declared=2)
    still = Trace(np.zeros((1, 5), np.float32), np.zeros((1, 5), np.float32))
    assert compare(3, 4, still, still).moves == (0.0,)
    broken = Trace(still.gradients, np.full_like(still.moves, np.nan))
    assert compare(3, 4, still, broken).moves == (NOTHING_ALIKE,), "whatever ours has come to, it passes nothing"
    moved = Trace(still.gradients, still.moves + 1)
    assert compare(3, 4, moved, still).moves == (NOTHING_ALIKE,)


@pytest.mark.parametrize(
    ("moves", "gradients", "passed"),
    [
        ([TYPICAL_MOVE] * 3 + [LARGEST_MOVE], None, True),
        ([TYPICAL_MOVE + 0.01] * 4, None, False),
        ([0.0, 0.0, 0.0, LARGEST_MOVE + 0.01], None, False),
        ([0.0] * 4, [TYPICAL_GRADIENT + 0.01] * 4, False),
        ([0.0] * 4, [0.0, 0.0, 0.0, LARGEST_GRADIENT + 0.01], False),
        ([0.0] * 4, [TYPICAL_GRADIENT] * 3 + [LARGEST_GRADIENT], True),
        ([], [], False),
    ],
)
def test_the_middle_and_the_largest_are_bounded_of_both(
    moves: list[float], gradients: list[float] | None, passed: bool
) -> None:
    assert found(moves, gradients).passed is passed


# --- what it earns -------------------------------------------------------------------------------------------------


def after(*repetitions: Repetition) -> float:
    value = 0.0
    for one in repetitions:
        value = work_after(value, one)
    return value


def test_work_grows_by_a_quarter_of_the_rest_falls_to_nothing_and_follows_what_is_declared() -> None:
    good, bad = found([0.0]), found([1.0])
    half, none = found([0.0], declared=2), found([], declared=0)
    assert [after(*[good] * times) for times in range(3)] == [0.0, 0.25, 0.4375]
    assert after(*[good] * 9, bad) == 0.0
    assert after(*[good] * 50, replace(bad, confirmed=False)) == pytest.approx(0.5), "it may be ours"
    assert after(*[half] * 50) == pytest.approx(0.5)
    assert after(*[good] * 50, none) == pytest.approx(0.75), "who declares nothing has not lied"


# --- real executions -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench() -> Iterator[object]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import bench_verified

    yield bench_verified
    sys.path.pop(0)


@pytest.mark.check
def test_honest_executions_are_within_half_of_the_limits_and_every_cheat_is_beyond_them(bench: object) -> None:
    """What this machine can vary: the split, threads, compiled or not, bf16, attention; and what can be skipped."""
    (played,) = bench.rounds([2], 20, 0)  # type: ignore[attr-defined]
    honest = [name for name in bench.HONEST if "apart" not in name]  # type: ignore[attr-defined]
    rows = list(bench.measure(played, honest, list(bench.CHEATS)))  # type: ignore[attr-defined]
    assert {row["what"] for row in rows if row["passed"]} == set(honest)
    for row in rows:
        if row["kind"] == "honest":
            assert row["moves"][0] <= TYPICAL_MOVE / 2, row
            assert row["moves"][1] <= LARGEST_MOVE / 2, row
            assert row["gradients"][0] <= TYPICAL_GRADIENT / 2, row
            assert row["gradients"][1] <= LARGEST_GRADIENT / 2, row
