"""What words come to, and where the run stands: rule by rule, against a second implementation on random histories, and
what no minority can do."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from hashlib import sha256, shake_256
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gauntlet.agreement import (
    COPIES,
    MEMORY_ROUNDS,
    SEAT_ROUNDS,
    Agreed,
    Log,
    Order,
    Outcome,
    Pair,
    Post,
    Tip,
    abstention,
    agreed,
    electorate,
    last_wrote,
    mirror_order,
    mirrors,
    moved,
    named,
    order_of,
    outcome,
    pairs_named,
    posts_in,
    remembered,
    said,
    start,
    votes,
    word_for,
)
from protocol.messages import first_link, link_of
from protocol.run import Amendment, Run
from protocol.types import Commitment, Digest, Peer, PeerId, Selection, Slot, Uid, Word
from tests.gauntlet.world import COMMIT_HASH, POINTER, RUN, THETA, digest, make_spec, peer_id

CLOCK = RUN.clock
ROUND = 5
LINK = first_link(RUN.id)
D, X = CLOCK.commit_by(ROUND), CLOCK.words_by(ROUND)
OURS, POISON, FORK = (THETA, LINK), (digest("another theta"), LINK), (THETA, digest("fork"))
NOTHING = Digest(bytes(32))


def miner(uid: int, incentive: int = 0, round: int = ROUND) -> Peer:
    slot = Slot(CLOCK.commit_by(round) - 1, POINTER, Commitment(round, digest(f"e{uid}")))
    return Peer(peer_id(uid), Uid(uid), 0, False, slot=slot, incentive=incentive)


MINERS = tuple(miner(uid) for uid in range(4))
NO_COMMITMENT = Peer(peer_id(8), Uid(8), 0, False, slot=Slot(D, POINTER, Commitment(ROUND - 1, digest("old"))))
LATE = Peer(peer_id(9), Uid(9), 0, False, slot=Slot(D + 1, POINTER, Commitment(ROUND, digest("late"))))
ANNOUNCED = Slot(7, POINTER, abstention(0))
"""Of a validator that was there before the run began."""


def said_before(round: int = ROUND - 1) -> Slot:
    return Slot(CLOCK.words_by(round), POINTER, word_for(round, (), OURS))


def validator(number: int, stake: int, slot: Slot | None = None) -> Peer:
    return Peer(peer_id(100 + number), Uid(100 + number), stake, True, slot=slot or said_before())


A, B, C = EQUAL = tuple(validator(number, 1) for number in range(1, 4))


def say(who: Peer, block: int, *uids: int, pair: Pair | None = OURS) -> Post:
    """`who` names these from this block on; a pair of None abstains."""
    return Post(block, who.id, abstention(ROUND) if pair is None else word_for(ROUND, list(map(Uid, uids)), pair))


def log_of(*posts: Post, validators: Sequence[Peer] = EQUAL, miners: Sequence[Peer] | None = None) -> Log:
    peers = (*((*MINERS, NO_COMMITMENT, LATE) if miners is None else miners), *validators)
    return Log(peers, COMMIT_HASH, tuple(sorted(posts, key=lambda post: (post.block, post.peer))))


def decide(log: Log, final: int = X, run: Run = RUN, height: int = X) -> Agreed | None:
    return agreed(run, ROUND, log, final, height)


def uids(found: Agreed | None, log: Log) -> set[int]:
    """Who is selected."""
    at = {peer.id: peer.uid for peer in log.commit}
    return {at[peer] for peer, _ in found.selection.contributing} if found and found.selection else set()


def selected(*posts: Post, **given) -> set[int]:
    """Who is selected at X."""
    log = log_of(*posts, **given)
    return uids(decide(log), log)


# --- who counts ----------------------------------------------------------------------------------------------


def test_who_counts_is_who_spoke_lately():
    late = 20

    def counts(*peers, round=late):
        return set(electorate(RUN, round, peers))

    oldest, too_old = late - SEAT_ROUNDS, late - SEAT_ROUNDS - 1
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
        abstention(1),
        word_for(0, [], (NOTHING, first_link(digest("another run")))),
        word_for(0, [Uid(0)], OURS),
    ],
)
def test_a_permit_and_a_pointer_are_no_seat_for_whoever_has_not_announced_itself(said):
    """The owner of a subnet always has a permit, a miner with much alpha has one, and so has an earlier run's
    validator: their silence is no vote."""
    stranger, here = validator(1, 10**15, Slot(7, POINTER, said)), validator(2, 1, ANNOUNCED)
    owner = Peer(RUN.first.owner_id, Uid(0), 10**16, True, slot=Slot(7, POINTER, amendment=RUN.id))
    for round in (0, 1, SEAT_ROUNDS - 1, SEAT_ROUNDS, 50):
        assert set(electorate(RUN, round, [stranger, owner, here])) == {here.id}
        assert electorate(RUN, round, [stranger, owner]) == {}
    assert remembered(RUN, 1, [stranger, owner, here]).keys() == {here.id}


def test_an_owner_that_has_spoken_as_a_validator_counts_like_any():
    owner = Peer(RUN.first.owner_id, Uid(0), 5, True, slot=replace(said_before(), amendment=RUN.id))
    assert electorate(RUN, ROUND, [owner, A]) == {owner.id: 5, A.id: A.stake}


def test_an_announcement_that_comes_after_block_d_of_round_0_is_a_word_for_round_0():
    early, late = (Slot(CLOCK.commit_by(0) + more, POINTER, abstention(0)) for more in (0, 1))
    one, other = validator(1, 1, early), validator(2, 1, late)
    assert electorate(RUN, 0, [one, other]).keys() == {one.id}
    assert electorate(RUN, SEAT_ROUNDS - 1, [one, other]).keys() == {one.id, other.id}
    assert electorate(RUN, SEAT_ROUNDS, [one, other]).keys() == {other.id}


def test_at_the_start_of_a_run_the_first_to_speak_is_not_the_only_one_to_count():
    quiet, first = validator(1, 10**15, ANNOUNCED), validator(2, 1, said_before(0))
    for round in range(1, SEAT_ROUNDS):
        assert set(electorate(RUN, round, [quiet, first])) == {quiet.id, first.id}
    assert set(electorate(RUN, SEAT_ROUNDS, [quiet, first])) == {first.id}


def test_a_word_for_a_round_that_had_not_come_gives_no_seat():
    early = validator(1, 1, Slot(CLOCK.start(3), POINTER, word_for(ROUND - 1, (), OURS)))
    future = validator(2, 1, Slot(D - 1, POINTER, word_for(ROUND, (), OURS)))
    assert set(electorate(RUN, ROUND, [early, future, A])) == {A.id}


def test_a_pointer_rewritten_with_the_old_word_keeps_the_seat():
    moved_on = validator(1, 1, Slot(D - 1, POINTER, word_for(ROUND - 1, (), OURS)))
    assert set(electorate(RUN, ROUND, [moved_on])) == {moved_on.id}


def test_who_abstains_keeps_its_seat():
    away = validator(1, 5, Slot(CLOCK.words_by(ROUND - 1), POINTER, abstention(ROUND - 1)))
    assert electorate(RUN, ROUND, [away, A]) == {away.id: 5, A.id: 1}


def test_who_speaks_for_the_first_time_counts_from_the_next_round_on():
    newcomer = validator(4, 10**9, Slot(7, POINTER))
    posts = [say(newcomer, D + 1, 3), say(A, D + 1, 0), say(B, D + 1, 0)]
    assert selected(*posts, validators=[*EQUAL, newcomer]) == {0}
    spoke = replace(newcomer, slot=said_before(ROUND))
    assert electorate(RUN, ROUND + 1, [spoke, A]).keys() == {spoke.id, A.id}


def test_stake_counts_and_heads_where_nobody_has_any():
    assert votes(RUN, ROUND, [A, validator(7, 5)]) == {A.id: 1, peer_id(107): 5}
    nobody = [replace(peer, stake=0) for peer in (A, B)]
    assert electorate(RUN, ROUND, nobody) == {A.id: 0, B.id: 0}
    assert votes(RUN, ROUND, nobody) == {A.id: 1, B.id: 1}
    assert votes(RUN, ROUND, [*nobody, C]) == {A.id: 0, B.id: 0, C.id: 1}


def test_whoever_spoke_in_the_last_64_rounds_is_remembered():
    late = 100
    last, gone = (validator(number, 1, said_before(late - MEMORY_ROUNDS - number)) for number in (0, 1))
    assert remembered(RUN, late, [last, gone, replace(last, id=peer_id(7), validates=False)]) == {last.id: 1}
    assert remembered(RUN, late, [gone]) == {}
    assert remembered(RUN, MEMORY_ROUNDS - 1, [validator(1, 1, ANNOUNCED)]).keys() == {A.id}


def test_the_last_block_in_which_a_validator_or_who_has_spoken_wrote():
    assert last_wrote(MINERS) == 0
    here = [validator(1, 1, said_before(3)), validator(2, 1, said_before(9))]
    newest = max(peer.slot.block for peer in here if peer.slot is not None)
    assert newest > 0
    assert last_wrote([*here, *MINERS]) == newest, "miners commit in every round"
    assert last_wrote([replace(peer, validates=False) for peer in here]) == newest, "it had its permit then"
    slot = Slot(newest + 5, None, None)
    assert last_wrote([*here, replace(here[0], slot=slot)]) == newest + 5, "a word may have stood there before"


# --- the word ------------------------------------------------------------------------------------------------


def test_words_and_uids_are_inverse_and_what_has_no_bit_is_refused():
    made = word_for(ROUND, [Uid(0), Uid(255), Uid(7), Uid(7)], OURS)
    assert (named(made), made.pair) == ((0, 7, 255), OURS)
    assert made.bitmap == 1 | 1 << 7 | 1 << 255
    for uid in (-1, 256):
        with pytest.raises(ValueError, match="no bit"):
            word_for(ROUND, [Uid(uid)], OURS)


def test_an_abstention_names_no_state_and_nobody():
    assert (abstention(ROUND).pair, named(abstention(ROUND)), abstention(ROUND).round) == (None, (), ROUND)


@pytest.mark.parametrize(("block", "counts"), [(D, False), (D + 1, True), (X, True), (X + 1, False)])
def test_a_word_counts_from_the_block_after_d_to_x(block, counts):
    spoke = replace(A, slot=Slot(block, POINTER, word_for(ROUND, [Uid(0)], OURS)))
    assert posts_in(RUN, ROUND, [spoke, *MINERS]) == ([say(A, block, 0)] if counts else [])


def test_neither_a_commitment_nor_a_word_for_another_round_is_one_for_this():
    statements = [Commitment(ROUND, digest("x")), word_for(ROUND - 1, [], OURS), word_for(ROUND + 1, [], OURS), None]
    peers = [replace(A, slot=Slot(D + 1, POINTER, statement)) for statement in statements]
    assert posts_in(RUN, ROUND, [*peers, replace(A, slot=None)]) == []


# --- a word stays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "over",
    [
        say(A, X),
        say(A, X, 1),
        say(A, X, pair=None),
        say(A, X, pair=POISON),
        say(A, X, 2, pair=FORK),
    ],
    ids=["nobody", "somebody else", "an abstention", "another theta", "another link"],
)
def test_what_was_named_counts_whatever_is_written_over_it(over):
    """A leader with a third of the stake could once take an approval back shortly before X
    (docs/decisions/0058-one-word-each.md)."""
    before = [say(A, D + 5, 0), say(B, X - 1, 0)]
    assert selected(*before) == selected(*before, over) == {0}


def test_names_add_up():
    posts = [say(A, D + 1, 0), say(A, D + 2, 1), say(B, D + 1, 0, 1)]
    assert selected(*posts) == {0, 1}
    assert named(said(log_of(*posts), A.id)) == (0, 1)


def test_the_first_pair_binds():
    """However often it is said, and whatever the others say: who could change sides could be asked to."""
    posts = [say(A, D + 1, 0, pair=POISON), say(A, D + 2, 0), say(B, D + 1, 0)]
    log = log_of(*posts)
    assert decide(log) == Agreed(None, None, X)
    assert said(log, A.id) == word_for(ROUND, [Uid(0)], POISON)
    assert selected(*posts, say(C, X, 0)) == {0}


def test_what_is_named_with_another_pair_is_not_named_with_ours():
    assert selected(say(A, D + 1, 0), say(A, D + 2, 1, pair=FORK), say(B, D + 1, 0, 1)) == {0}


def test_an_abstention_binds_to_nothing():
    log = log_of(say(A, D + 1, pair=None), say(A, D + 2, 0), say(B, D + 1, 0))
    assert uids(decide(log), log) == {0}
    assert said(log, A.id) == word_for(ROUND, [Uid(0)], OURS)


def test_what_one_has_said_so_far():
    log = log_of(say(A, D + 1, pair=None), say(B, D + 1, 1, pair=FORK), say(B, D + 3, 2, pair=FORK))
    assert said(log, A.id) == abstention(ROUND)
    assert said(log, B.id) == word_for(ROUND, [Uid(1), Uid(2)], FORK)
    assert said(log, C.id) is None
    assert said(log_of(), A.id) is None


def test_pairs_are_listed_with_the_stake_behind_them_the_most_first():
    validators = [validator(1, 60), validator(2, 30), validator(3, 10), validator(4, 99, Slot(7, POINTER))]
    posts = [say(validators[0], X, pair=FORK), say(validators[1], X), say(validators[2], X), say(validators[3], X)]
    posts += [say(validators[2], X - 1, pair=None)]
    assert list(pairs_named(RUN, ROUND, log_of(*posts, validators=validators)).items()) == [(FORK, 60), (OURS, 40)]
    heads = [replace(peer, stake=0) for peer in validators]
    assert pairs_named(RUN, ROUND, log_of(*posts, validators=heads)) == {OURS: 2, FORK: 1}
    low, high = sorted([(digest("one"), LINK), (digest("two"), LINK)])
    tied = log_of(say(A, X, pair=high), say(B, X, pair=low))
    assert list(pairs_named(RUN, ROUND, tied)) == [low, high]
    assert pairs_named(RUN, ROUND, log_of()) == {}


# --- what is agreed ------------------------------------------------------------------------------------------


def test_with_one_validator_its_word_is_what_is_agreed_and_the_chain_gives_the_digests():
    found = decide(log_of(say(A, D + 3, 0, 1), validators=[A]))
    pairs = tuple(sorted((MINERS[uid].id, digest(f"e{uid}")) for uid in (0, 1)))
    selection = Selection(ROUND, THETA, LINK, RUN.id, pairs)
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
    """`gets_in`: whom it alone names is selected; `others_go_on`: whom all the others name is, without its word."""
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
    log = log_of(say(A, D + 2, 0), say(B, D + 4, 0), say(C, D + 6, pair=None))
    assert (decide(log).block, uids(decide(log), log)) == (D + 6, {0})
    assert decide(log_of(say(A, D + 2, 0), say(B, D + 4, pair=None), say(C, D + 6, pair=None))) == Agreed(None, None, X)


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
    apart = log_of(say(A, D + 1, 0), say(B, D + 1, 0, pair=POISON), say(C, D + 1, 0, pair=FORK))
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
    """A uid that is recycled after D still selects the miner that committed."""
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


# --- copies --------------------------------------------------------------------------------------------------


def test_who_is_asked_for_copies_is_who_counts_the_most_stake_first():
    one, two, three = validator(1, 60), validator(2, 30), validator(3, 10)
    owner = Peer(RUN.first.owner_id, Uid(0), 10**16, True, slot=Slot(7, POINTER, amendment=RUN.id))
    newcomer = validator(4, 99, Slot(X - 9, POINTER, word_for(ROUND, (), OURS)))
    away = validator(5, 77, said_before(ROUND - SEAT_ROUNDS))
    silent = validator(6, 88, said_before(ROUND - SEAT_ROUNDS - 1))
    peers = [owner, three, two, away, newcomer, one, silent]
    assert mirrors(RUN, X, peers) == (newcomer.id, away.id, one.id, two.id, three.id)
    assert mirrors(RUN, D, [owner, silent]) == (silent.id,)
    assert mirrors(RUN, 0, [owner, validator(7, 1, ANNOUNCED)]) == (peer_id(107),)


def test_each_payload_is_copied_by_two_that_count_drawn_for_it_alone():
    away = validator(9, 10**9, said_before(ROUND - SEAT_ROUNDS - 1))
    named_ones = [peer_id(number) for number in range(40)]
    order = mirror_order(RUN, ROUND, COMMIT_HASH, [*EQUAL, away, *MINERS], named_ones)
    assert list(order) == named_ones
    assert all(sorted(theirs) == sorted(peer.id for peer in EQUAL) for theirs in order.values())
    copies = Counter(mirror for theirs in order.values() for mirror in theirs[:COPIES])
    assert all(15 < copies[peer.id] < 40 for peer in EQUAL)


# --- several rounds: where the run stands --------------------------------------------------------------------


class Chain:
    """Slots and who holds them, as of any block. Nobody comes or goes."""

    def __init__(self, run: Run, peers: Iterable[Peer]) -> None:
        self.run, self.peers = run, list(peers)
        self.slots = {peer.id: [(-1, peer.slot)] for peer in self.peers}
        """Of each hotkey what it wrote, with the block, the first first."""
        self.stakes: dict[int, dict[PeerId, int]] = {}
        """From the start of a round on."""

    def write(self, peer: PeerId, block: int, statement: Commitment | Word) -> None:
        assert block > self.slots[peer][-1][0], "one hotkey's writes come one after the other"
        self.slots[peer].append((block, Slot(block, POINTER, statement)))

    def at(self, block: int) -> list[Peer]:
        round = self.run.clock.round_at(block)
        stakes = next((self.stakes[r] for r in range(round, -1, -1) if r in self.stakes), {})
        found = []
        for peer in self.peers:
            written = self.slots[peer.id]
            slot = written[bisect_right(written, block, key=lambda item: item[0]) - 1][1]
            found.append(replace(peer, slot=slot, stake=stakes.get(peer.id, peer.stake)))
        return found

    def log(self, round: int) -> Log:
        """The round's log, from the states of all its blocks."""
        first, last = self.run.clock.commit_by(round), self.run.clock.words_by(round)
        blocks = {block for written in self.slots.values() for block, _ in written if first < block <= last}
        posts = {post for block in blocks for post in posts_in(self.run, round, self.at(block))}
        return Log(self.at(first), commit_hash(round), tuple(sorted(posts, key=lambda post: (post.block, post.peer))))


def commit_hash(round: int) -> Digest:
    return digest(f"D {round}")


class History:
    """Rounds after one another: who says what, and where the run stands after each."""

    def __init__(self, stakes: Mapping[str, int]) -> None:
        self.ids = {name: PeerId(digest(name)) for name in stakes}
        here = [
            Peer(self.ids[name], Uid(100 + place), stake, True, slot=ANNOUNCED)
            for place, (name, stake) in enumerate(stakes.items())
        ]
        self.chain = Chain(RUN, [replace(miner(0), slot=None), *here])
        self.round, self.tip = 0, start(RUN)

    @property
    def pair(self) -> Pair:
        """What an honest node that is where the run stands names."""
        return self.tip.theta or digest(f"what follows from {self.tip.link.hex()}"), self.tip.link

    def play(self, says: Mapping[str, Pair | None]) -> Outcome:
        """One round in which these name their pairs and miner 0, or abstain, and the others are away."""
        clock, round = RUN.clock, self.round
        self.chain.write(peer_id(0), clock.commit_by(round), Commitment(round, digest(f"envelope {round}")))
        for name, pair in says.items():
            word = abstention(round) if pair is None else word_for(round, [Uid(0)], pair)
            self.chain.write(self.ids[name], clock.words_by(round), word)
        found = outcome(RUN, round, self.chain.log(round), clock.words_by(round))
        self.tip, self.round = moved(self.tip, round, found), round + 1
        return found

    def goes_on(self, says: Mapping[str, Pair | None]) -> bool:
        """Whether the run moves on in a round in which they say this."""
        link = self.tip.link
        self.play(says)
        return self.tip.link != link


def test_a_run_begins_at_the_state_that_its_spec_names_and_moves_on_with_every_selection():
    history = History({"one": 1})
    assert history.tip == start(RUN) == Tip(0, LINK)
    for round in range(3):
        pair, found = history.pair, history.play({"one": history.pair})
        assert (found.agreed.pair, found.strong) == (pair, True)
        assert history.tip == Tip(round + 1, link_of(found.agreed.selection))


def test_dust_that_is_alone_for_a_few_rounds_achieves_nothing_and_the_majority_goes_on_in_the_next():
    history = History({"big": 10**15, "dust": 1})
    assert all(history.goes_on(dict.fromkeys(("big", "dust"), history.pair)) for _ in range(2 * SEAT_ROUNDS))
    for away in range(1, SEAT_ROUNDS):
        before = history.tip
        assert not any(history.goes_on({"dust": (digest("poison"), before.link)}) for _ in range(away))
        assert history.tip == replace(before, round=history.round)
        assert history.goes_on({"big": history.pair, "dust": (digest("poison"), before.link)})


def test_the_dust_that_a_majority_left_alone_for_long_goes_on_and_the_majoritys_return_decides():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.pair))
    ours = history.pair
    alone = [history.goes_on({"dust": (digest("poison"), history.tip.link)}) for _ in range(20)]
    assert alone == [False] * SEAT_ROUNDS + [True] * (20 - SEAT_ROUNDS)
    # It says what it held when it left. In its first round it has no seat yet.
    assert not history.play({"big": ours, "dust": history.pair}).strong
    found = history.play({"big": ours, "dust": history.pair})
    assert (found.agreed.pair, found.strong) == (ours, True)
    assert history.tip.link == link_of(found.agreed.selection)
    for _ in range(SEAT_ROUNDS):
        assert history.goes_on({"big": history.pair, "dust": (digest("poison"), history.tip.link)})


def test_a_majority_that_abstains_lends_the_dust_nothing_however_long():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.pair))
    assert not any(history.goes_on({"big": None, "dust": history.pair}) for _ in range(4 * SEAT_ROUNDS))
    assert history.goes_on({"big": history.pair})


def test_a_minority_that_does_not_go_on_from_where_the_run_stands_moves_it_nowhere():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.pair))
    history.play({"big": history.pair})
    link, history.tip = history.tip.link, replace(history.tip, theta=digest("named"))
    for pair in (FORK, (digest("poison"), link), (digest("named"), LINK)):
        for _ in range(2 * SEAT_ROUNDS):
            history.play({"dust": pair})
            assert history.tip == Tip(history.round, link, digest("named"))
    assert history.goes_on({"dust": (digest("named"), link)})


def test_what_most_name_in_a_void_round_settles_the_theta_that_the_run_stands_at():
    history = History({"big": 10**15, "dust": 1})
    pair = history.pair
    log = history.chain.log(0)
    word = word_for(0, [], pair)
    posts = (Post(RUN.clock.words_by(0), history.ids["big"], word),)
    found = outcome(RUN, 0, replace(log, posts=posts), RUN.clock.words_by(0))
    assert found == Outcome(Agreed(pair, None, RUN.clock.words_by(0)), True)
    assert moved(history.tip, 0, found) == Tip(1, pair[1], pair[0])


def test_a_round_that_the_owner_voids_leaves_the_run_at_the_pair_that_was_named_in_it():
    amendment = Amendment(previous=RUN.id.hex(), from_round=ROUND, void_round=ROUND, void_from_block=X + 50)
    run, log = RUN.amended([amendment]), log_of(say(A, D + 1, 0), validators=[A])
    taken, void = (moved(Tip(ROUND, LINK), ROUND, outcome(run, ROUND, log, height)) for height in (X, X + 50))
    assert taken.link != LINK
    assert void == Tip(ROUND + 1, *reversed(OURS))


def test_after_64_rounds_whoever_is_left_settles_where_the_run_stands():
    history = History({"big": 10**15, "dust": 1})
    history.play(dict.fromkeys(("big", "dust"), history.pair))
    strong = [history.play({"dust": history.pair}).strong for _ in range(MEMORY_ROUNDS + 3)]
    assert strong == [False] * MEMORY_ROUNDS + [True] * 3


def test_who_comes_back_settles_nothing_before_it_counts_and_takes_nobodys_place():
    """In its first round back a majority has no seat, but all who spoke lately are asked whether the others' pair is
    more than a minority's."""
    history = History({"big": 10, "one": 1, "two": 1})
    history.play(dict.fromkeys(("big", "one", "two"), history.pair))
    for _ in range(2 * SEAT_ROUNDS):
        assert not history.play(dict.fromkeys(("one", "two"), history.pair)).strong
    found = history.play(dict.fromkeys(("big", "one", "two"), history.pair))
    assert found.agreed.selection is not None
    assert found.strong


def test_the_death_of_one_of_two_equal_validators_costs_as_many_void_rounds_as_its_seat_lasts():
    history = History({"one": 5, "two": 5})
    for _ in range(SEAT_ROUNDS + 1):
        assert history.goes_on(dict.fromkeys(("one", "two"), history.pair))
    assert [history.goes_on({"one": history.pair}) for _ in range(SEAT_ROUNDS + 2)] == [False] * SEAT_ROUNDS + [
        True
    ] * 2


def test_of_two_equal_validators_a_hostile_one_costs_void_rounds_and_no_more():
    history = History({"one": 5, "two": 5})
    before = history.tip
    for round in range(12):
        assert not history.goes_on({"one": history.pair, "two": POISON if round % 2 else FORK})
    assert history.tip == replace(before, round=12)


def test_three_equal_validators_go_on_without_any_one_of_them():
    for missing in range(3):
        history = History({"one": 1, "two": 1, "three": 1})
        there = [name for place, name in enumerate(history.ids) if place != missing]
        assert all(history.goes_on(dict.fromkeys(there, history.pair)) for _ in range(8))


# --- a second implementation ---------------------------------------------------------------------------------
# Of lists and loops, from the rules as written; nothing is shared but the values.

Voters = Sequence[tuple[PeerId, Fraction]]
Runner = tuple[Peer, Digest]


def plain_block(run: Run, round: int, offset: int) -> int:
    return run.first.clock.start_block + round * run.first.clock.round_blocks + offset


def plain_last_word(run: Run, peer: Peer) -> int | None:
    """The round that the word in a slot is for, -1 for an announcement."""
    if not peer.validates or peer.slot is None or not isinstance(peer.slot.statement, Word):
        return None
    word = peer.slot.statement
    if plain_block(run, word.round, run.first.clock.commit) < peer.slot.block:
        return word.round
    empty = word.bitmap == 0 and bytes(word.theta) + bytes(word.previous) == bytes(64)
    return -1 if empty and word.round == 0 else None


def plain_voters(
    run: Run, round: int, peers: Sequence[Peer], rounds: int, *, ever: bool
) -> list[tuple[PeerId, Fraction]]:
    """Who spoke in the last so many rounds with his share; all who ever did if nobody did, where `ever`."""
    spoke = []
    for peer in peers:
        at = plain_last_word(run, peer)
        if at is not None and at < round:
            spoke.append((peer, at))
    lately = [peer for peer, at in spoke if round - at <= rounds]
    if not lately and ever:
        lately = [peer for peer, _ in spoke]
    total = 0
    for peer in lately:
        total += peer.stake
    if total == 0:
        return [(peer.id, Fraction(1, len(lately))) for peer in lately]
    return [(peer.id, Fraction(peer.stake, total)) for peer in lately]


def plain_words(posts: Sequence[Post], peer: PeerId, until: int) -> tuple[bool, Pair | None, list[int]]:
    """Whether a hotkey has spoken by a block, the pair that binds it, and the uids that it has named with that."""
    spoke, pair, names = False, None, []
    for post in posts:
        if post.peer != peer or post.block > until:
            continue
        spoke = True
        theirs = post.word.theta, post.word.previous
        if theirs == (bytes(32), bytes(32)):
            continue
        if pair is None:
            pair = theirs
        if theirs == pair:
            names += plain_bits(post.word.bitmap)
    return spoke, pair, names


@cache
def plain_bits(bitmap: int) -> list[int]:
    return [place for place, bit in enumerate(reversed(f"{bitmap:b}")) if bit == "1"]


def plain_runners(run: Run, round: int, log: Log) -> list[Runner]:
    """Who committed by D, the best first."""
    left = []
    for peer in log.commit:
        slot = peer.slot
        if slot is None or slot.block > plain_block(run, round, run.first.clock.commit):
            continue
        if isinstance(slot.statement, Commitment) and slot.statement.round == round:
            left.append((peer, slot.statement.envelope))
    found = []
    while left:
        best = left[0]
        for other in left[1:]:
            if plain_is_before(other[0], best[0], log.commit_hash):
                best = other
        left.remove(best)
        found.append(best)
    return found


def plain_is_before(one: Peer, other: Peer, hash: Digest) -> bool:
    if one.incentive != other.incentive:
        return one.incentive > other.incentive
    lots = [int.from_bytes(shake_256(b"order" + hash + peer.id).digest(8), "little") for peer in (one, other)]
    return lots[0] < lots[1] if lots[0] != lots[1] else one.id < other.id


def plain_places(run: Run, round: int, runners: Sequence[Runner]) -> list[Runner]:
    """Those that contribute of these, who stand in their order: so many places are held back for whoever has no
    incentive as there are of him, an eighth at most; the others go to the first; what they leave, to the rest."""
    places = run.spec_at(round).gauntlet.contributors
    new = [runner for runner in runners if runner[0].incentive == 0]
    held_back = min(len(new), places // 8)
    taken = []
    for runner in runners:
        if runner[0].incentive > 0 and len(taken) < places - held_back:
            taken.append(runner)
    for runner in new:
        if len(taken) < places:
            taken.append(runner)
    return taken


def plain_majority(voters: Voters, backing: Collection[PeerId]) -> bool:
    share = Fraction(0)
    for peer, theirs in voters:
        if peer in backing:
            share += theirs
    return share > Fraction(1, 2)


def plain_pair(voters: Voters, posts: Sequence[Post], until: int) -> Pair | None:
    """What more than half of these name."""
    for candidate in {(post.word.theta, post.word.previous) for post in posts}:
        if candidate == (bytes(32), bytes(32)):
            continue
        if plain_majority(voters, [peer for peer, _ in voters if plain_words(posts, peer, until)[1] == candidate]):
            return candidate
    return None


def plain_supported(
    voters: Voters, runners: Sequence[Runner], posts: Sequence[Post], pair: Pair | None, until: int
) -> list[Runner]:
    """Whom more than half have named with this pair by a block, in their order."""
    heard = [(peer, plain_words(posts, peer, until)) for peer, _ in voters]
    found = []
    for runner in runners:
        names = [peer for peer, (_, theirs, uids) in heard if theirs == pair and runner[0].uid in uids]
        if pair is not None and plain_majority(voters, names):
            found.append(runner)
    return found


def plain_agreed(run: Run, round: int, log: Log, final: int, height: int) -> Agreed | None:
    """`agreed`, block by block, each from the beginning."""
    voters = plain_voters(run, round, log.commit, 4, ever=True)
    runners = plain_runners(run, round, log)
    last = plain_block(run, round, run.first.clock.words)
    pair, supported, block = None, [], last
    for block in range(plain_block(run, round, run.first.clock.commit) + 1, min(final, last) + 1):
        pair = plain_pair(voters, log.posts, block)
        supported = plain_supported(voters, runners, log.posts, pair, block)
        if not supported:
            continue
        if all(plain_words(log.posts, peer, block)[0] for peer, _ in voters):
            break
        if all(runner in supported for runner in plain_places(run, round, runners)):
            break
    else:
        if final < last:
            return None
    void = any(a.void_round == round and a.void_from_block <= height for a in run.amendments)
    if pair is None or not supported or void:
        return Agreed(pair, None, block)
    contributing = sorted((peer.id, envelope) for peer, envelope in plain_places(run, round, supported))
    head = run.id
    for amendment in run.amendments:
        if amendment.from_round <= round:
            head = amendment.digest
    return Agreed(pair, Selection(round, *pair, head, tuple(contributing)), block)


def plain_tip(run: Run, logs: Sequence[Log]) -> tuple[Digest, Digest | None]:
    """(link, theta) where the run stands after these rounds, the first first; theta None until somebody has named what
    follows from the last selection."""
    link, theta = Digest(sha256(b"murmuration genesis" + run.id).digest()), None
    for round, log in enumerate(logs):
        last = plain_block(run, round, run.first.clock.words)
        most = plain_pair(plain_voters(run, round, log.commit, 4, ever=True), log.posts, last)
        if most is None:
            continue
        of_all = plain_pair(plain_voters(run, round, log.commit, 64, ever=False), log.posts, last)
        if most == of_all or (most[1] == link and (theta is None or theta == most[0])):
            selection = plain_agreed(run, round, log, last, last).selection
            if selection is None:
                theta, link = most
            else:
                theta, link = None, plain_link(selection)
    return link, theta


def plain_link(selection: Selection) -> Digest:
    data = selection.round.to_bytes(4, "little") + selection.theta + selection.previous + selection.head
    for peer, envelope in selection.contributing:
        data += peer + envelope
    return Digest(sha256(data).digest())


# --- random histories ----------------------------------------------------------------------------------------


@cache
def random_runs() -> list[Run]:
    """Few places, and amendments that change them or declare rounds void."""
    runs = []
    for places in (1, 2, 3, 5, 8, 16):
        run = Run(make_spec(contributors=places))
        void = {"void_round": ROUND, "void_from_block": X + 50}
        fewer = {"changes": {"gauntlet": {"contributors": max(1, places - 2)}}}
        for of_first, of_second in ((void, {}), (fewer, void), ({}, {})):
            first = Amendment(previous=run.id.hex(), from_round=ROUND, **of_first)
            second = Amendment(previous=first.digest.hex(), from_round=ROUND + 1, **of_second)
            runs.append(run.amended([first, second]) if of_first else run)
    return runs


PAIRS = [OURS, POISON, FORK]
STAKES = [
    lambda random, count: [1] * count,
    lambda random, count: [0] * count,
    lambda random, count: [random.randint(0, 9) for _ in range(count)],
    lambda random, count: [2 ** random.randint(0, 3) for _ in range(count)],
    lambda random, count: [random.choice([1, 10**18]) for _ in range(count)],
]


def random_seat(random: Random, round: int) -> Slot | None:
    """A validator's slot as of D: mostly of one that counts."""
    clock = CLOCK
    before = round - random.choice([1, 1, 1, 1, 2, 4, 5, 64, 65])
    if random.random() < 0.75 and before >= 0:
        block = clock.words_by(before) - random.choice([0, 5, 39])
        return Slot(block, POINTER, random.choice([word_for(before, (), random.choice(PAIRS)), abstention(before)]))
    return random.choice(
        [
            None,
            Slot(7, POINTER),
            ANNOUNCED,
            Slot(clock.commit_by(0), POINTER, abstention(0)),
            Slot(7, POINTER, word_for(0, [], OURS)),
            Slot(clock.commit_by(round), POINTER, Commitment(round, digest("v"))),
            Slot(clock.commit_by(round) - 3, POINTER, word_for(round, [], OURS)),
            Slot(clock.words_by(round - 1), POINTER, word_for(round - 1, [], OURS)) if round else ANNOUNCED,
        ]
    )


def random_case(seed: int) -> tuple[Run, int, Log]:
    """A round in which validators, some hostile, and strangers say what they like."""
    random = Random(seed)
    run, round = random.choice(random_runs()), random.choice([0, 1, ROUND, ROUND, ROUND, ROUND + 1, 70])
    count, commit_by, words_by = random.randint(1, 6), CLOCK.commit_by(round), CLOCK.words_by(round)
    stakes = random.choice(STAKES)(random, count)
    places = random.sample(range(32), 32)
    validators = [
        Peer(peer_id(100 + number), Uid(places.pop()), stake, random.random() < 0.9, slot=random_seat(random, round))
        for number, stake in enumerate(stakes)
    ]
    miners = []
    for number in range(random.randint(0, random.choice([2, 8, 24]))):
        said = Commitment(round if random.random() < 0.9 else round + 1, digest(f"e{number}"))
        slot = Slot(commit_by + (random.random() < 0.1), POINTER, said) if random.random() < 0.9 else None
        incentive = random.choice([0, 0, 0, 5, 5, 7, 65535])
        miners.append(
            Peer(peer_id(number), Uid(places.pop()), random.randint(0, 5), False, slot=slot, incentive=incentive)
        )
    peers = [*validators, *miners]
    random.shuffle(peers)
    good = [peer.uid for peer in peers if random.random() < 0.7]
    blocks = [*sorted(random.sample(range(commit_by + 1, words_by + 1), 6)), words_by]
    quiet = random.random() < 0.3
    posts = []
    strangers = [peer_id(999), *(peer.id for peer in miners[:1])]
    for peer in [*(peer.id for peer in validators), *strangers]:
        usual = random.choice(PAIRS[:1] * 8 + PAIRS)
        for block in random.sample(blocks, random.choice([0, 0, 1, 2] if quiet else [0, 1, 1, 1, 2, 2, 3, 4])):
            pair = usual if random.random() < 0.8 else random.choice([*PAIRS, None])
            names = [uid for uid in good if random.random() < 0.85]
            names += [Uid(uid) for uid in range(34) if random.random() < 0.05]
            word = abstention(round) if pair is None else word_for(round, names, pair)
            posts.append(Post(block, peer, word))
    posts = {(post.block, post.peer): post for post in posts}
    return run, round, Log(peers, commit_hash(seed), tuple(posts[at] for at in sorted(posts)))


def kind_of(found: Agreed | None, log: Log, run: Run, round: int) -> str:
    if found is None:
        return "open"
    if found.pair is None:
        return "no pair"
    if found.selection is None:
        return "nobody"
    seated = set(electorate(run, round, log.commit))
    silent = seated - {post.peer for post in log.posts if post.block <= found.block}
    early = found.block < run.clock.words_by(round)
    kind = ("early, by all" if not silent else "early, by the order") if early else "at X"
    return f"{kind}, cut" if len(found.selection.contributing) == run.spec_at(round).gauntlet.contributors else kind


def test_a_second_implementation_agrees_on_thousands_of_random_rounds():
    kinds = Counter()
    for seed in range(3000):
        run, round, log = random_case(seed)
        random, last = Random(-seed), run.clock.words_by(round)
        final = random.choice([last, last, random.randint(last - 41, last), last + 1])
        height = final + random.choice([0, 60])
        found = agreed(run, round, log, final, height)
        assert found == plain_agreed(run, round, log, final, height), seed
        kinds[kind_of(found, log, run, round)] += 1
    # So the histories are worth something.
    assert len(kinds) == 9, kinds
    assert min(kinds.values()) > 20, kinds


def test_a_second_implementation_knows_the_same_electorate_in_thousands_of_random_states():
    for seed in range(1500):
        run, round, log = random_case(seed)
        voters = dict(plain_voters(run, round, log.commit, 4, ever=True))
        found = votes(run, round, log.commit)
        assert {peer: Fraction(stake, sum(found.values())) for peer, stake in found.items()} == voters, seed
        lately = {peer for peer, _ in plain_voters(run, round, log.commit, 64, ever=False)}
        assert remembered(run, round, log.commit).keys() == lately, seed


def test_a_second_implementation_gives_the_places_to_the_same_of_thousands_of_random_crowds():
    between = 0
    for seed in range(3000):
        random = Random(seed)
        run = random.choice(random_runs())
        incentives = [random.choice([0, 0, 3, 3, 7, 65535]) for _ in range(random.randint(0, 24))]
        log = log_of(miners=[miner(uid, incentive) for uid, incentive in enumerate(incentives)])
        runners = [one for one in plain_runners(run, ROUND, log) if random.random() < 0.8]
        found = order_of(run, ROUND, log).first({peer.uid for peer, _ in runners})
        expected = plain_places(run, ROUND, runners)
        assert sorted(found) == sorted(peer.uid for peer, _ in expected), seed
        between += [runners.index(one) for one in expected] != list(range(len(expected)))
    assert between > 100, "newcomers that go before the paid"


def random_history(seed: int) -> tuple[list[Log], list[Tip]]:
    """Rounds of validators that come and go for some rounds or many, follow where the run stands, or lie; the logs, and
    where the run stood after each."""
    random = Random(seed)
    count = random.randint(1, 5)
    stakes = random.choice(STAKES)(random, count)
    validators = [Peer(peer_id(100 + n), Uid(100 + n), stake, True, slot=ANNOUNCED) for n, stake in enumerate(stakes)]
    chain = Chain(RUN, [replace(miner(0), slot=None), *validators])
    back, hostile = dict.fromkeys(range(count), 0), {n for n in range(count) if random.random() < 0.3}
    tip, links, logs, tips = start(RUN), [LINK], [], []
    for round in range(random.choice([20, 20, 20, 90])):
        clock = RUN.clock
        if random.random() < 0.8:
            chain.write(peer_id(0), clock.commit_by(round) - 1, Commitment(round, digest(f"envelope {round}")))
        if random.random() < 0.05:
            chain.stakes[round] = dict(
                zip((peer.id for peer in validators), random.choice(STAKES)(random, count), strict=True)
            )
        for number, peer in enumerate(validators):
            if round < back[number]:
                continue
            if random.random() < 0.1:
                back[number] = round + random.choice([1, 2, 5, 6, 70])
                continue
            block = clock.commit_by(round) + random.randint(1, 10)
            for _ in range(random.choice([1, 1, 2, 3]) if number in hostile else 1):
                honest = tip.theta or digest(f"after {tip.link.hex()}"), tip.link
                lies = [(digest("poison"), tip.link), (digest("after"), random.choice(links)), None, honest]
                pair = random.choice(lies) if number in hostile else random.choice([honest] * 9 + [None])
                uids = [Uid(0)] if random.random() < 0.9 else []
                chain.write(peer.id, block, abstention(round) if pair is None else word_for(round, uids, pair))
                block += random.randint(1, 9)
        logs.append(chain.log(round))
        tip = moved(tip, round, outcome(RUN, round, logs[-1], clock.words_by(round)))
        tips.append(tip)
        links.append(tip.link)
    return logs, tips


def test_a_second_implementation_knows_where_the_run_stands_in_hundreds_of_random_histories():
    strong = Counter()
    for seed in range(200):
        logs, tips = random_history(seed)
        for round in (len(logs) // 2, len(logs)):
            assert (round, *plain_tip(RUN, logs[:round])) == (
                tips[round - 1].round,
                tips[round - 1].link,
                tips[round - 1].theta,
            ), seed
        for round, log in enumerate(logs):
            found = outcome(RUN, round, log, RUN.clock.words_by(round))
            strong[found.agreed.pair is not None, found.strong] += 1
    assert set(strong) == {(True, True), (True, False), (False, False)}
    assert min(strong.values()) > 100, strong


def test_where_the_run_stands_follows_from_the_newest_strong_round_alone():
    """So that it can be read back from the end, and a joiner needs no more."""
    for seed in range(200, 260):
        logs, tips = random_history(seed)
        outcomes = [outcome(RUN, round, log, RUN.clock.words_by(round)) for round, log in enumerate(logs)]
        strong = max((round for round, found in enumerate(outcomes) if found.strong), default=None)
        if strong is None:
            continue
        tip = Tip(strong, digest("wherever"), digest("whatever"))
        for round in range(strong, len(outcomes)):
            tip = moved(tip, round, outcomes[round])
        assert tip == tips[-1], seed


# --- what nobody can do --------------------------------------------------------------------------------------


def with_posts(log: Log, posts: Iterable[Post]) -> Log:
    """The log with these as well, but for a second one of a hotkey in the same block."""
    all_of_them = {(post.block, post.peer): post for post in posts} | {
        (post.block, post.peer): post for post in log.posts
    }
    return replace(log, posts=tuple(all_of_them[at] for at in sorted(all_of_them)))


def anything(random: Random, round: int, peers: Collection[PeerId], blocks: Sequence[int]) -> list[Post]:
    """Whatever these may say in these blocks."""
    found = []
    for peer in sorted(peers):
        for block in random.sample(blocks, min(len(blocks), random.randint(0, 4))):
            pair = random.choice([*PAIRS, None])
            names = [Uid(uid) for uid in range(34) if random.random() < random.choice([0.1, 0.9])]
            found.append(Post(block, peer, abstention(round) if pair is None else word_for(round, names, pair)))
    return found


def test_what_is_decided_in_a_final_block_nothing_that_is_said_later_changes():
    decided = 0
    for seed in range(2500):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.words_by(round)
        final = random.randint(last - 39, last)
        known = replace(log, posts=tuple(post for post in log.posts if post.block <= final))
        found = agreed(run, round, known, final, final)
        if found is None:
            continue
        decided += 1
        speakers = {peer.id for peer in log.commit if peer.validates}
        later = with_posts(known, anything(random, round, speakers, range(final + 1, last + 1)))
        for until in (final, min(last, final + 7), last, last + 9):
            assert agreed(run, round, later, until, final) == found, seed
    assert decided > 500


def test_what_is_decided_by_the_order_while_some_are_silent_is_what_all_words_by_x_come_to():
    """Not only by rule, then: nobody who waits for X would find anything else."""
    early = 0
    for seed in range(4000):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.words_by(round)
        found = agreed(run, round, log, last, last)
        silent = electorate(run, round, log.commit).keys() - {p.peer for p in log.posts if p.block <= found.block}
        if found.selection is None or found.block == last or not silent:
            continue
        early += 1
        speakers = {peer.id for peer in log.commit if peer.validates}
        posts = with_posts(log, anything(random, round, speakers, range(found.block + 1, last + 1))).posts
        voters = plain_voters(run, round, log.commit, 4, ever=True)
        assert plain_pair(voters, posts, last) == found.pair, seed
        supported = plain_supported(voters, plain_runners(run, round, log), posts, found.pair, last)
        expected = sorted((peer.id, envelope) for peer, envelope in plain_places(run, round, supported))
        assert found.selection.contributing == tuple(expected), seed
    assert early > 100


def test_whatever_a_hotkey_without_a_seat_says_changes_nothing():
    for seed in range(2000):
        run, round, log = random_case(seed)
        last = run.clock.words_by(round)
        counted = {*electorate(run, round, log.commit), *remembered(run, round, log.commit)}
        strangers = {peer.id for peer in log.commit} - counted | {peer_id(999), peer_id(998)}
        more = with_posts(log, anything(Random(seed), round, strangers, range(last - 39, last + 1)))
        fewer = replace(log, posts=tuple(post for post in log.posts if post.peer in counted))
        for final in (last - 20, last):
            assert agreed(run, round, more, final, final) == agreed(run, round, fewer, final, final), seed
        assert outcome(run, round, more, last) == outcome(run, round, fewer, last), seed


def test_at_most_half_of_the_stake_alone_selects_nobody_and_names_no_pair():
    for seed in range(2000):
        run, round, log = random_case(seed)
        random, last, weights = Random(seed), run.clock.words_by(round), votes(run, round, log.commit)
        alone = set[PeerId]()
        for peer in random.sample(sorted(weights), len(weights)):
            if 2 * sum(weights[one] for one in (*alone, peer)) <= sum(weights.values()):
                alone.add(peer)
        theirs = [post for post in log.posts if post.peer in alone]
        theirs += anything(random, round, alone, range(last - 39, last + 1))
        found = agreed(run, round, with_posts(replace(log, posts=()), theirs), last, last)
        assert (found.pair, found.selection) == (None, None), seed


def test_whom_most_name_is_selected_whatever_the_others_say_unless_the_places_go_to_better_ones():
    """So nobody's silence, lie or book costs a peer its place that most have read, and no round is void for it."""
    seen = 0
    for seed in range(2500):
        run, round, log = random_case(seed)
        random, last, weights = Random(seed), run.clock.words_by(round), votes(run, round, log.commit)
        committed = order_of(run, round, log).committed
        honest = set[PeerId]()
        for peer in random.sample(sorted(weights), len(weights)):
            if 2 * sum(weights[one] for one in honest) <= sum(weights.values()):
                honest.add(peer)
        good = {uid for uid in committed if random.random() < 0.6}
        if not honest or not good or run.voided(round, last):
            continue
        seen += 1
        block = random.randint(last - 39, last)
        theirs = [Post(block, peer, word_for(round, good, OURS)) for peer in honest]
        others = anything(random, round, weights.keys() - honest, range(last - 39, last + 1))
        found = agreed(run, round, with_posts(replace(log, posts=()), [*theirs, *others]), last, last)
        assert found.pair == OURS, seed
        chosen = {uid for uid, (peer, _) in committed.items() if peer in dict(found.selection.contributing)}
        places = run.spec_at(round).gauntlet.contributors
        assert good <= chosen or len(chosen) == places, seed
    assert seen > 800


def test_nothing_that_is_written_over_a_word_takes_it_back():
    """Another pair, fewer names, an abstention, at any time: what it had said counts the same, at every block."""
    retracted = 0
    for seed in range(2000):
        run, round, log = random_case(seed)
        random, last = Random(seed), run.clock.words_by(round)
        over = []
        for peer in {post.peer for post in log.posts}:
            bound = next((p for p in log.posts if p.peer == peer and p.word.pair is not None), None)
            for block in range(bound.block + 1, last + 1) if bound is not None else ():
                if random.random() < 0.1:
                    other = random.choice([pair for pair in [*PAIRS, None] if pair != bound.word.pair])
                    names = [Uid(uid) for uid in range(34) if random.random() < 0.5]
                    same = [uid for uid in named(bound.word) if random.random() < 0.5]
                    word = abstention(round) if other is None else word_for(round, names, other)
                    over.append(Post(block, peer, random.choice([word, word_for(round, same, bound.word.pair)])))
        retracted += len(over)
        without = with_posts(replace(log, posts=()), log.posts)
        for final in (last - 30, last - 10, last - 1, last):
            with_them = agreed(run, round, with_posts(log, over), final, final)
            assert with_them == agreed(run, round, without, final, final), seed
    assert retracted > 2000


def test_all_nodes_of_one_state_decide_alike_however_they_list_it():
    for seed in range(500):
        run, round, log = random_case(seed)
        last = run.clock.words_by(round)
        turned = replace(log, commit=Random(seed).sample(log.commit, len(log.commit)))
        assert agreed(run, round, turned, last, last) == agreed(run, round, log, last, last)
        assert outcome(run, round, turned, last) == outcome(run, round, log, last)
        assert pairs_named(run, round, turned) == pairs_named(run, round, log)


def test_what_a_round_means_for_the_run_is_what_was_decided_in_it():
    """The pair as of X is that of the early decision: whoever was bound to it stays."""
    for seed in range(1000):
        run, round, log = random_case(seed)
        last = run.clock.words_by(round)
        assert outcome(run, round, log, last).agreed == agreed(run, round, log, last, last), seed
