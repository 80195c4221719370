"""What votes come to, rule by rule."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.agreement import Agreed, Order, abstention, named, order_of, posts_in, refs_named, vote_by, vote_for
from murmur.protocol.messages import link_of
from murmur.protocol.run import Amendment, Run
from murmur.protocol.types import Commitment, Peer, Selection, Slot, Uid
from tests.gauntlet.agreement_scenes import (
    EQUAL,
    FORK,
    LATE,
    LINK,
    MINERS,
    NO_COMMITMENT,
    OURS,
    POISON,
    ROUND,
    A,
    B,
    C,
    D,
    X,
    decide,
    log_of,
    miner,
    say,
    selected,
    uids,
    validator,
)
from tests.gauntlet.world import POINTER, RUN, THETA, digest, make_spec, peer_id


def test_votes_and_uids_are_inverse_and_what_has_no_bit_is_refused():
    made = vote_for(ROUND, [Uid(0), Uid(255), Uid(7), Uid(7)], OURS)
    assert (named(made), made.state_ref) == ((0, 7, 255), OURS)
    assert made.bitmap == 1 | 1 << 7 | 1 << 255
    for uid in (-1, 256):
        with pytest.raises(ValueError, match="no bit"):
            vote_for(ROUND, [Uid(uid)], OURS)


def test_an_abstention_names_no_state_and_nobody():
    assert (abstention(ROUND).state_ref, named(abstention(ROUND)), abstention(ROUND).round) == (None, (), ROUND)


@pytest.mark.parametrize(("block", "counts"), [(D, False), (D + 1, True), (X, True), (X + 1, False)])
def test_a_vote_counts_from_the_block_after_d_to_x(block, counts):
    voted = replace(A, slot=Slot(block, POINTER, vote_for(ROUND, [Uid(0)], OURS)))
    assert posts_in(RUN, ROUND, [voted, *MINERS]) == ([say(A, block, 0)] if counts else [])


def test_neither_a_commitment_nor_a_vote_for_another_round_is_one_for_this():
    statements = [Commitment(ROUND, digest("x")), vote_for(ROUND - 1, [], OURS), vote_for(ROUND + 1, [], OURS), None]
    peers = [replace(A, slot=Slot(D + 1, POINTER, statement)) for statement in statements]
    assert posts_in(RUN, ROUND, [*peers, replace(A, slot=None)]) == []


# --- a vote stays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "over",
    [
        say(A, X),
        say(A, X, 1),
        say(A, X, state_ref=None),
        say(A, X, state_ref=POISON),
        say(A, X, 2, state_ref=FORK),
    ],
    ids=["nobody", "somebody else", "an abstention", "another theta", "another link"],
)
def test_what_was_named_counts_whatever_is_written_over_it(over):
    """A leader with a third of the stake could once take an approval back shortly before the vote deadline
    (docs/decisions/0058-one-word-each.md)."""
    before = [say(A, D + 5, 0), say(B, X - 1, 0)]
    assert selected(*before) == selected(*before, over) == {0}


def test_names_add_up():
    posts = [say(A, D + 1, 0), say(A, D + 2, 1), say(B, D + 1, 0, 1)]
    assert selected(*posts) == {0, 1}
    assert named(vote_by(log_of(*posts), A.id)) == (0, 1)


def test_the_first_pair_binds():
    """However often it is said, and whatever the others say: who could change sides could be asked to."""
    posts = [say(A, D + 1, 0, state_ref=POISON), say(A, D + 2, 0), say(B, D + 1, 0)]
    log = log_of(*posts)
    assert decide(log) == Agreed(None, None, X)
    assert vote_by(log, A.id) == vote_for(ROUND, [Uid(0)], POISON)
    assert selected(*posts, say(C, X, 0)) == {0}


def test_what_is_named_with_another_pair_is_not_named_with_ours():
    assert selected(say(A, D + 1, 0), say(A, D + 2, 1, state_ref=FORK), say(B, D + 1, 0, 1)) == {0}


def test_an_abstention_binds_to_nothing():
    log = log_of(say(A, D + 1, state_ref=None), say(A, D + 2, 0), say(B, D + 1, 0))
    assert uids(decide(log), log) == {0}
    assert vote_by(log, A.id) == vote_for(ROUND, [Uid(0)], OURS)


def test_what_one_has_said_so_far():
    log = log_of(say(A, D + 1, state_ref=None), say(B, D + 1, 1, state_ref=FORK), say(B, D + 3, 2, state_ref=FORK))
    assert vote_by(log, A.id) == abstention(ROUND)
    assert vote_by(log, B.id) == vote_for(ROUND, [Uid(1), Uid(2)], FORK)
    assert vote_by(log, C.id) is None
    assert vote_by(log_of(), A.id) is None


def test_pairs_are_listed_with_the_stake_behind_them_the_most_first():
    validators = [validator(1, 60), validator(2, 30), validator(3, 10), validator(4, 99, Slot(7, POINTER))]
    posts = [say(validators[0], X, state_ref=FORK), say(validators[1], X), say(validators[2], X), say(validators[3], X)]
    posts += [say(validators[2], X - 1, state_ref=None)]
    assert list(refs_named(RUN, ROUND, log_of(*posts, validators=validators)).items()) == [(FORK, 60), (OURS, 40)]
    heads = [replace(peer, stake=0) for peer in validators]
    assert refs_named(RUN, ROUND, log_of(*posts, validators=heads)) == {OURS: 2, FORK: 1}
    low, high = sorted([(digest("one"), LINK), (digest("two"), LINK)])
    tied = log_of(say(A, X, state_ref=high), say(B, X, state_ref=low))
    assert list(refs_named(RUN, ROUND, tied)) == [low, high]
    assert refs_named(RUN, ROUND, log_of()) == {}


# --- what is agreed ------------------------------------------------------------------------------------------


def test_with_one_validator_its_vote_is_what_is_agreed_and_the_chain_gives_the_digests():
    found = decide(log_of(say(A, D + 3, 0, 1), validators=[A]))
    refs = tuple(sorted((MINERS[uid].id, digest(f"e{uid}")) for uid in (0, 1)))
    selection = Selection(ROUND, THETA, LINK, RUN.id, refs)
    assert found == Agreed(OURS, selection, D + 3)
    assert found.link == link_of(selection) != LINK


def wins(stakes: Sequence[int], naming: Collection[int]) -> bool:
    """Whether somebody is selected when these validators, by place, name him."""
    validators = [validator(place, stake) for place, stake in enumerate(stakes)]
    return selected(*(say(validators[place], X, 0) for place in naming), validators=validators) == {0}


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
    """`gets_in`: whom it alone names is selected; `others_go_on`: whom all the others name is, without its vote."""
    honest = [place for place in range(len(stakes)) if place != hostile and place not in offline]
    assert wins(stakes, [hostile]) == gets_in
    assert wins(stakes, honest) == others_go_on


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sets(st.integers(0, 4)))
@settings(max_examples=100, deadline=None)
def test_more_than_half_of_the_stake_is_needed_and_enough(stakes, naming):
    weights = stakes if any(stakes) else [1] * len(stakes)
    naming = [place for place in naming if place < len(stakes)]
    assert wins(stakes, naming) == (sum(weights[place] for place in naming) > sum(weights) / 2)


def test_exactly_half_names_no_pair_and_no_peer():
    """One of the simulator's planted bugs: no seed had found it."""
    halves = [validator(number, 25) for number in range(1, 5)]
    two = [say(peer, X, 0) for peer in halves[:2]]
    assert decide(log_of(*two, validators=halves)) == Agreed(None, None, X)
    with_pair = [*two, *(say(peer, X) for peer in halves[2:])]
    assert decide(log_of(*with_pair, validators=halves)) == Agreed(OURS, None, X)
    assert selected(*with_pair, say(halves[2], X - 1, 0), validators=halves) == {0}


def test_it_is_open_until_all_have_spoken_and_decided_in_that_state():
    log = log_of(say(A, D + 2, 0), say(B, D + 4, 0), say(C, D + 9, 1))
    for final in (D - 1, D, D + 4, D + 8):
        assert decide(log, final) is None
    for final in (D + 9, X, X + 100):
        found = decide(log, final)
        assert (found.block, uids(found, log)) == (D + 9, {0})


def test_who_abstains_has_spoken_and_lends_nobody_a_majority():
    log = log_of(say(A, D + 2, 0), say(B, D + 4, 0), say(C, D + 6, state_ref=None))
    assert (decide(log).block, uids(decide(log), log)) == (D + 6, {0})
    assert decide(log_of(say(A, D + 2, 0), say(B, D + 4, state_ref=None), say(C, D + 6, state_ref=None))) == Agreed(
        None, None, X
    )


def test_it_is_decided_as_soon_as_the_first_of_the_order_have_their_majority_whoever_is_silent():
    run = replace(RUN, first=make_spec(contributors=2))
    first, second = order_of(run, ROUND, log_of()).first(range(4))
    third, last = (uid for uid in range(4) if uid not in (first, second))
    early = [say(A, D + 2, first, third), say(B, D + 4, first, third)]
    both = log_of(*early, say(A, D + 6, second), say(B, D + 7, second))
    assert decide(both, D + 6, run) is None
    found = decide(both, D + 7, run)
    assert (found.block, uids(found, both)) == (D + 7, {first, second})
    # Two others are named by most, but one that committed would go before them: he may be named yet.
    lower = log_of(*early, say(A, D + 6, last), say(B, D + 7, last))
    assert decide(lower, X - 1, run) is None
    found = decide(lower, X, run)
    assert (found.block, uids(found, lower)) == (X, set(order_of(run, ROUND, lower).first([first, third, last])))


def test_where_few_committed_it_is_decided_when_all_of_these_have_their_majority():
    log = log_of(say(A, D + 2, 0, 1), say(B, D + 4, 0, 1, 2, 3), miners=MINERS[:2])
    assert (decide(log, D + 4).block, uids(decide(log, D + 4), log)) == (D + 4, {0, 1})


def test_a_name_that_is_added_after_the_decision_changes_nothing():
    log = log_of(say(A, D + 1, 0), say(B, D + 1, 0), say(C, D + 1, 1))
    later = log_of(*log.posts, say(A, D + 2, 1), say(B, D + 2, 1))
    assert decide(later) == decide(log) == decide(log, D + 1)
    assert uids(decide(later), later) == {0}


def test_a_round_is_void_only_where_no_pair_or_nobody_is_named_by_most():
    assert decide(log_of()) == Agreed(None, None, X)
    assert decide(log_of()).link is None
    apart = log_of(say(A, D + 1, 0), say(B, D + 1, 0, state_ref=POISON), say(C, D + 1, 0, state_ref=FORK))
    assert decide(apart) == Agreed(None, None, X)
    nobody = log_of(*(say(peer, D + 1, uid) for uid, peer in enumerate(EQUAL)))
    assert decide(nobody, X - 1) is None
    assert decide(nobody) == Agreed(OURS, None, X)
    assert decide(nobody).link == LINK


@pytest.mark.parametrize("uid", [8, 9, 101, 200])
def test_nobody_is_selected_who_did_not_commit_by_d(uid):
    assert selected(*(say(peer, D + 1, uid) for peer in EQUAL)) == set()
    assert selected(*(say(peer, D + 1, uid, 0) for peer in EQUAL)) == {0}


def test_a_uid_means_who_held_it_at_block_d():
    """A uid that is recycled after the commit deadline still selects the miner that committed."""
    log = log_of(*(say(peer, X, 3) for peer in EQUAL))
    assert [peer for peer, _ in decide(log).selection.contributing] == [MINERS[3].id]


def test_a_round_that_the_owner_declares_void_is_void_from_the_stated_height_on():
    amendment = Amendment(previous=RUN.id.hex(), from_round=ROUND, void_round=ROUND, void_from_block=X + 50)
    run, log = RUN.amended([amendment]), log_of(say(A, D + 1, 0), validators=[A])
    assert decide(log, run=run, height=X + 49).selection is not None
    assert decide(log, run=run, height=X + 50) == Agreed(OURS, None, D + 1)
    assert decide(log, run=RUN, height=X + 50).selection is not None


def test_a_selection_names_the_amendments_in_force():
    other = Amendment(previous=RUN.id.hex(), from_round=ROUND + 1, changes={"gauntlet": {"contributors": 1}})
    log, places = log_of(say(A, D + 1, 0, 1), validators=[A]), []
    for run in (RUN.amended([other]), RUN.amended([other.model_copy(update={"from_round": ROUND})])):
        found = decide(log, run=run)
        assert found.selection.head == run.head_at(ROUND)
        places.append(len(found.selection.contributing))
    assert places == [2, 1]


# --- the order -----------------------------------------------------------------------------------------------


def crowd(earning: int, new: int) -> list[Peer]:
    """Miners by uid: those with incentive, the most first, then those without."""
    return [miner(uid, incentive=1000 - uid if uid < earning else 0) for uid in range(earning + new)]


@cache
def with_places(places: int) -> Run:
    return replace(RUN, first=make_spec(contributors=places))


@pytest.mark.parametrize(
    ("places", "earning", "new", "get_in"),
    [
        (8, 6, 0, (6, 0)),
        (8, 10, 0, (8, 0)),
        (16, 20, 5, (14, 2)),
        (16, 20, 1, (15, 1)),
        (8, 5, 9, (5, 3)),
        (8, 7, 9, (7, 1)),
        (8, 0, 9, (0, 8)),
        (20, 30, 30, (18, 2)),
        (7, 9, 9, (7, 0)),
        (8, 9, 9, (7, 1)),
        (1, 9, 9, (1, 0)),
        (1, 0, 9, (0, 1)),
        (8, 2, 3, (2, 3)),
    ],
)
def test_the_best_paid_go_first_and_an_eighth_of_the_places_goes_to_those_without_pay(places, earning, new, get_in):
    miners, everybody = crowd(earning, new), range(earning + new)
    order = order_of(with_places(places), ROUND, log_of(miners=miners))
    first = order.first(everybody)
    assert first[: get_in[0]] == list(range(get_in[0]))
    assert sum(uid >= earning for uid in first) == get_in[1]
    assert len(first) == len(set(first)) == sum(get_in)
    log = log_of(*(say(peer, D + 1, *everybody) for peer in EQUAL), miners=miners)
    assert uids(decide(log, run=with_places(places)), log) == set(first)


def test_equal_ones_are_ordered_by_a_hash_of_block_d_and_the_hotkey_alone():
    miners = crowd(0, 12)

    def first(name: str, peers: Sequence[Peer]) -> list[Uid]:
        return Order(with_places(4), ROUND, digest(name), peers).first(range(12))

    found = [first(str(number), miners) for number in range(60)]
    assert len({tuple(uids) for uids in found}) > 50
    assert {uid for uids in found for uid in uids} == set(range(12))
    assert first("x", miners) == first("x", miners[::-1])
    moved_on = [replace(peer, uid=Uid(11 - peer.uid), stake=7) for peer in miners]
    assert [11 - uid for uid in first("x", moved_on)] == first("x", miners)


def test_only_who_committed_has_a_place_in_the_order():
    """However well it is paid: nobody else is left out for it."""
    rich = [replace(peer, incentive=65535) for peer in (NO_COMMITMENT, LATE)]
    order = order_of(with_places(2), ROUND, log_of(miners=[*crowd(2, 0), *rich]))
    assert order.committed == {uid: (peer_id(uid), digest(f"e{uid}")) for uid in (0, 1)}
    assert order.first([0, 1, 8, 9, 200]) == [0, 1]


@pytest.mark.parametrize(
    ("places", "earning", "new"), [(1, 2, 2), (2, 3, 3), (4, 2, 5), (5, 6, 1), (8, 9, 3), (8, 8, 1), (8, 5, 5)]
)
def test_if_the_first_of_all_are_supported_it_does_not_matter_who_else_is(places, earning, new):
    """What makes an early decision final: whatever is added to it changes nothing."""
    everybody = range(earning + new)
    order = order_of(with_places(places), ROUND, log_of(miners=crowd(earning, new)))
    first = order.first(everybody)
    rest = [uid for uid in everybody if uid not in first]
    for count in range(len(rest) + 1):
        for added in combinations(rest, count):
            assert order.first({*first, *added}) == first


# --- views that differ ---------------------------------------------------------------------------------------


def test_a_peer_that_one_of_three_does_not_name_keeps_its_place_and_one_that_only_one_names_costs_nobody_else_his():
    posts = [say(A, D + 1, 0, 1), say(B, D + 1, 0, 2), say(C, D + 1, 0, 1, 3)]
    assert selected(*posts) == {0, 1}


def test_hotkeys_that_are_good_for_one_validator_only_cost_themselves_a_place_and_nobody_a_round():
    """Six hotkeys without stake that each showed their work to one validator alone once halted a run for good:
    each book doubted others (docs/decisions/0058-one-word-each.md)."""
    honest, two_faced = range(7), range(7, 13)
    miners = [miner(uid) for uid in (*honest, *two_faced)]
    posts = [
        say(peer, D + 1, *honest, *(uid for uid in two_faced if uid % 3 == place)) for place, peer in enumerate(EQUAL)
    ]
    log = log_of(*posts, miners=miners)
    found = decide(log, run=with_places(9))
    assert (found.block, uids(found, log)) == (D + 1, set(honest))


def test_two_twins_that_most_name_both_get_in():
    """Of twins a validator names one; where two name each another one of them, a third decides, or both get in: a share
    of G is lost, and nothing else."""
    twin = replace(miner(4), slot=MINERS[0].slot)
    assert selected(*(say(peer, D + 1, 0, 4) for peer in EQUAL), miners=[*MINERS, twin]) == {0, 4}
    assert selected(say(A, D + 1, 0), say(B, D + 1, 4), say(C, D + 1, 4), miners=[*MINERS, twin]) == {4}
