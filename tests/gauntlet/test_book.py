"""The fold: pure, replayable, and fair over streams of scores like those measured on real training."""

import json
from dataclasses import replace
from math import nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.average import Average
from gauntlet.book import (
    PRESENCE_DECAY,
    PeerRecord,
    RoundOutcome,
    ScoreBook,
    eligible,
    fold,
    from_json,
    to_json,
    trusted,
)
from gauntlet.evaluation import Evaluation
from gauntlet.proof import LARGEST_PROOF, NO_PROOF
from gauntlet.rating import Rating
from gauntlet.remembered import Remembered
from gauntlet.selection import peer_score, standing
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import canonical_json
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import LossScore, Reason, Rejection
from tests.gauntlet.world import COMMIT_HASH, checked, evaluation, make_update, peer_id

SPEC = GauntletSpec()

STREAMS = {
    # (mean, deviation) of the gap in units of the honest gap, and of the score in nats, as the local network's model
    # shows them with 64 sequences of each kind (benchmarks/results/proof-power_*.md).
    "honest": ((1.0, 0.60), (0.175, 0.05)),
    "lazy": ((-0.10, 0.55), (0.167, 0.05)),
    "noise": ((0.05, 0.60), (-0.010, 0.02)),
}


def play(kinds, rounds, seed, spec=SPEC, unit=0.15, first_unit=None):
    """The contributing sets, by place in `kinds`, of a run in which everybody is evaluated every round. unit: the
    honest gap, and `first_unit` that of the first round."""
    random, book, sets = Random(seed), ScoreBook(), []
    peers = [peer_id(i) for i in range(len(kinds))]
    for round in range(rounds):
        chosen = standing(book, peers, spec, round, COMMIT_HASH).contributing
        sets.append({peers.index(peer) for peer in chosen})
        scores = {}
        for peer, kind in zip(peers, kinds, strict=True):
            of_gap, of_score = STREAMS[kind]
            now = first_unit if first_unit and not round else unit
            scores[peer] = evaluation(random.gauss(*of_score), now * random.gauss(*of_gap))
        book = fold(book, RoundOutcome(round, checked(peers), scores, frozenset(chosen)), spec)
    return sets


DEMO = ["honest"] * 4 + ["noise"]
WITH_LAZY = ["honest"] * 4 + ["noise", "lazy"]


def test_noise_never_contributes_after_round_four_and_honest_peers_nearly_always_do():
    runs = [play(DEMO, 12, seed) for seed in range(40)]
    assert all(4 not in chosen for sets in runs for chosen in sets[5:])
    left_out = sum(place not in chosen for sets in runs for chosen in sets[4:] for place in range(4))
    assert left_out <= 0.01 * 40 * 8 * 4


def test_a_peer_that_trains_on_other_pages_is_out_within_ten_evaluations():
    runs = [play(WITH_LAZY, 14, seed) for seed in range(40)]
    still_in = sum(5 in chosen for sets in runs for chosen in sets[10:])
    assert still_in <= 0.1 * 40 * 4
    left_out = sum(place not in chosen for sets in runs for chosen in sets[10:] for place in range(4))
    assert left_out <= 0.02 * 40 * 4 * 4


def test_two_honest_peers_whose_gap_falls_after_the_first_round_do_not_exclude_each_other_for_good():
    runs = [play(["honest"] * 2, 30, seed, unit=0.1, first_unit=0.35) for seed in range(40)]
    assert sum(not chosen for sets in runs for chosen in sets) == 0
    left_out = sum(place not in chosen for sets in runs for chosen in sets for place in range(2))
    assert left_out <= 0.05 * 40 * 30 * 2


def test_beside_one_honest_peer_one_that_shows_no_work_is_out_within_ten_evaluations():
    runs = [play(["honest", "noise"], 30, seed) for seed in range(40)]
    assert sum(0 not in chosen for sets in runs for chosen in sets) <= 0.02 * 40 * 30
    assert sum(1 in chosen for sets in runs for chosen in sets[10:]) <= 0.1 * 40 * 20


def test_no_proof_exceeds_the_largest_when_the_honest_gap_has_just_passed_zero():
    # Two opening rounds in which the honest gap is noise below zero and one peer shows a large one.
    peers = [peer_id(i) for i in range(5)]
    book = ScoreBook()
    for round, (honest, loud) in enumerate([(-0.010, 0.3), (-0.008, 0.3), (0.009, 0.009), (0.012, 0.012)]):
        scores = {peer: evaluation(0.1, loud if peer == peers[0] else honest) for peer in peers}
        book = fold(book, RoundOutcome(round, checked(peers), scores), SPEC)
    record = book.peers[peers[0]]
    assert record.units.value > 0
    assert record.proof == LARGEST_PROOF


def test_a_peer_that_turns_lazy_goes_and_comes_back_after_honest_work():
    peers = [peer_id(i) for i in range(4)]
    book = ScoreBook()

    def after(book, rounds, last_gap):
        for _ in range(rounds):
            scores = {peer: evaluation(0.2, 0.15) for peer in peers[:3]} | {peers[3]: evaluation(0.2, last_gap)}
            book = fold(book, RoundOutcome(book.round + 1, checked(peers), scores), SPEC)
        return book

    book = after(book, 10, 0.15)
    assert eligible(book.peers[peers[3]], SPEC)
    book = after(book, 10, 0.0)
    assert not eligible(book.peers[peers[3]], SPEC)
    book = after(book, 10, 0.15)
    assert eligible(book.peers[peers[3]], SPEC)


def with_scores(book, scores, gap=0.15):
    """The book after a round in which everybody's gap is honest, and scores are these."""
    found = {peer: evaluation(score, gap) for peer, score in scores.items()}
    return fold(book, RoundOutcome(book.round + 1, checked(scores), found), SPEC)


def test_what_a_score_does_not_show_the_proof_has_to():
    """Honest scores of this round differ by more than their mean."""
    record = PeerRecord(
        0,
        gaps=Average(0.2, 0.9),
        units=Average(0.2, 0.9),
        scores=Average(-0.01, 0.9),
        usual_scores=Average(0.05, 0.9),
        score_variances=Average(0.06**2, 0.9),
        evaluations=8,
    )
    assert eligible(record, SPEC)
    assert not eligible(replace(record, evaluations=2), SPEC)
    assert not eligible(replace(record, gaps=Average(0.6 * 0.2, 0.9)), SPEC)
    assert not eligible(replace(record, score_variances=Average(0.01**2, 0.9)), SPEC)
    assert not eligible(replace(record, scores=Average(-0.05, 0.9)), SPEC)
    # Without an honest gap there is nothing to make up for a score with.
    assert not eligible(replace(record, units=Average(-0.1, 0.9)), SPEC)


def outcomes(seed, rounds=4):
    random = Random(seed)
    peers = [peer_id(i) for i in range(5)]
    for round in range(rounds):
        passed, failed = peers[:4], Rejection(peers[4], random.choice([Reason.UNREVEALED, Reason.COPY]), "test")
        result = checked(passed, [failed])
        update = make_update(round)
        result = replace(result, remember={Remembered(round, peers[0], update.digest): update.records})
        scores = {peer: evaluation(random.gauss(0.2, 0.1), random.gauss(0.02, 0.01)) for peer in passed}
        yield RoundOutcome(round, result, scores, frozenset(passed[: round % 3]))


def replayed(seed):
    book = ScoreBook()
    for outcome in outcomes(seed):
        book = fold(book, outcome, SPEC)
    return book


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_same_outcomes_give_the_same_bytes_and_json_gives_the_same_book(seed):
    book = replayed(seed)
    assert to_json(book) == to_json(replayed(seed))
    assert from_json(to_json(book)) == book
    # Going on from the saved book is the same as never having stopped.
    following = next(iter(outcomes(seed + 1, 1)))
    following = replace(following, round=book.round + 1)
    assert fold(from_json(to_json(book)), following, SPEC) == fold(book, following, SPEC)


def test_the_order_of_peers_in_an_outcome_does_not_matter():
    book, turned = ScoreBook(), ScoreBook()
    for outcome in outcomes(3):
        book = fold(book, outcome, SPEC)
        backwards = replace(
            outcome,
            evaluations=dict(reversed(outcome.evaluations.items())),
            checked=replace(outcome.checked, passed=dict(reversed(outcome.checked.passed.items()))),
        )
        turned = fold(turned, backwards, SPEC)
    assert to_json(turned) == to_json(book)


def test_a_round_is_never_folded_twice():
    book = replayed(1)
    with pytest.raises(ValueError, match="cannot be folded"):
        fold(book, RoundOutcome(book.round, checked([]), {}), SPEC)


def test_payloads_are_remembered_as_long_as_they_are_compared():
    book = ScoreBook()
    for number, outcome in enumerate(outcomes(2, 9)):
        strangers = {Remembered(number, peer_id(9), make_update(100 + number).digest): b""}
        kept = replace(outcome.checked, remember={**outcome.checked.remember, **strangers})
        book = fold(book, replace(outcome, checked=kept), SPEC)
    assert SPEC.copy_rounds == 2
    for peer in (peer_id(0), peer_id(9)):
        assert [past.round for past in book.remembered if past.peer == peer] == [7, 8]


def test_the_trusted_are_those_of_the_peers_that_the_book_finds_eligible():
    peers = [peer_id(number) for number in range(5)]
    book = with_scores(ScoreBook(), dict(zip(peers, (0.1, 0.1, 0.1, 0.1, -0.3), strict=True)))
    asked = [peers[3], peers[1], peers[0], peers[4], peer_id(9)]
    assert trusted(book, asked, SPEC) == sorted([peers[0], peers[1], peers[3]])


def test_of_twins_those_whose_own_pages_do_not_show_the_work_have_copied():
    """A rival with equal compute sends its victim's payload, bit for bit: both are evaluated, each on its own pages."""
    book = replayed(2)
    victim, rival, others = peer_id(0), peer_id(1), [peer_id(number) for number in range(2, 6)]
    twins = {victim: frozenset([rival]), rival: frozenset([victim])}
    gaps = dict.fromkeys(others, 0.2) | {victim: 0.17, rival: 0.02}
    found = {peer: evaluation(0.1, gap) for peer, gap in gaps.items()}
    passed = checked([victim, rival, *others], twins=twins)
    after = fold(book, RoundOutcome(book.round + 1, passed, found), SPEC)
    assert after.unit.value > 0
    before = {peer: record.faults for peer, record in book.peers.items()}
    added = {peer: after.peers[peer].faults - before.get(peer, 0) for peer in gaps}
    assert added == dict.fromkeys(gaps, 0) | {rival: 1}
    assert after.peers[rival].penalty > 0
    assert after.peers[rival].rating.mu < after.peers[victim].rating.mu
    # Nobody is judged whom nobody has looked at, and twins do not say what is usual.
    unseen = {peer: one for peer, one in found.items() if peer not in twins}
    quiet = fold(book, RoundOutcome(book.round + 1, passed, unseen), SPEC)
    assert {peer: quiet.peers[peer].faults - before.get(peer, 0) for peer in gaps} == dict.fromkeys(gaps, 0)
    assert quiet.unit == after.unit


def test_hotkeys_that_share_one_payload_of_nobodys_work_have_all_copied():
    book, others = replayed(2), [peer_id(number) for number in range(2, 6)]
    crowd = [peer_id(number) for number in range(10, 14)]
    twins = {peer: frozenset(crowd) - {peer} for peer in crowd}
    found = {peer: evaluation(0.1, 0.0 if peer in twins else 0.2) for peer in (*crowd, *others)}
    after = fold(book, RoundOutcome(book.round + 1, checked([*crowd, *others], twins=twins), found), SPEC)
    assert {after.peers[peer].faults for peer in crowd} == {1}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"round": "3"},
        {"unit": [1.0]},
        {"peers": []},
        {"peers": {"00": {}}},
        {"remembered": [[1, "00", "00" * 32]]},
        {"remembered": [[1, "00" * 32, "00" * 31]]},
        {"remembered": [[1.0, "00" * 32, "00" * 32]]},
        {"remembered": [[2, "00" * 32, "00" * 32], [1, "00" * 32, "00" * 32]]},
        {"remembered": [[1, "00" * 32, "00" * 32]] * 2},
        {"remembered": [[1, f"{peer:064x}", "00" * 32] for peer in range(32 * 256 + 1)]},
        {"void_rounds": []},
        {"more": 1},
    ],
)
def test_a_book_that_is_not_canonical_is_refused(change):
    body = json.loads(to_json(replayed(2)))
    with pytest.raises(InvalidMessage):
        from_json(canonical_json(body | change))


def test_a_new_hotkey_starts_fresh_whatever_uid_it_has():
    book = replayed(4)
    newcomer = peer_id(77)
    scores = {newcomer: evaluation(0.2, 0.02), peer_id(0): evaluation(0.2, 0.02)}
    after = fold(book, RoundOutcome(9, checked(scores), scores), SPEC)
    assert after.peers[newcomer].first_seen == 9
    assert after.peers[newcomer].evaluations == 1
    assert set(book.peers) <= set(after.peers)


def test_without_reference_peers_no_proof_and_no_score_is_recorded():
    after = fold(ScoreBook(), RoundOutcome(0, checked([peer_id(0)]), {}), SPEC)
    assert after.peers == {peer_id(0): PeerRecord(first_seen=0)}


def test_a_loss_that_is_not_finite_counts_against_its_peer_alone():
    peers = [peer_id(i) for i in range(4)]
    scores = {peer: evaluation(0.2, 0.02) for peer in peers[1:]}
    scores[peers[0]] = Evaluation(LossScore(nan, nan), NO_PROOF, 1)
    book = ScoreBook()
    for round in range(3):
        book = fold(book, RoundOutcome(round, checked(peers), scores), SPEC)
    assert not eligible(book.peers[peers[0]], SPEC)
    assert all(eligible(book.peers[peer], SPEC) for peer in peers[1:])
    assert book.peers[peers[0]].rating.mu < min(book.peers[peer].rating.mu for peer in peers[1:])
    assert from_json(to_json(book)) == book


def test_a_fault_of_a_committed_peer_costs_rating_and_score_and_is_forgiven():
    peers = [peer_id(i) for i in range(4)]
    scores = {peer: evaluation(0.2, 0.02) for peer in peers}
    book = fold(ScoreBook(), RoundOutcome(0, checked(peers), scores), SPEC)
    bad = Rejection(peers[3], Reason.UNREVEALED, "test")
    fallen = fold(book, RoundOutcome(1, checked(peers[:3], [bad]), dict(list(scores.items())[:3])), SPEC)
    assert fallen.peers[peers[3]].rating.mu < book.peers[peers[3]].rating.mu
    assert 0 < peer_score(fallen.peers[peers[3]]) < peer_score(book.peers[peers[3]])
    for round in range(2, 12):
        fallen = fold(fallen, RoundOutcome(round, checked(peers), scores), SPEC)
    assert fallen.peers[peers[3]].penalty < 0.02


def test_a_peer_that_was_absent_is_not_punished_but_by_what_it_did_not_do():
    peers = [peer_id(i) for i in range(3)]
    scores = {peer: evaluation(0.2, 0.02) for peer in peers}
    book = fold(ScoreBook(), RoundOutcome(0, checked(peers), scores), SPEC)
    away = checked(peers[:2], [Rejection(peers[2], Reason.MISSING, "test")], frozenset(peers[:2]))
    after = fold(book, RoundOutcome(1, away, {peer: scores[peer] for peer in peers[:2]}), SPEC)
    known = book.peers[peers[2]]
    assert after.peers[peers[2]] == replace(known, presence=PRESENCE_DECAY)


def test_whoever_is_selected_was_there_though_we_could_not_read_it():
    peers = [peer_id(i) for i in range(3)]
    book = fold(ScoreBook(), RoundOutcome(0, checked(peers), {}), SPEC)
    blind = checked(peers[:2], [Rejection(peers[2], Reason.MISSING, "test")], frozenset(peers[:2]))
    for named, presence in ((peers, 1.0), (peers[:2], PRESENCE_DECAY)):
        after = fold(book, RoundOutcome(1, blind, {}, frozenset(named)), SPEC)
        assert after.peers[peers[2]].presence == presence
        assert after.peers[peers[0]].presence == 1.0


def test_whoever_was_not_looked_at_and_a_round_in_which_nobody_was_there_is_no_absence():
    peers = [peer_id(i) for i in range(3)]
    book = fold(ScoreBook(), RoundOutcome(0, checked(peers), {}), SPEC)
    left_out = RoundOutcome(1, checked(peers[:2]), {}, unseen=frozenset(peers[2:]))
    assert fold(book, left_out, SPEC).peers == book.peers
    away = replace(book, peers={peer: replace(record, presence=0.5) for peer, record in book.peers.items()})
    named = replace(left_out, contributing=frozenset(peers))
    assert fold(away, named, SPEC).peers[peers[2]].presence == pytest.approx(0.55), "selected"
    nobody = checked([], [Rejection(peer, Reason.MISSING, "test") for peer in peers], frozenset())
    assert fold(book, RoundOutcome(1, nobody, {}), SPEC).peers == book.peers


@given(st.floats(-5, 5), st.floats(0, 1), st.floats(-50, 50))
def test_a_penalty_never_raises_a_peer_score(value, penalty, mu):
    record = PeerRecord(0, gaps=Average(value, 1.0), units=Average(1.0, 1.0), rating=Rating(mu, 5.0), evaluations=9)
    assert 0.0 <= peer_score(replace(record, penalty=penalty)) <= peer_score(record)
