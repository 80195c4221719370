"""What a record is worth, and how pay is shared by it."""

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.average import NOTHING, Average
from gauntlet.book import PeerRecord, RoundOutcome, ScoreBook, fold
from gauntlet.checks import Checked
from gauntlet.evaluation import Evaluation
from gauntlet.selection import Ranking, standing
from gauntlet.weights import merit, weights
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import LossScore, Uid
from tests.gauntlet.world import COMMIT_HASH, OWNER, peer_id

PEERS = [peer_id(i) for i in range(24)]
UIDS = {peer: Uid(i) for i, peer in enumerate(PEERS)}
SPEC = GauntletSpec()
VERIFIED = GauntletSpec(trace_values=1024)


def known(proof=1.0, penalty=0.0, work=0.0, repeated=0):
    """A peer of honest scores."""
    return PeerRecord(
        first_seen=0,
        gaps=Average(0.2 * proof, 0.9),
        units=Average(0.2, 0.9),
        scores=Average(0.05, 0.9),
        usual_scores=Average(0.05, 0.9),
        evaluations=50,
        last_evaluated=9,
        penalty=penalty,
        work=work,
        repeated=repeated,
    )


def paid(*records, spec=SPEC, round=9):
    book = ScoreBook(round, dict(zip(PEERS, records, strict=False)))
    everyone = tuple(PEERS[: len(records)])
    found = weights(book, Ranking(everyone, everyone, (), {}), UIDS | {OWNER: Uid(250)}, OWNER, spec)
    return [found.get(Uid(place), 0.0) for place in range(len(records))]


def played(rounds):
    """The book after rounds of (score, gap) by peer, None for who is not there, and what each round paid."""
    book, pays = ScoreBook(), []
    for number, row in enumerate(rounds):
        peers = {peer: shown for peer, shown in zip(PEERS, row, strict=False) if shown is not None}
        ranking = standing(book, peers, SPEC, number, COMMIT_HASH)
        found = {p: Evaluation(LossScore(score, score), gap, 2) for p, (score, gap) in peers.items()}
        checked = Checked(dict.fromkeys(peers), {}, frozenset(peers), {}, {})
        book = fold(book, RoundOutcome(number, checked, found, frozenset(ranking.contributing)), SPEC)
        pays.append(weights(book, ranking, UIDS, OWNER, SPEC))
    return book, pays


def test_where_work_is_not_verified_merit_is_the_proof_less_penalties():
    assert merit(known(proof=1.7), SPEC) == merit(known(), SPEC) == merit(known(proof=0.81), SPEC) == pytest.approx(1.0)
    assert merit(known(proof=0.4), SPEC) == pytest.approx(0.5)
    assert merit(known(proof=1.7, penalty=0.25), SPEC) == pytest.approx(0.75)  # no luck makes up for a fault
    assert merit(known(proof=0.15, penalty=0.25), SPEC) == merit(known(proof=-1.0), SPEC) == 0.0
    assert merit(replace(known(), units=NOTHING), SPEC) == merit(PeerRecord(0), SPEC) == 0.0
    assert merit(replace(known(), scores=NOTHING), SPEC) == 1.0, "the score is a gate, and no part of merit"


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8), st.integers(2, 16))
def test_where_work_is_verified_pay_is_linear_in_it_and_a_split_earns_nothing(works, parts):
    whole = paid(*(known(work=work, repeated=4) for work in works), spec=VERIFIED)
    assert whole == pytest.approx([work / sum(works) for work in works])
    split = [known(work=works[0] / parts, repeated=4)] * parts
    shares = paid(*split, *(known(work=work, repeated=4) for work in works[1:]), spec=VERIFIED)
    assert sum(shares[:parts]) == pytest.approx(whole[0])


def test_who_was_not_repeated_yet_earns_nothing_beside_others_and_by_presence_where_nobody_was():
    seen, new = known(work=0.25, repeated=1), known()
    assert paid(seen, new, spec=VERIFIED) == [1.0, 0.0]
    often, seldom = replace(new, presence=0.9), replace(new, presence=0.6)
    assert paid(often, seldom, spec=VERIFIED) == pytest.approx([0.6, 0.4])
    assert paid(often, seldom, spec=VERIFIED, round=1) == [0.0, 0.0], "the opening rounds: it may still come"


def test_equal_work_is_paid_equally_whatever_its_ranks_were():
    """Scores that differ by a tenth, in an order that the first rounds have settled: ratings would keep to it."""
    early = [[(0.1 + 0.002 * place, 0.2) for place in range(6)]] * 3
    late = [[(0.1, 0.2)] * 6] * 12
    _, pays = played(early + late)
    assert max(pays[-1].values()) < 1.01 * min(pays[-1].values())


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


@given(st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.7, 1.5)), min_size=2, max_size=8), st.randoms())
def test_pay_does_not_depend_on_names_or_order(rows, random):
    records = [known(proof, work=value, repeated=1) for value, proof in rows]
    order = list(range(len(rows)))
    random.shuffle(order)
    before, after = paid(*records), paid(*(records[place] for place in order))
    assert after == pytest.approx([before[place] for place in order])


ANY = st.floats(width=64)


@given(st.lists(st.lists(st.tuples(ANY, st.floats(-0.5, 0.5)), min_size=4, max_size=4), min_size=1, max_size=6))
def test_no_score_makes_pay_anything_but_shares(rounds):
    book, pays = played(rounds)
    for pay in pays:
        assert all(isfinite(share) and 0.0 <= share <= 1.0 for share in pay.values())
        assert not pay or sum(pay.values()) == pytest.approx(1.0)
    assert all(isfinite(merit(record, SPEC)) for record in book.peers.values())
