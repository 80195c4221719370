"""The agreed selection from chain snapshots: who may speak, what makes a record void, and what two validators do."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.agreement import (
    Agreed,
    Views,
    agreed,
    attestation_for,
    claimed_start,
    electorate,
    leader_order,
    posted_records,
    record_for,
    selected,
)
from protocol.messages import encode_statement, first_link, record_link
from protocol.run import Amendment
from protocol.types import Commitment, Peer, PeerId, Record, Selection, Slot, Uid
from tests.gauntlet.world import COMMIT_HASH, POINTER, RUN, THETA, digest, make_spec, peer_id

CLOCK = RUN.clock
ROUND = 5
LINK = first_link(RUN.id)
D, X = CLOCK.commit_by(ROUND), CLOCK.attest_by(ROUND)
SLOTS = [CLOCK.slot(ROUND, index) for index in range(CLOCK.leader_slots)]
AFTER_SLOTS = SLOTS[-1][1] + 1
OTHER = digest("another theta")
MINERS = [
    Peer(peer_id(i), Uid(i), 0, False, slot=Slot(D - i, POINTER, Commitment(ROUND, digest(f"e{i}")))) for i in range(4)
]
NO_COMMITMENT = Peer(peer_id(8), Uid(8), 0, False, slot=Slot(D, POINTER, Commitment(ROUND - 1, digest("old"))))
LATE = Peer(peer_id(9), Uid(9), 0, False, slot=Slot(D + 1, POINTER, Commitment(ROUND, digest("late"))))


def said_before(round: int = ROUND - 1) -> Slot:
    return Slot(CLOCK.attest_by(round), POINTER, attestation_for(round, (), THETA, LINK))


def validator(number: int, stake: int, slot: Slot | None = None) -> Peer:
    return Peer(peer_id(100 + number), Uid(100 + number), stake, True, slot=slot or said_before())


def record(uids=(0, 1), theta=THETA, previous=LINK, round=ROUND) -> Record:
    return Record(round, sum(1 << uid for uid in uids), theta, previous)


class Chain:
    """Posts of validators by block, and the snapshots that follow from them."""

    def __init__(self, *validators: Peer, run=RUN, miners=(*MINERS, NO_COMMITMENT, LATE), commit_hash=COMMIT_HASH):
        self.run, self.validators, self.miners, self.commit_hash = run, validators, miners, commit_hash
        self.posts: list[tuple[int, PeerId, object]] = []
        self.order = leader_order(run, ROUND, commit_hash, validators)

    def post(self, who: PeerId, block: int, statement) -> "Chain":
        self.posts.append((block, who, statement))
        return self

    def lead(self, slot: int, statement: Record, block: int | None = None) -> "Chain":
        return self.post(self.order[slot], SLOTS[slot][0] if block is None else block, statement)

    def at(self, block: int) -> tuple[Peer, ...]:
        peers = {peer.id: peer for peer in self.validators}
        for when, who, statement in sorted(self.posts, key=lambda post: post[0]):
            if when <= block:
                peers[who] = replace(peers[who], slot=Slot(when, POINTER, statement))
        return (*self.miners, *peers.values())

    def agreed(self, height: int = X) -> Agreed:
        views = Views(self.at(D), [self.at(last) for _, last in SLOTS], self.at(X))
        return agreed(self.run, ROUND, LINK, self.commit_hash, views, height)


A, B, C = validator(1, 60), validator(2, 30), validator(3, 10)


def attest(vetoes=(), theta=THETA):
    return attestation_for(ROUND, vetoes, theta, LINK)


def test_with_one_validator_its_record_is_the_agreed_one_and_the_chain_gives_the_digests():
    result = Chain(A).lead(0, record()).agreed()
    pairs = tuple(sorted((MINERS[uid].id, digest(f"e{uid}")) for uid in (0, 1)))
    assert result.selection == Selection(ROUND, THETA, LINK, pairs)
    assert (result.slot, result.author) == (0, A.id)
    assert result.record == encode_statement(record())
    assert result.link == record_link(result.record, pairs) != LINK
    assert result.void == (None, None, None)


def test_a_round_without_a_record_is_void_and_leaves_the_link():
    result = Chain(A, B).agreed()
    assert result.selection is None
    assert result.link == LINK
    assert all(reason is not None for reason in result.void)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (record(round=ROUND - 1), "no record"),
        (record(previous=digest("fork")), "previous"),
        (record(uids=()), "nobody"),
        (record(uids=(0, 8)), "uid 8"),
        (record(uids=(0, 9)), "uid 9"),
        (record(uids=(0, 200)), "uid 200"),
        (attest(), "no record"),
    ],
)
def test_a_record_that_breaks_a_rule_is_void_and_the_next_slot_is_taken(bad, word):
    chain = Chain(A, B)
    result = chain.lead(0, bad).lead(1, record(uids=(2,))).agreed()
    assert word in result.void[0]
    assert (result.slot, result.author) == (1, chain.order[1])
    assert [peer for peer, _ in result.selection.contributing] == [MINERS[2].id]


def test_more_peers_than_g_make_a_record_void():
    run = replace(RUN, first=make_spec(contributors=2))
    chain = Chain(A, run=run)
    assert "at most 2" in chain.lead(0, record(uids=(0, 1, 2))).agreed().void[0]
    assert Chain(A, run=run).lead(0, record(uids=(0, 2))).agreed().selection is not None


@pytest.mark.parametrize("block", [SLOTS[0][0] - 1, SLOTS[0][1] + 1, X])
def test_a_record_outside_its_slots_blocks_does_not_count(block):
    assert Chain(A).lead(0, record(), block).agreed().selection is None


@pytest.mark.parametrize("block", SLOTS[0])
def test_a_record_in_the_first_or_last_block_of_its_slot_counts(block):
    assert Chain(A).lead(0, record(), block).agreed().selection is not None


def test_of_two_records_in_one_slot_the_later_stands_and_one_after_the_slot_changes_nothing():
    chain = Chain(A).lead(0, record(uids=(0,))).lead(0, record(uids=(1,)), SLOTS[0][1])
    chain.lead(0, record(uids=(2,)), SLOTS[1][0])
    assert [peer for peer, _ in chain.agreed().selection.contributing] == [MINERS[1].id]


def test_a_validator_that_does_not_lead_a_slot_selects_nothing_in_it():
    chain = Chain(A, B)
    chain.post(chain.order[1], SLOTS[0][0], record())
    assert chain.agreed().selection is None


def test_the_theta_with_most_counted_stake_decides_and_ties_go_to_the_lowest_digest():
    heavy, light = A, C
    for author, against, agrees in ((heavy, light, True), (light, heavy, False)):
        chain = Chain(heavy, light)
        slot = chain.order.index(author.id)
        chain.lead(slot, record()).post(against.id, AFTER_SLOTS, attest(theta=OTHER))
        result = chain.agreed()
        assert (result.selection is not None) == agrees
        if not agrees:
            assert "theta" in result.void[slot]
    even = validator(4, 60)
    chain = Chain(A, even)
    chain.lead(0, record()).post(chain.order[1], AFTER_SLOTS, attest(theta=OTHER))
    assert (chain.agreed().selection is not None) == (THETA < OTHER)


def is_void(stakes: Sequence[int], author: int, vetoes: Collection[int]) -> bool:
    """Whether the author's record is void, when these validators (by place) veto it."""
    validators = [validator(place, stake) for place, stake in enumerate(stakes)]
    chains = (Chain(*validators, commit_hash=digest(f"hash {number}")) for number in range(1000))
    chain = next(chain for chain in chains if validators[author].id in chain.order)
    slot = chain.order.index(validators[author].id)
    chain.lead(slot, record())
    for place in vetoes:
        chain.post(validators[place].id, AFTER_SLOTS, attest([slot]))
    return chain.agreed().selection is None


@pytest.mark.parametrize(
    ("stakes", "hostile", "offline", "is_stopped", "stops"),
    [
        ([50, 50], 0, (), True, True),
        ([33, 33, 33], 0, (), True, False),
        ([33, 33, 33], 0, (1,), False, False),
        ([25, 25, 25, 25], 0, (), True, False),
        ([25, 25, 25, 25], 0, (1,), True, False),
        ([20, 20, 20, 20, 20], 0, (), True, False),
        ([20, 20, 20, 20, 20], 0, (1,), True, False),
        ([34, 33, 33], 0, (), True, False),
        ([40, 30, 30], 0, (), True, False),
        ([40, 30, 30], 1, (), True, False),
        ([50, 25, 25], 0, (), True, True),
        ([50, 25, 25], 1, (), True, False),
        ([60, 40], 0, (), False, True),
        ([60, 40], 1, (), True, False),
        ([10**15, 1], 1, (), True, False),
    ],
)
def test_one_hostile_validator(stakes, hostile, offline, is_stopped, stops):
    """`is_stopped`: the others that are online can void its record; `stops`: it can void an honest one alone. The table
    of docs/decisions/0013-vetoes-need-half.md."""
    honest = [place for place in range(len(stakes)) if place != hostile and place not in offline]
    assert is_void(stakes, hostile, honest) == is_stopped
    assert any(is_void(stakes, author, [hostile]) for author in honest) == stops


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sets(st.integers(0, 4)), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_less_than_half_of_the_stake_never_voids_and_half_always_does(stakes, vetoes, author):
    author %= len(stakes)
    against = {place for place in vetoes if place < len(stakes)} - {author}
    held = sum(stakes[place] for place in against)
    assert is_void(stakes, author, against | {author}) == (held >= sum(stakes) / 2)


def test_a_veto_of_another_slot_or_by_the_author_itself_does_not_count():
    for vetoes, who in (([1], 1), ([0], 0)):
        chain = Chain(A, B)
        chain.lead(0, record()).post(chain.order[who], AFTER_SLOTS, attest(vetoes))
        assert chain.agreed().slot == 0


@pytest.mark.parametrize("block", [SLOTS[-1][1], X + 1])
def test_an_attestation_outside_its_window_does_not_count(block):
    chain = Chain(A, B)
    chain.lead(0, record()).post(chain.order[1], block, attest([0]))
    assert chain.agreed().selection is not None


def test_the_veto_and_theta_of_one_without_a_permit_do_not_count():
    outsider = replace(validator(5, 10**6), validates=False)
    chain = Chain(A, outsider)
    assert chain.order == (A.id,)
    chain.lead(0, record()).post(outsider.id, AFTER_SLOTS, attest([0], OTHER))
    assert chain.agreed().selection is not None


def test_with_two_validators_either_goes_on_when_the_other_is_gone():
    for author in (A, B):
        chain = Chain(A, B)
        slot = chain.order.index(author.id)
        assert chain.lead(slot, record()).agreed().author == author.id


def test_two_validators_of_equal_stake_give_one_branch():
    one, two = validator(6, 50), validator(7, 50)
    chain = Chain(one, two)
    chain.lead(0, record(uids=(0,))).lead(1, record(uids=(1,)))
    turned = Chain(two, one)
    turned.posts = chain.posts[::-1]
    assert chain.agreed() == turned.agreed()
    assert chain.agreed().slot == 0


def test_validators_without_stake_still_run_a_round():
    chain = Chain(validator(1, 0), validator(2, 0)).lead(0, record())
    assert chain.agreed().selection is not None


def test_a_record_that_the_owner_declares_void_is_void_from_the_stated_height_on():
    amendment = Amendment(previous=RUN.id.hex(), from_round=ROUND, void_round=ROUND, void_from_block=X + 50)
    run = RUN.amended([amendment])
    chain = Chain(A, run=run).lead(0, record())
    assert chain.agreed(X + 49).selection is not None
    later = chain.agreed(X + 50)
    assert later.selection is None
    assert "owner" in later.void[0]


def test_a_uid_means_who_held_it_at_block_d():
    """A uid that is recycled after D still selects the miner that committed."""
    chain = Chain(A).lead(0, record(uids=(3,)))
    views = Views(chain.at(D), [chain.at(last)[1:] for _, last in SLOTS], chain.at(X)[4:])
    result = agreed(RUN, ROUND, LINK, COMMIT_HASH, views, X)
    assert [peer for peer, _ in result.selection.contributing] == [MINERS[3].id]


def test_who_counts_is_who_spoke_in_the_last_eight_rounds():
    late = 20

    def counts(*peers, round=late):
        return set(electorate(RUN, round, peers))

    speaks = {said: validator(said, 1, said_before(said)) for said in (late - 9, late - 8, late - 1)}
    assert counts(*speaks.values()) == {speaks[late - 8].id, speaks[late - 1].id}
    # When nobody has spoken for so long, and at the start, a pointer and a permit are enough.
    quiet = validator(1, 1, Slot(7, POINTER))
    assert counts(quiet) == {quiet.id}
    assert counts(quiet, speaks[late - 1]) == {speaks[late - 1].id}
    assert counts(speaks[late - 9]) == {speaks[late - 9].id}
    assert counts(quiet, round=0) == {quiet.id}
    assert counts(replace(quiet, slot=Slot(7)), replace(quiet, slot=None), replace(quiet, validates=False)) == set()


def test_a_statement_for_a_round_that_had_not_come_gives_no_seat():
    early = validator(1, 1, Slot(CLOCK.start(3), POINTER, attestation_for(ROUND - 1, (), THETA, LINK)))
    future = validator(2, 1, Slot(D - 1, POINTER, attestation_for(ROUND, (), THETA, LINK)))
    assert set(electorate(RUN, ROUND, [early, future, A])) == {A.id}


def test_a_pointer_rewritten_with_the_old_statement_keeps_the_seat():
    moved = validator(1, 1, Slot(D - 1, POINTER, attestation_for(ROUND - 1, (), THETA, LINK)))
    assert set(electorate(RUN, ROUND, [moved])) == {moved.id}


def test_a_joiner_learns_the_start_from_the_most_staked_statement():
    chain = Chain(A, B, C)
    chain.lead(chain.order.index(A.id), record())
    chain.post(B.id, AFTER_SLOTS, attest(theta=OTHER)).post(C.id, AFTER_SLOTS, attest(theta=OTHER))
    assert claimed_start(RUN, ROUND, chain.at(SLOTS[0][0] - 1)) is None
    assert claimed_start(RUN, ROUND, chain.at(X)) == (THETA, LINK)
    assert claimed_start(RUN, ROUND + 1, chain.at(X)) is None


def test_builders_and_bitmaps_are_inverse_and_refuse_what_has_no_bit():
    made = record_for(ROUND, [Uid(0), Uid(255), Uid(7)], THETA, LINK)
    assert selected(made) == (0, 7, 255)
    assert attestation_for(ROUND, [2], THETA, LINK).bitmap == 4
    with pytest.raises(ValueError, match="nobody"):
        record_for(ROUND, [], THETA, LINK)
    with pytest.raises(ValueError, match="no bit"):
        record_for(ROUND, [Uid(256)], THETA, LINK)


def test_posted_records_reads_as_many_slots_as_have_passed():
    chain = Chain(A, B).lead(0, record())
    assert posted_records(RUN, ROUND, chain.order, [chain.at(SLOTS[0][1])]) == [record()]
    assert posted_records(RUN, ROUND, chain.order, []) == []


statements = st.one_of(
    st.builds(record, st.sets(st.sampled_from([0, 1, 3, 8, 9, 200])), st.sampled_from([THETA, OTHER])),
    st.builds(attest, st.sets(st.integers(0, 3)), st.sampled_from([THETA, OTHER])),
    st.just(Commitment(ROUND, digest("x"))),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(D, X + 3), statements), max_size=8),
    st.permutations(range(3)),
)
def test_whatever_is_posted_every_node_reads_one_valid_selection_or_none(posts, order):
    validators = (A, B, C)
    chain = Chain(*validators)
    for who, block, statement in posts:
        chain.post(validators[who].id, block, statement)
    result = chain.agreed()
    turned = Chain(*(validators[i] for i in order), miners=chain.miners[::-1])
    turned.posts = chain.posts
    assert turned.agreed() == result
    if result.selection is not None:
        names = {peer for peer, _ in result.selection.contributing}
        assert names
        assert names <= {miner.id for miner in MINERS}
        assert result.selection.previous == LINK
        assert result.void[: result.slot].count(None) == 0
