"""What a record is worth, and how pay is shared by it."""

from dataclasses import replace
from math import isfinite, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.average import NOTHING, Average
from gauntlet.book import PeerRecord, RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.selection import Ranking, standing
from gauntlet.weights import LARGEST_WORTH, merit, weights, worth
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import LossScore, Uid
from tests.gauntlet.world import COMMIT_HASH, OWNER, peer_id

PEERS = [peer_id(i) for i in range(24)]
UIDS = {peer: Uid(i) for i, peer in enumerate(PEERS)}
SPEC = GauntletSpec()


def known(moved=0.1, proof=1.0, penalty=0.0, usual=0.1, deviation=0.0, evaluations=50):
    """A peer of such a progress; its scores are honest."""
    return PeerRecord(
        first_seen=0,
        gaps=Average(0.2 * proof, 0.9),
        units=Average(0.2, 0.9),
        scores=Average(0.05, 0.9),
        usual_scores=Average(0.05, 0.9),
        progress=Average(moved, 0.9),
        usual_progress=Average(usual, 0.9),
        progress_variances=Average(deviation**2, 0.9),
        evaluations=evaluations,
        last_evaluated=9,
        penalty=penalty,
    )


def paid(*records):
    book = ScoreBook(peers=dict(zip(PEERS, records, strict=False)))
    everyone = tuple(PEERS[: len(records)])
    found = weights(book, Ranking(everyone, everyone, (), {}), UIDS | {OWNER: Uid(250)}, OWNER, SPEC)
    return [found.get(Uid(place), 0.0) for place in range(len(records))]


def played(rounds):
    """The book after rounds of (score, gap) by peer, None for who is not there, and what each round paid. Progress is
    as the score is."""
    book, pays = ScoreBook(), []
    for number, row in enumerate(rounds):
        peers = {peer: shown for peer, shown in zip(PEERS, row, strict=False) if shown is not None}
        ranking = standing(book, peers, SPEC, number, COMMIT_HASH)
        found = {p: Evaluation(LossScore(score, score), gap, 2) for p, (score, gap) in peers.items()}
        checked = Checked(dict.fromkeys(peers), {}, frozenset(peers), {}, {})
        moved = {
            p: max(-1.0, min(1.0, score)) for p, (score, _) in peers.items() if p in book.peers and isfinite(score)
        }
        book = fold(book, RoundOutcome(number, checked, found, frozenset(ranking.contributing), moved), SPEC)
        pays.append(weights(book, ranking, UIDS, OWNER, SPEC))
    return book, pays


def test_progress_is_worth_its_size_in_honest_ones():
    assert worth(known(0.1)) == pytest.approx(1.0)
    assert worth(known(0.05)) == pytest.approx(0.5)
    # Where honest progress differs more than its median, luck does not count for more than so many deviations.
    assert worth(known(0.1, usual=0.0, deviation=0.08)) == pytest.approx(1.25)
    assert worth(known(-0.1)) == worth(known(0.0)) == 0.0
    assert worth(known(0.1, usual=0.0)) == worth(known(0.4)) == LARGEST_WORTH


def test_before_anything_was_measured_everybody_is_worth_the_same():
    assert worth(PeerRecord(0)) == 1.0
    unknown = replace(known(), progress=NOTHING, usual_progress=NOTHING)
    assert paid(unknown, unknown) == [0.5, 0.5]
    assert merit(replace(unknown, scores=NOTHING)) == 1.0, "the score is a gate, and no part of merit"


def test_merit_is_the_proof_as_a_gate_times_worth_squared():
    assert merit(known(0.05)) == pytest.approx(0.25)
    assert merit(known(proof=1.7)) == merit(known()) == merit(known(proof=0.81)) == pytest.approx(1.0)
    assert merit(known(proof=0.4)) == pytest.approx(0.5)
    assert merit(known(proof=1.7, penalty=0.25)) == pytest.approx(0.75)  # no luck makes up for a fault
    assert merit(known(proof=0.15, penalty=0.25)) == merit(known(proof=-1.0)) == 0.0
    assert merit(replace(known(), units=NOTHING)) == merit(PeerRecord(0)) == 0.0


def test_equal_work_is_paid_equally_whatever_its_ranks_were():
    """Scores that differ by a tenth, in an order that the first rounds have settled: ratings would keep to it."""
    early = [[(0.1 + 0.002 * place, 0.2) for place in range(6)]] * 3
    late = [[(0.1, 0.2)] * 6] * 12
    _, pays = played(early + late)
    assert max(pays[-1].values()) < 1.01 * min(pays[-1].values())


def test_a_peer_that_undoes_the_run_in_one_round_of_five_is_paid_less_than_its_rounds_of_work():
    rounds = [[(0.1, 0.2)] * 5 + [(-0.2, 0.0) if number % 5 == 4 else (0.1, 0.2)] for number in range(30)]
    _, pays = played(rounds)
    last = [sum(pay.get(Uid(place), 0.0) for pay in pays) for place in range(6)]
    assert last[5] < 0.5 * last[0]
    assert pays[4].get(Uid(5), 0.0) == 0.0  # the first bad round, after four good ones


@pytest.mark.parametrize("every", [2, 3, 5])
def test_who_works_only_in_the_rounds_whose_weights_are_set_is_not_paid_for_the_others(every):
    """A validator may set weights in every second round or fewer, by the records of that round; which one is public."""
    good = (0.1, 0.2)
    _, pays = played([(good,) * 4 + ((good if number % every == 0 else None),) for number in range(60)])
    due = [row for number, row in enumerate(pays) if number >= 20 and number % every == 0]
    share = sum(row.get(Uid(4), 0.0) for row in due) / sum(row[Uid(0)] for row in due)
    assert 1 / every <= share <= 1 / every + 0.1


def test_a_round_missed_costs_about_two_and_is_forgotten():
    good = (0.1, 0.2)
    _, pays = played([(good,) * 4 + ((good if number != 20 else None),) for number in range(40)])
    lost = [1.0 - row.get(Uid(4), 0.0) / row[Uid(0)] for row in pays]
    assert max(lost[:20]) == pytest.approx(0.0, abs=1e-9)
    assert lost[20] == 1.0
    assert lost[21] < 0.15
    assert lost[39] < 0.03
    assert sum(lost) == pytest.approx(2.0, abs=0.3)


def test_how_alike_updates_are_from_round_to_round_does_not_move_shares():
    """A peer that is measured in early rounds, in which updates are much alike, and one that is in late ones."""

    def seen(values):
        pushed = NOTHING
        for value in values:
            pushed = pushed.push(value, SPEC.score_decay)
        return replace(known(), progress=pushed, usual_progress=pushed)

    assert merit(seen([0.2, 0.1])) == pytest.approx(merit(seen([0.02, 0.01])))


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=8), st.floats(1.0, 3.0), st.data())
def test_more_progress_never_earns_less(values, factor, data):
    place = data.draw(st.integers(0, len(values) - 1))
    before = paid(*(known(value) for value in values))
    better = [value * factor if at == place else value for at, value in enumerate(values)]
    after = paid(*(known(value) for value in better))
    assert after[place] >= before[place] * (1 - 1e-12)


@given(st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.7, 1.5)), min_size=2, max_size=8), st.randoms())
def test_pay_does_not_depend_on_names_or_order(rows, random):
    records = [known(value, proof) for value, proof in rows]
    order = list(range(len(rows)))
    random.shuffle(order)
    before, after = paid(*records), paid(*(records[place] for place in order))
    assert after == pytest.approx([before[place] for place in order])


@given(st.integers(2, 16), st.floats(0.5, 1.0), st.floats(0.3, 2.0), st.floats(0.7, 1.0))
def test_splitting_never_pays_where_a_part_moves_at_most_the_root_of_its_share(parts, power, rival, proof):
    """n hotkeys with 1/n of the work each, that have (1/n) ** power of the whole's progress and prove their part."""
    alone = paid(known(0.1), known(0.1 * rival))
    split = paid(*[known(0.1 * (1 / parts) ** power, proof)] * parts, known(0.1 * rival))
    assert sum(split[:parts]) <= alone[0] * (1 + 1e-9)


def test_a_crowd_moves_the_unit_and_nobodys_share():
    """Sixteen hotkeys of six tenths of the progress each, who so set what counts as honest, and four of all of it."""
    crowd, full = known(0.06, usual=0.06), known(0.1, usual=0.06)
    shares = paid(*[full] * 4, *[crowd] * 16)
    assert sum(shares[:4]) == pytest.approx(4 / (4 + 16 * 0.6**2))
    honest = paid(*[known(0.1)] * 4, *[known(0.06)] * 16)
    assert shares == pytest.approx(honest)


ANY = st.floats(width=64)


@given(st.lists(st.lists(st.tuples(ANY, st.floats(-0.5, 0.5)), min_size=4, max_size=4), min_size=1, max_size=6))
def test_no_score_makes_pay_anything_but_shares(rounds):
    book, pays = played(rounds)
    for pay in pays:
        assert all(isfinite(share) and 0.0 <= share <= 1.0 for share in pay.values())
        assert not pay or sum(pay.values()) == pytest.approx(1.0)
    assert all(isfinite(worth(record)) and isfinite(merit(record)) for record in book.peers.values())


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0.0, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_any_record_of_a_report_has_a_finite_merit(moved, usual, variance, gap, unit):
    """Numbers within the bounds that gauntlet/report.py takes."""
    record = known(moved, usual=usual, deviation=sqrt(variance))
    found = merit(replace(record, gaps=Average(gap, 1.0), units=Average(unit, 1.0)))
    assert 0.0 <= found <= LARGEST_WORTH**2
