"""Who contributes and what it earns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.average import Average
from gauntlet.book import PeerRecord, ScoreBook
from gauntlet.rating import Rating
from gauntlet.selection import Ranking, in_order, peer_score, standing
from gauntlet.weights import lasting, weights
from murmur.protocol.spec import GauntletSpec
from murmur.protocol.types import Peer, Standing, Uid
from tests.gauntlet.world import COMMIT_HASH, OWNER, digest, peer_id

PEERS = [peer_id(i) for i in range(8)]
UIDS = {peer: Uid(i) for i, peer in enumerate(PEERS)} | {OWNER: Uid(50)}
SPEC = GauntletSpec(contributors=3, reserve=2)
LATER = 100


def rated(proof=1.0, mu=25.0, score=0.2, evaluations=50, penalty=0.0):
    return PeerRecord(
        first_seen=0,
        rating=Rating(mu, 3.0),
        gaps=Average(0.02 * proof, 0.9),
        units=Average(0.02, 0.9),
        scores=Average(score, 0.9),
        usual_scores=Average(0.2, 0.9),
        evaluations=evaluations,
        last_evaluated=9,
        penalty=penalty,
    )


def book_of(*records):
    return ScoreBook(peers={peer: record for peer, record in zip(PEERS, records, strict=False) if record is not None})


def contributing(*given):
    return tuple(sorted(standing(*given).contributing))


def test_the_best_by_proof_times_rating_contribute():
    book = book_of(rated(1.0), rated(1.5), rated(1.0, mu=40.0), rated(0.9), rated(0.2), rated(score=-0.1), None)
    ranking = standing(book, PEERS[:7], SPEC, LATER, COMMIT_HASH)
    assert ranking.order == (PEERS[2], PEERS[1], PEERS[0], PEERS[3])
    assert ranking.contributing == ranking.order[:3]
    assert ranking.reserve == ranking.order[3:]
    assert ranking.standing == {
        PEERS[3]: Standing.NOT_SELECTED,
        PEERS[4]: Standing.LOW_SCORE,
        PEERS[5]: Standing.LOW_SCORE,
        PEERS[6]: Standing.NOT_ELIGIBLE,
    }


def test_a_score_far_below_the_honest_one_is_too_low_even_when_positive():
    book = book_of(rated(), rated(), rated(), rated(score=0.01))
    assert standing(book, PEERS[:4], SPEC, LATER, COMMIT_HASH).standing == {PEERS[3]: Standing.LOW_SCORE}


def test_only_peers_that_passed_are_considered():
    book = book_of(*[rated()] * 5)
    assert set(contributing(book, PEERS[3:5], SPEC, LATER, COMMIT_HASH)) == set(PEERS[3:5])
    assert contributing(book, [], SPEC, LATER, COMMIT_HASH) == ()


def test_in_the_opening_rounds_unevaluated_peers_fill_up_after_the_eligible_and_low_scores_stay_out():
    book = book_of(rated(), rated(0.0), rated(), rated())
    wide = SPEC.model_copy(update={"contributors": 8})
    for round, also in ((0, set(PEERS[4:6])), (2, set(PEERS[4:6])), (3, set())):
        ranking = standing(book, PEERS[:6], wide, round, COMMIT_HASH)
        assert set(ranking.order) == {PEERS[0], PEERS[2], PEERS[3]} | also
        assert set(ranking.order[:3]) == {PEERS[0], PEERS[2], PEERS[3]}


def test_while_fewer_than_three_are_rated_unevaluated_peers_may_contribute():
    two = book_of(rated(), rated())
    assert len(contributing(two, PEERS[:3], SPEC, LATER, COMMIT_HASH)) == 3
    # Rated peers that are not here now do not count: a run must not stop because its early peers left.
    three = book_of(rated(), rated(), rated())
    assert len(contributing(three, [PEERS[0], *PEERS[4:6]], SPEC, LATER, COMMIT_HASH)) == 3
    assert len(contributing(three, PEERS[:4], SPEC, LATER, COMMIT_HASH)) == 3


def test_while_less_than_half_are_rated_unevaluated_peers_may_contribute():
    """Twenty-one validators that have each looked at four others would name nobody in common."""
    wide, three = SPEC.model_copy(update={"contributors": 8}), book_of(rated(), rated(), rated())
    for passed, expected in ((PEERS[:7], set(PEERS[:7])), (PEERS[:6], set(PEERS[:3]))):
        assert set(standing(three, passed, wide, LATER, COMMIT_HASH).order) == expected


def test_ties_are_broken_by_the_hash_of_block_d_alone():
    book = book_of(*[rated()] * 6)
    chosen = {contributing(book, PEERS[:6], SPEC, LATER, digest(str(number))) for number in range(30)}
    assert len(chosen) > 5
    assert contributing(book, PEERS[:6], SPEC, LATER, COMMIT_HASH) == contributing(
        book, PEERS[5::-1], SPEC, LATER, COMMIT_HASH
    )


def ranking_of(contributing, reserve=()):
    return Ranking((*contributing, *reserve), tuple(contributing), tuple(reserve), {})


def test_weights_follow_merit_and_the_reserve_gets_half():
    book = book_of(rated(proof=0.7, penalty=0.375), rated(), rated(proof=0.7, penalty=0.375))
    paid = weights(book, ranking_of(PEERS[:2], PEERS[2:3]), UIDS, OWNER, SPEC)
    assert paid == pytest.approx({0: 0.5 / 1.75, 1: 1 / 1.75, 2: 0.25 / 1.75})


def test_a_uid_that_changed_hands_since_block_d_is_paid_to_nobody():
    def peer(who, uid):
        return Peer(PEERS[who], Uid(uid), 0, False, 0)

    at_commit = [peer(0, 0), peer(1, 1), peer(2, 2), peer(3, 3)]
    # 1 is gone and 4 has its uid; 2 and 3 were registered again, each under the other's uid.
    now = [peer(0, 0), peer(4, 1), peer(3, 2), peer(2, 3), peer(5, 5)]
    uids = lasting(at_commit, now)
    assert uids == {PEERS[0]: 0}
    book = book_of(*[rated()] * 6)
    assert weights(book, ranking_of(PEERS[:6]), uids, OWNER, SPEC) == {0: 1.0}


def test_nothing_earned_goes_to_the_owner_and_to_nobody_where_the_owner_is_gone():
    book = book_of(rated(0.0), rated(-3.0))
    assert weights(book, ranking_of(PEERS[:2]), UIDS, OWNER, SPEC) == {50: 1.0}
    gone = {peer: uid for peer, uid in UIDS.items() if peer != OWNER}
    assert weights(book, ranking_of(PEERS[:2]), gone, OWNER, SPEC) == {}


def test_the_burn_share_goes_to_the_owner_and_the_rest_to_the_peers():
    spec = SPEC.model_copy(update={"burn_share": 0.25})
    paid = weights(book_of(rated(), rated()), ranking_of(PEERS[:2]), UIDS, OWNER, spec)
    assert paid == pytest.approx({0: 0.375, 1: 0.375, 50: 0.25})


def test_a_hotkey_that_lost_its_uid_is_not_paid_and_its_successor_gets_nothing_of_it():
    uids = {PEERS[0]: Uid(0), peer_id(70): Uid(1), OWNER: Uid(50)}
    assert weights(book_of(rated(), rated()), ranking_of(PEERS[:2]), uids, OWNER, SPEC) == {0: 1.0}


@given(st.lists(st.floats(-2, 3), min_size=1, max_size=8), st.floats(0, 1))
def test_weights_sum_to_one_and_are_never_negative(proofs, burn):
    spec = SPEC.model_copy(update={"burn_share": burn})
    paid = weights(book_of(*map(rated, proofs)), ranking_of(PEERS[: len(proofs)]), UIDS, OWNER, spec)
    assert sum(paid.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in paid.values())


def test_a_peer_that_this_rounds_scores_made_ineligible_is_not_paid_for_it():
    """The ranking is from before the round, the book from after it."""
    book = book_of(rated(), rated(score=-0.01), rated(0.1))
    assert set(weights(book, ranking_of(PEERS[:3]), UIDS, OWNER, SPEC)) == {Uid(0)}
    nobody = weights(book_of(rated(score=-0.01)), ranking_of(PEERS[:1]), UIDS, OWNER, SPEC)
    assert nobody == {Uid(50): 1.0}


def test_the_worst_peer_moves_nobodys_pay():
    before = weights(book_of(rated(), rated(1.5)), ranking_of(PEERS[:2]), UIDS, OWNER, SPEC)
    after = weights(book_of(rated(), rated(1.5), rated(-1e6)), ranking_of(PEERS[:3]), UIDS, OWNER, SPEC)
    assert after == before


def test_peer_score_is_zero_without_a_proof_and_falls_with_penalties():
    assert peer_score(None) == peer_score(PeerRecord(first_seen=0)) == 0.0
    assert peer_score(rated(1.0, mu=-4.0)) == 0.0
    assert peer_score(rated(1.0, penalty=0.25)) == pytest.approx(0.75 * 25.0)
    assert peer_score(rated(0.1, penalty=0.25)) == 0.0


def test_of_twins_only_the_best_by_the_book_may_contribute_or_wait_in_reserve():
    book = book_of(rated(1.0), rated(1.5), rated(1.0, mu=40.0), rated(0.9), rated(1.2))
    twins = {PEERS[1]: frozenset([PEERS[2]]), PEERS[2]: frozenset([PEERS[1]])}
    ranking = standing(book, PEERS[:5], SPEC, LATER, COMMIT_HASH, twins)
    assert ranking.order == (PEERS[2], PEERS[4], PEERS[0], PEERS[3])
    assert ranking.standing[PEERS[1]] is Standing.NOT_SELECTED
    assert PEERS[1] not in {*ranking.contributing, *ranking.reserve}


def test_what_peers_left_is_fetched_best_first_and_newcomers_in_another_order_every_round():
    book = book_of(rated(mu=20.0), rated(mu=30.0))
    peers = [*PEERS[:2], *(peer_id(number) for number in range(100, 128))]
    orders = [in_order(book, peers, digest(str(seed))) for seed in range(50)]
    assert all(order[:2] == (PEERS[1], PEERS[0]) and set(order) == set(peers) for order in orders)
    assert len({order[2] for order in orders}) > 15
    assert len({order[-1] for order in orders}) > 15
