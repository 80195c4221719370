"""The agreed selection from chain snapshots: who counts, what makes a record void, and what no minority can do."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.agreement import (
    STATEMENT_ROUNDS,
    Agreed,
    Claim,
    Views,
    agreed,
    attestation_for,
    claimed_start,
    claims,
    contradicted,
    electorate,
    last_words,
    leader_order,
    mirrors,
    posted_records,
    proposals,
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

ANNOUNCED = Slot(7, POINTER, attestation_for(0, (), THETA, LINK))
"""Of a validator that was there before the run's first leader slot."""


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

    def approve(self, who: Peer, *slots: int, block: int = AFTER_SLOTS) -> "Chain":
        return self.post(who.id, block, attest(slots))

    @property
    def views(self) -> Views:
        return Views(self.at(D), [self.at(last) for _, last in SLOTS], self.at(X))

    def agreed(self, height: int = X, ours: Claim = (THETA, LINK)) -> Agreed:
        return agreed(self.run, ROUND, *ours, self.commit_hash, self.views, height)


A, B, C = validator(1, 60), validator(2, 30), validator(3, 10)
EQUAL = tuple(validator(number, 1) for number in range(1, 4))


def attest(approved=(), theta=THETA, previous=LINK):
    return attestation_for(ROUND, approved, theta, previous)


def test_with_one_validator_its_record_is_the_agreed_one_and_the_chain_gives_the_digests():
    result = Chain(A).lead(0, record()).agreed()
    pairs = tuple(sorted((MINERS[uid].id, digest(f"e{uid}")) for uid in (0, 1)))
    assert result.selection == Selection(ROUND, THETA, LINK, pairs)
    assert (result.slot, result.author) == (0, A.id)
    assert result.record == encode_statement(record())
    assert result.link == record_link(result.record, pairs, RUN.id) != LINK
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
        (record(theta=OTHER), "theta"),
        (record(uids=()), "nobody"),
        (record(uids=(0, 8)), "uid 8"),
        (record(uids=(0, 9)), "uid 9"),
        (record(uids=(0, 200)), "uid 200"),
        (attest(), "no record"),
    ],
)
def test_a_record_that_breaks_a_rule_is_void_whoever_approves_it_and_the_next_slot_is_taken(bad, word):
    chain = Chain(*EQUAL).lead(0, bad).lead(1, record(uids=(2,)))
    for who in chain.order:
        chain.post(who, AFTER_SLOTS, attest([0, 1]))
    result = chain.agreed()
    assert word in result.void[0]
    assert (result.slot, result.author) == (1, chain.order[1])
    assert [peer for peer, _ in result.selection.contributing] == [MINERS[2].id]
    assert [made is not None for made in proposals(RUN, ROUND, THETA, LINK, COMMIT_HASH, chain.views)] == [0, 1, 0]


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
    chain.approve(A, 0)
    assert chain.agreed().selection is None


def is_agreed(stakes: Sequence[int], author: int, approving: Collection[int]) -> bool:
    """Whether the author's record is agreed, when these validators (by place) approve it."""
    validators = [validator(place, stake) for place, stake in enumerate(stakes)]
    chains = (Chain(*validators, commit_hash=digest(f"hash {number}")) for number in range(1000))
    chain = next(chain for chain in chains if validators[author].id in chain.order)
    slot = chain.order.index(validators[author].id)
    chain.lead(slot, record())
    for place in approving:
        chain.approve(validators[place], slot)
    return chain.agreed().selection is not None


@pytest.mark.parametrize(
    ("stakes", "hostile", "offline", "gets_in", "others_go_on"),
    [
        ([1], 0, (), True, False),
        ([50, 50], 0, (), False, False),
        ([33, 33, 33], 0, (), False, True),
        ([33, 33, 33], 0, (1,), False, False),
        ([25, 25, 25, 25], 0, (), False, True),
        ([25, 25, 25, 25], 0, (1,), False, False),
        ([20, 20, 20, 20, 20], 0, (1,), False, True),
        ([34, 33, 33], 0, (), False, True),
        ([40, 30, 30], 0, (), False, True),
        ([40, 30, 30], 1, (), False, True),
        ([50, 25, 25], 0, (), False, False),
        ([50, 25, 25], 1, (), False, True),
        ([60, 40], 0, (), True, False),
        ([60, 40], 1, (), False, True),
        ([10**15, 1], 1, (), False, True),
        ([10**15, 1], 1, (0,), False, False),
        ([0, 0, 0], 0, (), False, True),
        ([0, 0, 0], 0, (1,), False, False),
    ],
)
def test_one_hostile_validator(stakes, hostile, offline, gets_in, others_go_on):
    """`gets_in`: a record that it alone approves is agreed; `others_go_on`: one of the others' is without its word. The
    table of docs/decisions/0021-approve-not-veto.md."""
    honest = [place for place in range(len(stakes)) if place != hostile and place not in offline]
    assert is_agreed(stakes, hostile, [hostile]) == gets_in
    assert any(is_agreed(stakes, author, honest) for author in honest) == others_go_on


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sets(st.integers(0, 4)), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_more_than_half_of_the_stake_is_needed_and_enough(stakes, approving, slot):
    validators = [validator(place, stake) for place, stake in enumerate(stakes)]
    chain = Chain(*validators)
    slot %= len(chain.order)
    chain.lead(slot, record())
    behind = {peer for place, peer in enumerate(validators) if place in approving or peer.id == chain.order[slot]}
    for peer in behind:
        if peer.id != chain.order[slot]:
            chain.approve(peer, slot)
    weights = {peer.id: peer.stake if any(stakes) else 1 for peer in validators}
    expected = sum(weights[peer.id] for peer in behind) > sum(weights.values()) / 2
    assert (chain.agreed().selection is not None) == expected


def test_the_first_slot_that_enough_approve_is_taken_and_a_word_for_another_slot_does_not_help_it():
    chain = Chain(*EQUAL).lead(0, record(uids=(0,))).lead(1, record(uids=(1,))).lead(2, record(uids=(2,)))
    chain.post(chain.order[0], AFTER_SLOTS, attest([1]))
    result = chain.agreed()
    assert (result.slot, result.author) == (1, chain.order[1])
    assert result.void[0] == "approved by 1 of 3 of the counted stake, which is not more than half"
    chain.post(chain.order[2], AFTER_SLOTS, attest([0, 1]))
    assert chain.agreed().slot == 0


@pytest.mark.parametrize(
    ("block", "counts"), [(SLOTS[0][1], False), (SLOTS[0][1] + 1, True), (X, True), (X + 1, False)]
)
def test_an_approval_counts_from_the_end_of_its_slot_to_x(block, counts):
    chain = Chain(*EQUAL).lead(0, record())
    chain.post(chain.order[1], block, attest([0]))
    assert (chain.agreed().selection is not None) == counts


def test_an_approval_made_in_a_slots_blocks_is_no_word_for_what_its_leader_puts_there_afterwards():
    """A leader shows a good record, collects approvals, and overwrites it with another in the slot's last block."""
    chain = Chain(*EQUAL).lead(0, record(uids=(0,)), SLOTS[0][0])
    for who in chain.order[1:]:
        chain.post(who, SLOTS[0][0] + 1, attest([0]))
    chain.lead(0, record(uids=(3,)), SLOTS[0][1])
    assert chain.agreed().selection is None


def test_the_last_word_by_x_counts():
    chain = Chain(*EQUAL).lead(0, record())
    voter = next(peer for peer in EQUAL if peer.id == chain.order[1])
    chain.approve(voter, 0, block=SLOTS[0][1] + 1)
    assert chain.agreed().selection is not None
    assert chain.approve(voter, block=X).agreed().selection is None
    assert chain.approve(voter, 0, block=X + 1).agreed().selection is None


def test_a_leader_may_attest_after_its_slot_and_its_record_goes_on_counting_for_it():
    chain = Chain(*EQUAL).lead(0, record()).lead(1, record(uids=(2,)))
    chain.post(chain.order[0], SLOTS[0][1] + 1, attest())
    chain.post(chain.order[2], SLOTS[0][1] + 1, attest([0]))
    assert chain.agreed().author == chain.order[0]


@pytest.mark.parametrize("word", [attest([0], theta=OTHER), attest([0], previous=digest("fork")), record(theta=OTHER)])
def test_a_word_for_another_state_is_no_approval_and_takes_back_that_of_its_authors_record(word):
    chain = Chain(*EQUAL).lead(0, record())
    chain.post(chain.order[1], AFTER_SLOTS, attest([0]))
    assert chain.agreed().selection is not None
    chain.post(chain.order[0], SLOTS[1][0], word)
    assert chain.agreed().selection is None
    chain = Chain(*EQUAL).lead(0, record())
    chain.post(chain.order[1], SLOTS[1][0], word)
    assert chain.agreed().selection is None


def test_one_without_a_permit_and_one_that_does_not_count_yet_approve_nothing():
    outsider = replace(validator(5, 10**6), validates=False)
    newcomer = validator(6, 10**6, Slot(7, POINTER))
    chain = Chain(*EQUAL, outsider, newcomer)
    assert set(chain.order) == {peer.id for peer in EQUAL}
    chain.lead(0, record()).approve(outsider, 0).approve(newcomer, 0)
    assert chain.agreed().selection is None


def test_of_two_validators_of_equal_stake_both_are_needed_and_give_one_branch():
    one, two = validator(6, 50), validator(7, 50)
    chain = Chain(one, two).lead(0, record(uids=(0,))).lead(1, record(uids=(1,)))
    assert chain.agreed().selection is None
    chain.post(chain.order[1], AFTER_SLOTS, attest([0])).post(chain.order[0], AFTER_SLOTS, attest([1]))
    turned = Chain(two, one)
    turned.posts = chain.posts[::-1]
    assert chain.agreed() == turned.agreed()
    assert chain.agreed().slot == 0


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
    result = agreed(RUN, ROUND, THETA, LINK, COMMIT_HASH, views, X)
    assert [peer for peer, _ in result.selection.contributing] == [MINERS[3].id]


def test_last_words_are_what_validators_named_last_and_count_by_stake_or_heads():
    def said(round, link=LINK):
        return Slot(CLOCK.attest_by(round), POINTER, attestation_for(round, (), THETA, link))

    other = digest("other")
    here = [validator(1, 50, said(3)), validator(2, 40, said(9)), validator(3, 99, said(20, other))]
    all_three = [((THETA, LINK), 50), ((THETA, LINK), 40), ((THETA, other), 99)]
    assert last_words(RUN, -1, here) == all_three
    assert last_words(RUN, 4, here) == all_three[1:]
    assert last_words(RUN, 3, [*here, validator(4, 200, Slot(7))]) == all_three
    assert last_words(RUN, 3, [*here, replace(validator(4, 200, said(20)), validates=False)]) == all_three
    assert [weight for _, weight in last_words(RUN, 3, [replace(peer, stake=0) for peer in here])] == [1, 1, 1]
    assert last_words(RUN, 3, []) == []


def test_who_counts_is_who_spoke_lately():
    late = 20

    def counts(*peers, round=late):
        return set(electorate(RUN, round, peers))

    oldest, too_old = late - STATEMENT_ROUNDS, late - STATEMENT_ROUNDS - 1
    speaks = {said: validator(said, 1, said_before(said)) for said in (too_old, oldest, late - 1)}
    assert counts(*speaks.values()) == {speaks[oldest].id, speaks[late - 1].id}
    # When nobody has spoken for so long, whoever ever did; before anybody could, whoever has announced itself.
    here = validator(1, 1, ANNOUNCED)
    assert counts(speaks[too_old], here) == {speaks[too_old].id, here.id}
    assert counts(here, speaks[late - 1]) == {speaks[late - 1].id}
    assert counts(here, round=0) == {here.id}
    assert counts(replace(here, slot=Slot(7)), replace(here, slot=None), replace(here, validates=False)) == set()


@pytest.mark.parametrize(
    "said",
    [
        None,
        Commitment(0, digest("a miner with a permit")),
        attestation_for(0, (), THETA, first_link(digest("another run"))),
        attestation_for(1, (), THETA, LINK),
        record_for(0, [Uid(0)], THETA, LINK),
    ],
)
def test_a_permit_and_a_pointer_are_no_seat_for_whoever_has_not_announced_itself_for_this_run(said):
    """The owner of a subnet always has a permit, a miner with much alpha has one, and so has an earlier run's
    validator: none of them leads, and their silence is no vote."""
    stranger, here = validator(1, 10**15, Slot(7, POINTER, said)), validator(2, 1, ANNOUNCED)
    owner = Peer(RUN.first.owner_id, Uid(0), 10**16, True, slot=Slot(7, POINTER, amendment=RUN.id))
    for round in (0, 1, STATEMENT_ROUNDS - 1, STATEMENT_ROUNDS, 50):
        assert set(electorate(RUN, round, [stranger, owner, here])) == {here.id}
        assert leader_order(RUN, round, COMMIT_HASH, [stranger, owner, here]) == (here.id,)
        assert electorate(RUN, round, [stranger, owner]) == {}


def test_an_owner_that_has_spoken_as_a_validator_counts_like_any():
    owner = Peer(RUN.first.owner_id, Uid(0), 5, True, slot=replace(said_before(), amendment=RUN.id))
    assert electorate(RUN, ROUND, [owner, A]) == {owner.id: 5, A.id: A.stake}


def test_who_is_asked_for_copies_is_who_counts_the_most_stake_first():
    owner = Peer(RUN.first.owner_id, Uid(0), 10**16, True, slot=Slot(7, POINTER, amendment=RUN.id))
    newcomer = validator(4, 99, Slot(AFTER_SLOTS, POINTER, attest()))
    away = validator(5, 77, said_before(ROUND - STATEMENT_ROUNDS))
    silent = validator(6, 88, said_before(ROUND - STATEMENT_ROUNDS - 1))
    assert mirrors(RUN, X, [owner, C, B, away, newcomer, A, silent]) == (newcomer.id, away.id, A.id, B.id, C.id)
    assert mirrors(RUN, D, [owner, silent]) == (silent.id,)
    assert mirrors(RUN, 0, [owner, validator(7, 1, ANNOUNCED)]) == (peer_id(107),)


def test_at_the_start_of_a_run_the_first_to_speak_is_not_the_only_one_to_count():
    quiet, first = validator(1, 10**15, ANNOUNCED), validator(2, 1, said_before(0))
    for round in range(1, STATEMENT_ROUNDS):
        assert set(electorate(RUN, round, [quiet, first])) == {quiet.id, first.id}
    assert set(electorate(RUN, STATEMENT_ROUNDS, [quiet, first])) == {first.id}


def test_a_statement_for_a_round_that_had_not_come_gives_no_seat():
    early = validator(1, 1, Slot(CLOCK.start(3), POINTER, attestation_for(ROUND - 1, (), THETA, LINK)))
    future = validator(2, 1, Slot(D - 1, POINTER, attestation_for(ROUND, (), THETA, LINK)))
    assert set(electorate(RUN, ROUND, [early, future, A])) == {A.id}


def test_a_pointer_rewritten_with_the_old_statement_keeps_the_seat():
    moved = validator(1, 1, Slot(D - 1, POINTER, attestation_for(ROUND - 1, (), THETA, LINK)))
    assert set(electorate(RUN, ROUND, [moved])) == {moved.id}


def test_a_joiner_tries_the_claims_with_most_counted_stake_first_and_those_of_newcomers_last():
    rich, dust = validator(4, 10**15, Slot(7, POINTER)), validator(5, 1, Slot(8, POINTER))
    outsider = replace(validator(6, 10**16), validates=False)
    chain = Chain(A, B, C, rich, dust, outsider)
    chain.lead(chain.order.index(A.id), record())
    chain.post(B.id, AFTER_SLOTS, attest(theta=OTHER)).post(C.id, AFTER_SLOTS, attest(theta=OTHER))
    low, high = sorted((digest("one"), digest("another")))
    for peer, theta in ((rich, high), (dust, low), (outsider, digest("outsider"))):
        chain.post(peer.id, SLOTS[0][0], attest(theta=theta))

    def found(round, block):
        return claims(RUN, round, chain.at(D), chain.at(block))

    assert found(ROUND, SLOTS[0][0] - 1) == found(ROUND + 1, X) == {}
    expected = {(THETA, LINK): 60, (OTHER, LINK): 40, (high, LINK): 0, (low, LINK): 0}
    assert list(found(ROUND, X).items()) == list(expected.items())
    assert claimed_start(RUN, ROUND, chain.at(D), chain.at(X)) == tuple(expected)


def test_one_is_contradicted_by_more_than_half_of_the_counted_stake_and_by_nothing_less():
    ours, theirs = (THETA, LINK), (OTHER, LINK)
    chain = Chain(A, B, C, validator(4, 10**15, Slot(7, POINTER)))
    chain.post(B.id, AFTER_SLOTS, attest(theta=OTHER)).post(C.id, AFTER_SLOTS, attest(theta=OTHER))
    chain.post(peer_id(104), AFTER_SLOTS, attest(theta=OTHER))
    assert contradicted(RUN, ROUND, ours, chain.views) is None
    chain.post(A.id, AFTER_SLOTS, attest())
    assert contradicted(RUN, ROUND, ours, chain.views) is None
    assert contradicted(RUN, ROUND, theirs, chain.views) == ours
    chain.post(A.id, AFTER_SLOTS, attest(theta=digest("a third")))
    assert contradicted(RUN, ROUND, ours, chain.views) == (digest("a third"), LINK)
    half = Chain(validator(5, 7), validator(6, 7))
    half.post(peer_id(105), AFTER_SLOTS, attest(theta=OTHER))
    assert contradicted(RUN, ROUND, ours, half.views) is None


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


# --- properties, whatever is posted --------------------------------------------------------------------------

FORK = digest("fork")
PAIRS = [(THETA, LINK), (OTHER, LINK), (THETA, FORK)]
blocks = st.integers(D + 1, X + 3) | st.sampled_from(
    [slot[end] + more for slot in SLOTS for end in (0, 1) for more in (0, 1)]
)
statements = st.one_of(
    st.builds(
        lambda uids, pair: record(uids, *pair), st.sets(st.sampled_from([0, 1, 3, 8, 9])), st.sampled_from(PAIRS)
    ),
    st.builds(lambda slots, pair: attest(slots, *pair), st.sets(st.integers(0, 3)), st.sampled_from(PAIRS)),
    st.just(Commitment(ROUND, digest("x"))),
)
Posts = Iterable[tuple[int, int, object]]


def posts(authors: Sequence[int], most: int = 8) -> st.SearchStrategy[Posts]:
    return st.lists(st.tuples(st.sampled_from(authors), blocks, statements), max_size=most)


@st.composite
def societies(draw) -> tuple[list[Peer], int]:
    """Validators of which the first so many are honest and hold more than half of the stake."""
    stakes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    honest = next(n for n in range(1, 7) if 2 * sum(stakes[:n]) > sum(stakes) or n == len(stakes))
    honest = draw(st.integers(honest, len(stakes)))
    if not any(stakes):
        honest = draw(st.integers(len(stakes) // 2 + 1, len(stakes)))
    return [validator(place, stake) for place, stake in enumerate(stakes)], honest


def honest_words(chain: Chain, honest: Mapping[PeerId, Collection[int]], later: Collection[PeerId] = ()) -> None:
    """Honest validators after the slots: each approves the slots that it could check; `later` ones vote twice."""
    for who, slots in honest.items():
        if who in later:
            chain.post(who, SLOTS[-1][1] + 1, attest())
        chain.post(who, SLOTS[-1][1] + 2, attest(slots))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_minority_makes_anything_agreed_that_no_honest_validator_approved_or_proposed(data):
    validators, honest = data.draw(societies())
    approved = {peer.id: data.draw(st.sets(st.integers(0, 2), max_size=1)) for peer in validators[:honest]}
    chain = Chain(*validators)
    hostile = range(honest, len(validators))
    for who, block, statement in data.draw(posts(hostile)) if hostile else []:
        chain.post(validators[who].id, block, statement)
    honest_words(chain, approved)
    result = chain.agreed()
    if result.selection is not None:
        assert result.author not in approved
        assert any(result.slot in slots for slots in approved.values())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_honest_leaders_record_is_agreed_when_what_comes_before_it_is_not_approved(data):
    validators, honest = data.draw(societies())
    ids = {peer.id for peer in validators[:honest]}
    chain = Chain(*validators)
    slot = next((place for place, leader in enumerate(chain.order) if leader in ids), None)
    if slot is None:
        return
    hostile = range(honest, len(validators))
    for who, block, statement in data.draw(posts(hostile)) if hostile else []:
        chain.post(validators[who].id, block, statement)
    chain.lead(slot, record())
    later = data.draw(st.sets(st.sampled_from(sorted(ids))))
    honest_words(chain, {who: [slot] for who in ids}, later)
    result = chain.agreed()
    assert (result.slot, result.author) == (slot, chain.order[slot])
    assert contradicted(RUN, ROUND, (THETA, LINK), chain.views) is None


@settings(max_examples=300, deadline=None)
@given(posts(range(6), 16), societies(), st.randoms(use_true_random=False))
def test_all_nodes_of_one_state_decide_alike_and_in_a_round_only_one_state_has_an_agreed_record(said, society, random):
    validators, _ = society
    chain = Chain(*validators)
    for who, block, statement in said:
        chain.post(validators[who % len(validators)].id, block, statement)
    turned = Chain(*random.sample(validators, len(validators)), miners=chain.miners[::-1])
    turned.posts = chain.posts
    found = {pair: chain.agreed(ours=pair) for pair in PAIRS}
    for pair, result in found.items():
        assert turned.agreed(ours=pair) == result
        if result.selection is not None:
            names = {peer for peer, _ in result.selection.contributing}
            assert names
            assert names <= {miner.id for miner in MINERS}
            assert (result.selection.theta, result.selection.previous) == pair
            assert None not in result.void[: result.slot]
        if contradicted(RUN, ROUND, pair, chain.views) is not None:
            assert result.selection is None
    assert sum(result.selection is not None for result in found.values()) <= 1


# --- several rounds: who is away, who comes back -------------------------------------------------------------


class History:
    """Rounds after one another: who states what, and what a node of some state makes of it. Every leader posts, every
    validator that is there approves every slot."""

    def __init__(self, stakes: Mapping[str, int]) -> None:
        self.ids = {name: PeerId(digest(name)) for name in stakes}
        self.stakes = stakes
        self.slots = dict.fromkeys(stakes, ANNOUNCED)
        self.round = 0

    def peers(self) -> tuple[Peer, ...]:
        last = CLOCK.commit_by(self.round)
        slot = Slot(last, POINTER, Commitment(self.round, digest("envelope")))
        validators = (
            Peer(self.ids[name], Uid(100 + place), stake, True, slot=self.slots[name])
            for place, (name, stake) in enumerate(self.stakes.items())
        )
        return (Peer(peer_id(0), Uid(0), 0, False, slot=slot), *validators)

    def play(self, says: Mapping[str, Claim]) -> Mapping[str, Agreed]:
        """One round in which these state their pairs and the others are away; what each makes of it."""
        hash, commit, names = digest(f"D {self.round}"), self.peers(), {peer: name for name, peer in self.ids.items()}
        order = leader_order(RUN, self.round, hash, commit)
        views = []
        for place in range(CLOCK.leader_slots):
            first, _ = CLOCK.slot(self.round, place)
            leader = names[order[place]] if place < len(order) else None
            if leader in says:
                self.slots[leader] = Slot(first, POINTER, record_for(self.round, [Uid(0)], *says[leader]))
            views.append(self.peers())
        for name, pair in says.items():
            word = attestation_for(self.round, range(CLOCK.leader_slots), *pair)
            self.slots[name] = Slot(CLOCK.attest_by(self.round), POINTER, word)
        seen = Views(commit, views, self.peers())
        found = {n: agreed(RUN, self.round, *pair, hash, seen, CLOCK.attest_by(self.round)) for n, pair in says.items()}
        self.contradicted = {n: contradicted(RUN, self.round, pair, seen) for n, pair in says.items()}
        self.round += 1
        return found


def goes_on(found: Mapping[str, Agreed], name: str) -> bool:
    return found[name].selection is not None


OURS, POISON = (THETA, LINK), (OTHER, LINK)


def test_dust_that_is_alone_for_a_round_achieves_nothing_and_the_majority_goes_on_in_the_next():
    history = History({"big": 10**15, "dust": 1})
    for _ in range(2 * STATEMENT_ROUNDS):
        assert goes_on(history.play({"big": OURS, "dust": OURS}), "big")
    for away in range(1, STATEMENT_ROUNDS):
        for _ in range(away):
            assert not goes_on(history.play({"dust": POISON}), "dust")
        assert goes_on(history.play({"big": OURS, "dust": POISON}), "big")
        assert history.contradicted == {"big": None, "dust": OURS}


def test_a_majority_that_was_away_for_long_goes_on_from_its_old_state_in_the_round_after_its_return():
    history = History({"big": 10**15, "dust": 1})
    history.play({"big": OURS, "dust": OURS})
    alone = [goes_on(history.play({"dust": POISON}), "dust") for _ in range(20)]
    assert alone == [False] * STATEMENT_ROUNDS + [True] * (20 - STATEMENT_ROUNDS)
    assert goes_on(history.play({"big": OURS, "dust": POISON}), "dust")
    assert history.contradicted == {"big": POISON, "dust": None}
    for _ in range(STATEMENT_ROUNDS):
        found = history.play({"big": OURS, "dust": POISON})
        assert goes_on(found, "big")
        assert not goes_on(found, "dust")
        assert history.contradicted == {"big": None, "dust": OURS}


def test_the_death_of_one_of_two_equal_validators_costs_as_many_void_rounds_as_its_word_lasts():
    history = History({"one": 5, "two": 5})
    for _ in range(STATEMENT_ROUNDS + 1):
        assert goes_on(history.play({"one": OURS, "two": OURS}), "one")
    found = [goes_on(history.play({"one": OURS}), "one") for _ in range(STATEMENT_ROUNDS + 2)]
    assert found == [False] * STATEMENT_ROUNDS + [True] * 2


def test_of_two_equal_validators_a_hostile_one_costs_void_rounds_and_no_more():
    history = History({"one": 5, "two": 5})
    for round in range(12):
        found = history.play({"one": OURS, "two": POISON if round % 2 else (THETA, FORK)})
        assert not goes_on(found, "one")
        assert not goes_on(found, "two")


def test_three_equal_validators_go_on_without_any_one_of_them():
    for missing in range(3):
        history = History({"one": 1, "two": 1, "three": 1})
        there = [name for place, name in enumerate(history.ids) if place != missing]
        assert all(goes_on(history.play(dict.fromkeys(there, OURS)), there[0]) for _ in range(8))
