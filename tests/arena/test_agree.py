"""The chain's part: the real agreement over the validators' statements, and weights cut to what most stake backs."""

import pytest

from arena.agree import Statements, pooled
from arena.stage import POINTER, make_spec, named
from protocol.run import Run
from protocol.types import Commitment, Peer, PeerId, Slot, Uid

RUN = Run(make_spec(0))
VALIDATORS = [PeerId(named("validator", index)) for index in range(3)]
STAKES = dict.fromkeys(VALIDATORS, 10**12)
THETA = named("theta")


def miners(round: int) -> list[Peer]:
    slot = Slot(RUN.clock.commit_by(round), POINTER, Commitment(round, named("envelope")))
    return [Peer(PeerId(named("miner", uid)), Uid(uid), 0, False, slot=slot) for uid in range(3, 9)]


def decide(statements: Statements, round: int, choices, approves=lambda validator, author, uids: True):
    return statements.decide(round, named("commit", round), THETA, miners(round), choices, approves)


def test_the_first_leaders_choice_is_agreed_round_after_round() -> None:
    statements = Statements(RUN, STAKES)
    for round in range(4):
        decision = decide(statements, round, {peer: [Uid(3 + place)] for place, peer in enumerate(VALIDATORS)})
        assert decision.slot == 0
        assert decision.selection is not None
        chosen = PeerId(named("miner", 3 + VALIDATORS.index(decision.author)))
        assert [peer for peer, _ in decision.selection.contributing] == [chosen]


def test_an_unapproved_record_gives_way_to_the_next_and_a_round_without_records_is_void() -> None:
    choices = {peer: [Uid(3)] for peer in VALIDATORS}
    first = decide(Statements(RUN, STAKES), 0, choices).author
    left = decide(Statements(RUN, STAKES), 0, choices, lambda validator, author, uids: author != first)
    assert left.slot == 1
    statements = Statements(RUN, STAKES)
    assert decide(statements, 0, {peer: [] for peer in VALIDATORS}).selection is None
    assert decide(statements, 1, choices).selection is not None


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
