"""Who is evaluated and on what: probabilities, the newcomers' quarter, and pages of nobody."""

from collections import Counter

import pytest

from gauntlet.average import Average
from gauntlet.book import PeerRecord, ScoreBook, in_doubt
from gauntlet.sampling import Seed, pick, references, samples
from murmur.protocol.assignment import assigned
from murmur.protocol.spec import GauntletSpec
from tests.gauntlet.world import SPEC, digest, make_spec, peer_id

PEERS = [peer_id(i) for i in range(40)]
VALIDATOR = peer_id(99)


def seed(number, round=50, validator=VALIDATOR):
    return Seed(digest("run"), digest(f"block {number}"), round, validator)


def book_of(evaluated):
    """A book whose peers were last evaluated in the given rounds; None: never, seen since round 0."""
    return ScoreBook(
        peers={
            peer: PeerRecord(first_seen=0, evaluations=0 if last is None else 3, last_evaluated=last)
            for peer, last in evaluated.items()
        }
    )


def picks(book, passed, contributing, spec, tries=200):
    count = Counter()
    for number in range(tries):
        picked = pick(book, passed, contributing, spec, seed(number))
        assert len(picked) == len(set(picked)) <= spec.evaluations
        assert set(picked) <= set(passed)
        count.update(picked)
    return {peer: count[peer] / tries for peer in passed}


def test_everybody_is_evaluated_when_all_fit():
    assert pick(ScoreBook(), PEERS[:5], [], GauntletSpec(evaluations=5), seed(1)) == tuple(sorted(PEERS[:5]))


def test_a_contributor_is_evaluated_with_at_least_its_share_and_nobody_with_certainty():
    spec = GauntletSpec(contributors=10, evaluations=12, contributor_share=0.5)
    rates = picks(book_of(dict.fromkeys(PEERS[:30], 49)), PEERS[:30], PEERS[:10], spec)
    assert min(rates[peer] for peer in PEERS[:10]) > 0.5 - 0.1
    assert all(0 < rate < 1 for rate in rates.values())


def test_the_longer_unevaluated_the_likelier():
    spec = GauntletSpec(contributors=2, evaluations=6)
    stale, fresh = PEERS[10:20], PEERS[20:30]
    rates = picks(book_of(dict.fromkeys(stale, 40) | dict.fromkeys(fresh, 49)), stale + fresh, [], spec)
    assert sum(rates[peer] for peer in stale) > 2 * sum(rates[peer] for peer in fresh)


def record(gap, evaluations=40, score=0.2):
    """A peer last evaluated in round 49; the honest gap is 0.2, the honest score 0.2."""
    one = Average(gap, 0.9)
    units, scores, usual = Average(0.2, 0.9), Average(score, 0.9), Average(0.2, 0.9)
    return PeerRecord(
        0, gaps=one, units=units, scores=scores, usual_scores=usual, evaluations=evaluations, last_evaluated=49
    )


def test_in_doubt_is_who_the_next_evaluation_may_judge_otherwise():
    spec = GauntletSpec()
    assert in_doubt(record(0.11), spec)
    assert in_doubt(record(0.13), spec)
    assert in_doubt(record(0.0, evaluations=1), spec)
    assert in_doubt(record(0.2, score=0.01), spec)
    assert not in_doubt(record(0.2), spec)
    assert not in_doubt(record(0.0), spec)
    assert not in_doubt(record(0.0, score=-0.1), spec)
    assert not in_doubt(PeerRecord(first_seen=0), spec)


def test_half_of_the_places_beside_the_contributors_go_to_those_in_doubt_first():
    spec = GauntletSpec(contributors=4, evaluations=8)
    clear, doubtful = PEERS[4:34], PEERS[34:]
    book = ScoreBook(peers={p: record(0.2) for p in clear} | {p: record(0.11) for p in doubtful})
    rates = picks(book, PEERS, PEERS[:4], spec)
    # Two places go to contributors, three to those in doubt, three to anybody.
    assert sum(rates[peer] for peer in doubtful) > 3.0
    assert min(rates[peer] for peer in clear) > 0.0
    assert max(rates.values()) < 1.0


def test_a_flood_of_newcomers_gets_a_quarter_of_the_places_once_2g_are_rated():
    spec = GauntletSpec(contributors=4, evaluations=8)
    rated, flood = PEERS[:8], PEERS[8:]
    book = book_of(dict.fromkeys(rated, 49) | dict.fromkeys(flood, None))
    for number in range(50):
        picked = pick(book, PEERS, PEERS[:4], spec, seed(number))
        assert len(set(picked) & set(flood)) <= 2
        assert len(picked) == 8
    early = book_of(dict.fromkeys(rated[:7], 49) | dict.fromkeys(flood, None))
    most = max(len(set(pick(early, PEERS, PEERS[:4], spec, seed(number))) & set(flood)) for number in range(50))
    assert most > 2


def test_another_hash_or_validator_draws_another_set():
    spec = GauntletSpec(contributors=4, evaluations=8)
    drawn = {pick(ScoreBook(), PEERS, (), spec, seed(number)) for number in range(10)}
    assert len(drawn) == 10
    assert pick(ScoreBook(), PEERS, (), spec, seed(0, validator=peer_id(98))) not in drawn


def test_references_are_other_contributors_while_there_are_two_of_them():
    spec = GauntletSpec(references=3)
    chosen = references(PEERS[:6], PEERS[:6], PEERS[:3], spec, seed(1))
    for peer, others in chosen.items():
        assert set(others) == set(PEERS[:3]) - {peer}
        assert len(others) == len(set(others))


def test_too_few_contributors_are_made_up_for_by_others():
    chosen = references(PEERS[:6], PEERS[:6], PEERS[:1], GauntletSpec(references=3), seed(1))
    for peer, others in chosen.items():
        assert peer not in others
        assert len(set(others)) == 2
        assert (PEERS[0] in others) is (peer != PEERS[0])
    one = references(PEERS[:6], PEERS[:6], PEERS[:1], GauntletSpec(references=1), seed(1))
    assert all(len(others) == 1 for others in one.values())


def test_a_peer_alone_has_no_reference():
    spec = GauntletSpec(references=3)
    assert references(PEERS[:1], PEERS[:1], (), spec, seed(1)) == {PEERS[0]: ()}
    assert all(len(others) == 1 for others in references(PEERS[:2], PEERS[:2], (), spec, seed(1)).values())


def own_tokens(peer, spec):
    pages = assigned(
        digest("run"),
        digest("pages"),
        peer,
        num_pages=spec.num_pages,
        page_tokens=spec.page_tokens,
        count=spec.pages_per_round,
    )
    return {token for page in pages for token in range(page.first, page.first + page.num_tokens)}


def test_samples_lie_in_the_peers_own_pages_and_the_shared_one_in_nobodys():
    spec = make_spec(sample_sequences=8)
    taken = samples(spec, digest("pages"), PEERS[:3], PEERS[:10], seed(1))
    assert set(taken.assigned) == set(PEERS[:3])
    for peer, pages in taken.assigned.items():
        assert len({page.first for page in pages}) == 8
        assert [page.first for page in pages] == sorted(page.first for page in pages)
        assert all(page.num_tokens == spec.model.context for page in pages)
        assert all(page.first in own_tokens(peer, spec) for page in pages)
    everyones = set().union(*(own_tokens(peer, spec) for peer in PEERS[:10]))
    assert len(taken.unassigned) == 8
    assert not any(page.first in everyones for page in taken.unassigned)


def test_samples_of_a_stage_lie_in_its_pages():
    whole = make_spec(sample_sequences=8)
    inner = whole.inner.model_copy(update={"first_page": 30, "num_pages": 100})
    spec = whole.model_copy(update={"inner": inner})
    taken = samples(spec, digest("pages"), PEERS[:3], PEERS[:3], seed(1))
    first, last = 30 * spec.page_tokens, 130 * spec.page_tokens
    for page in (*taken.unassigned, *(page for pages in taken.assigned.values() for page in pages)):
        assert first <= page.first < last
    assert last < 50_001


def test_two_validators_share_no_sample():
    spec = make_spec(sample_sequences=4)
    one = samples(spec, digest("pages"), PEERS[:2], PEERS[:2], seed(1))
    two = samples(spec, digest("pages"), PEERS[:2], PEERS[:2], seed(1, validator=peer_id(98)))
    assert one != two


def test_more_sequences_than_a_peer_trains_on_means_all_of_them():
    spec = make_spec(sample_sequences=10_000)
    taken = samples(spec, digest("pages"), PEERS[:1], PEERS[:1], seed(1))
    assert len(taken.assigned[PEERS[0]]) == SPEC.inner.steps * SPEC.inner.sequences


def test_where_every_page_is_somebodys_the_least_shared_ones_serve():
    spec = make_spec(sample_sequences=8)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"num_tokens": 6 * spec.page_tokens + 1})})
    taken = samples(spec, digest("pages"), PEERS[:1], PEERS, seed(1))
    assert len(taken.unassigned) == 8


@pytest.mark.parametrize("round", [0, 1])
def test_a_newcomer_of_this_round_can_be_drawn(round):
    spec = GauntletSpec(contributors=2, evaluations=2)
    drawn = {p for n in range(60) for p in pick(ScoreBook(), PEERS[:6], (), spec, seed(n, round=round))}
    assert drawn == set(PEERS[:6])


def test_a_twin_is_no_reference_of_its_twin_and_is_looked_at_before_others():
    twins = {PEERS[0]: frozenset([PEERS[20]]), PEERS[20]: frozenset([PEERS[0]])}
    chosen = references(PEERS[:21], PEERS[:21], PEERS[:3], GauntletSpec(references=3), seed(1), twins)
    assert PEERS[0] not in chosen[PEERS[20]]
    assert all(PEERS[0] in others for peer, others in chosen.items() if peer not in twins)
    spec = GauntletSpec(contributors=4, evaluations=8)
    for number in range(20):
        assert {PEERS[0], PEERS[20]} <= set(pick(ScoreBook(), PEERS, (), spec, seed(number), twins))
