"""Who counts, and who is asked for copies."""

from collections import Counter
from dataclasses import replace

import pytest

from gauntlet.agreement import (
    COPIES,
    MEMORY_ROUNDS,
    SEAT_ROUNDS,
    abstention,
    electorate,
    last_wrote,
    mirror_order,
    mirrors,
    remembered,
    vote_for,
    vote_weights,
)
from murmur.protocol.messages import first_link
from murmur.protocol.types import Commitment, Peer, Slot, Uid
from tests.gauntlet.agreement_scenes import (
    ANNOUNCED,
    CLOCK,
    EQUAL,
    MINERS,
    NOTHING,
    OURS,
    ROUND,
    A,
    B,
    C,
    D,
    X,
    say,
    selected,
    validator,
    voted_before,
)
from tests.gauntlet.world import COMMIT_HASH, POINTER, RUN, digest, peer_id


def test_who_counts_is_who_spoke_lately():
    late = 20

    def counts(*peers, round=late):
        return set(electorate(RUN, round, peers))

    oldest, too_old = late - SEAT_ROUNDS, late - SEAT_ROUNDS - 1
    speaks = {said: validator(said, 1, voted_before(said)) for said in (too_old, oldest, late - 1)}
    assert counts(*speaks.values()) == {speaks[oldest].id, speaks[late - 1].id}
    # When nobody has voted for so long, whoever ever did; before anybody could, whoever has announced itself.
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
        vote_for(0, [], (NOTHING, first_link(digest("another run")))),
        vote_for(0, [Uid(0)], OURS),
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
    owner = Peer(RUN.first.owner_id, Uid(0), 5, True, slot=replace(voted_before(), amendment=RUN.id))
    assert electorate(RUN, ROUND, [owner, A]) == {owner.id: 5, A.id: A.stake}


def test_an_announcement_that_comes_after_block_d_of_round_0_is_a_vote_for_round_0():
    early, late = (Slot(CLOCK.commit_deadline(0) + more, POINTER, abstention(0)) for more in (0, 1))
    one, other = validator(1, 1, early), validator(2, 1, late)
    assert electorate(RUN, 0, [one, other]).keys() == {one.id}
    assert electorate(RUN, SEAT_ROUNDS - 1, [one, other]).keys() == {one.id, other.id}
    assert electorate(RUN, SEAT_ROUNDS, [one, other]).keys() == {other.id}


def test_at_the_start_of_a_run_the_first_to_speak_is_not_the_only_one_to_count():
    quiet, first = validator(1, 10**15, ANNOUNCED), validator(2, 1, voted_before(0))
    for round in range(1, SEAT_ROUNDS):
        assert set(electorate(RUN, round, [quiet, first])) == {quiet.id, first.id}
    assert set(electorate(RUN, SEAT_ROUNDS, [quiet, first])) == {first.id}


def test_a_vote_for_a_round_that_had_not_come_gives_no_seat():
    early = validator(1, 1, Slot(CLOCK.start(3), POINTER, vote_for(ROUND - 1, (), OURS)))
    future = validator(2, 1, Slot(D - 1, POINTER, vote_for(ROUND, (), OURS)))
    assert set(electorate(RUN, ROUND, [early, future, A])) == {A.id}


def test_a_pointer_rewritten_with_the_old_vote_keeps_the_seat():
    moved_on = validator(1, 1, Slot(D - 1, POINTER, vote_for(ROUND - 1, (), OURS)))
    assert set(electorate(RUN, ROUND, [moved_on])) == {moved_on.id}


def test_who_abstains_keeps_its_seat():
    away = validator(1, 5, Slot(CLOCK.vote_deadline(ROUND - 1), POINTER, abstention(ROUND - 1)))
    assert electorate(RUN, ROUND, [away, A]) == {away.id: 5, A.id: 1}


def test_who_speaks_for_the_first_time_counts_from_the_next_round_on():
    newcomer = validator(4, 10**9, Slot(7, POINTER))
    posts = [say(newcomer, D + 1, 3), say(A, D + 1, 0), say(B, D + 1, 0)]
    assert selected(*posts, validators=[*EQUAL, newcomer]) == {0}
    spoke = replace(newcomer, slot=voted_before(ROUND))
    assert electorate(RUN, ROUND + 1, [spoke, A]).keys() == {spoke.id, A.id}


def test_stake_counts_and_heads_where_nobody_has_any():
    assert vote_weights(RUN, ROUND, [A, validator(7, 5)]) == {A.id: 1, peer_id(107): 5}
    nobody = [replace(peer, stake=0) for peer in (A, B)]
    assert electorate(RUN, ROUND, nobody) == {A.id: 0, B.id: 0}
    assert vote_weights(RUN, ROUND, nobody) == {A.id: 1, B.id: 1}
    assert vote_weights(RUN, ROUND, [*nobody, C]) == {A.id: 0, B.id: 0, C.id: 1}


def test_whoever_spoke_in_the_last_64_rounds_is_remembered():
    late = 100
    last, gone = (validator(number, 1, voted_before(late - MEMORY_ROUNDS - number)) for number in (0, 1))
    assert remembered(RUN, late, [last, gone, replace(last, id=peer_id(7), validates=False)]) == {last.id: 1}
    assert remembered(RUN, late, [gone]) == {}
    assert remembered(RUN, MEMORY_ROUNDS - 1, [validator(1, 1, ANNOUNCED)]).keys() == {A.id}


def test_the_last_block_in_which_a_validator_or_who_has_spoken_wrote():
    assert last_wrote(MINERS) == 0
    here = [validator(1, 1, voted_before(3)), validator(2, 1, voted_before(9))]
    newest = max(peer.slot.block for peer in here if peer.slot is not None)
    assert newest > 0
    assert last_wrote([*here, *MINERS]) == newest, "miners commit in every round"
    assert last_wrote([replace(peer, validates=False) for peer in here]) == newest, "it had its permit then"
    slot = Slot(newest + 5, None, None)
    assert last_wrote([*here, replace(here[0], slot=slot)]) == newest + 5, "a vote may have stood there before"


def test_who_is_asked_for_copies_is_who_counts_the_most_stake_first():
    one, two, three = validator(1, 60), validator(2, 30), validator(3, 10)
    owner = Peer(RUN.first.owner_id, Uid(0), 10**16, True, slot=Slot(7, POINTER, amendment=RUN.id))
    newcomer = validator(4, 99, Slot(X - 9, POINTER, vote_for(ROUND, (), OURS)))
    away = validator(5, 77, voted_before(ROUND - SEAT_ROUNDS))
    silent = validator(6, 88, voted_before(ROUND - SEAT_ROUNDS - 1))
    peers = [owner, three, two, away, newcomer, one, silent]
    assert mirrors(RUN, X, peers) == (newcomer.id, away.id, one.id, two.id, three.id)
    assert mirrors(RUN, D, [owner, silent]) == (silent.id,)
    assert mirrors(RUN, 0, [owner, validator(7, 1, ANNOUNCED)]) == (peer_id(107),)


def test_each_payload_is_copied_by_two_that_count_drawn_for_it_alone():
    away = validator(9, 10**9, voted_before(ROUND - SEAT_ROUNDS - 1))
    named_ones = [peer_id(number) for number in range(40)]
    order = mirror_order(RUN, ROUND, COMMIT_HASH, [*EQUAL, away, *MINERS], named_ones)
    assert list(order) == named_ones
    assert all(sorted(theirs) == sorted(peer.id for peer in EQUAL) for theirs in order.values())
    copies = Counter(mirror for theirs in order.values() for mirror in theirs[:COPIES])
    assert all(15 < copies[peer.id] < 40 for peer in EQUAL)
