"""The chain's part: the real agreement over the validators' votes, and weights cut to what most stake backs."""

import pytest

from murmur.lab.arena.agree import Votes, incentives, pooled
from murmur.lab.arena.stage import POINTER, make_spec, named
from murmur.protocol.messages import first_link, link_of
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Peer, PeerId, Slot, Uid

RUN = Run(make_spec(0))
VALIDATORS = [PeerId(named("validator", index)) for index in range(3)]
STAKES = dict.fromkeys(VALIDATORS, 10**12)
THETA = named("theta")
FIRST = first_link(RUN.id)


def miners(round: int, incentives: dict[int, int] | None = None, count: int = 6) -> list[Peer]:
    slot = Slot(RUN.clock.commit_deadline(round), POINTER, Commitment(round, named("envelope")))
    return [
        Peer(PeerId(named("miner", uid)), Uid(uid), 0, False, slot=slot, incentive=(incentives or {}).get(uid, 0))
        for uid in range(3, 3 + count)
    ]


def decide(votes: Votes, round: int, *names: list[int], among: list[Peer] | None = None):
    """The round in which each validator names these uids, and the uids selected."""
    given = dict(zip(VALIDATORS, ([Uid(uid) for uid in uids] for uids in names), strict=True))
    decision = votes.decide(round, named("commit", round), THETA, among or miners(round), given)
    uids = {peer.id: peer.uid for peer in among or miners(round)}
    return decision, {uids[peer] for peer, _ in decision.selection.contributing} if decision.selection else set()


def test_whom_two_of_three_name_is_selected_round_after_round_and_each_goes_on_from_the_one_before() -> None:
    votes, link = Votes(RUN, STAKES), FIRST
    for round in range(8):
        decision, selected = decide(votes, round, [3, 4], [4, 5], [5, 6])
        assert selected == {4, 5}
        assert decision.state_ref == (THETA, link)
        link = link_of(decision.selection)


def test_a_round_in_which_no_two_name_the_same_is_void_and_the_next_goes_on_from_the_same_link() -> None:
    votes = Votes(RUN, STAKES)
    assert decide(votes, 0, [3], [4], [5]) == (decide(Votes(RUN, STAKES), 0, [], [], [])[0], set())
    decision, selected = decide(votes, 1, [3], [3], [])
    assert selected == {3}
    assert decision.state_ref == (THETA, FIRST)


def test_where_more_are_named_than_may_contribute_those_that_were_paid_go_first_and_newcomers_get_an_eighth() -> None:
    places, count = RUN.first.gauntlet.contributors, 40
    everybody = list(range(3, 3 + count))
    paid = {uid: 100 + uid for uid in everybody[:30]}
    _, selected = decide(Votes(RUN, STAKES), 0, *[everybody] * 3, among=miners(0, paid, count))
    assert len(selected) == places
    assert len(selected - paid.keys()) == places // 8
    assert selected & paid.keys() == set(sorted(paid)[-(places - places // 8) :])


def test_pooled_weights_are_the_median_of_three_equal_validators() -> None:
    honest = {Uid(3): 0.6, Uid(4): 0.4}
    found = pooled(dict(zip(VALIDATORS, (honest, honest, {Uid(8): 1.0}), strict=True)), STAKES)
    assert found == pytest.approx({Uid(3): 0.6, Uid(4): 0.4})
    assert Uid(8) not in found


def test_most_of_the_stake_decides_alone_what_is_paid() -> None:
    given = dict(zip(VALIDATORS, ({Uid(3): 1.0}, {Uid(4): 1.0}, {Uid(4): 1.0}), strict=True))
    stakes = dict(zip(VALIDATORS, (5, 1, 1), strict=True))
    assert pooled(given, stakes) == {Uid(3): 1.0}
    assert pooled({peer: {} for peer in VALIDATORS}, STAKES) == {}


def test_incentives_are_shares_of_65535_in_the_order_of_the_shares() -> None:
    assert incentives({Uid(3): 1.0, Uid(4): 0.25, Uid(5): 0.0}) == {Uid(3): 65535, Uid(4): 16384, Uid(5): 0}
