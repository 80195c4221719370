"""Weights on a chain that takes them seldom and conceals them at first: when they are due, what came to stand."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gauntlet.finding import Topic, Verdict
from gauntlet.weights import is_due
from murmur.protocol.errors import ChainError
from murmur.protocol.run import Run
from murmur.protocol.types import PeerId, Uid
from tests.network import FakeNetwork
from tests.rounds.test_audit import audits
from tests.specs import toy_spec

Networks = Callable[..., FakeNetwork]
EPOCH = 100
"""Blocks. A round has 30, the first begins at block 12: rounds 0 to 2 are paid in the first epoch, 3 to 5 in the
second."""


def paid(network: FakeNetwork) -> list[int]:
    return [event["round"] for event in network["validator"].events("weights")]


def told(network: FakeNetwork, event: str) -> list[int]:
    return [found["round"] for found in network["validator"].events(event)]


def concealed(networks: Networks) -> FakeNetwork:
    network = networks(miners=2, weights_rate_limit=25, commit_reveal=True)
    return network


def test_weights_are_due_by_what_the_chain_says_of_the_last_ones_and_a_restart_decides_the_same(
    networks: Networks,
) -> None:
    network = networks(miners=1, weights_rate_limit=45, weight_rounds=2)
    network.start()
    network.run_until(3)
    # Registered in block 1, as if weights had been set there: the chain would refuse those of round 0, in block 41.
    assert paid(network) == [1]
    network.kill("validator")
    network.start("validator")
    network.run_until(6)
    assert paid(network) == [1, 3, 5]


@pytest.mark.parametrize("block", [4, 12])
def test_weights_of_a_round_are_those_of_this_round_whether_it_was_decided_early_or_at_x(block: int) -> None:
    run = Run(toy_spec({"gauntlet.weight_rounds": 2}))
    set_in = run.clock.reveal_deadline(3) + block
    assert [is_due(run, round, set_in, run.clock.vote_deadline(round)) for round in (4, 5)] == [False, True]


def test_weights_that_are_revealed_are_read_back_and_audited(networks: Networks, tmp_path: Path) -> None:
    network = concealed(networks)
    network.start()
    network.run_until(2)
    assert paid(network) == [0, 1]
    assert told(network, "weights_standing") == []
    network.kill("validator")
    network.start("validator")
    network.run_until(7)
    # Block 100 reveals those of three rounds, and the last ones stand.
    assert told(network, "weights_standing") == [2, max(round for round in paid(network) if round < 6)]
    assert told(network, "weights_refused") == []
    assert [event["block"] for event in network["validator"].events("weights_standing")] == [EPOCH, 2 * EPOCH]
    network.run_to_block(network.clock.vote_deadline(6))
    network.close()
    findings = {round: audits(network, round, tmp_path)["validator"].findings for round in (0, 2, 6)}
    assert findings[2] == ()
    for round, why in ((0, "which overwrote them"), (6, "not revealed yet")):
        (finding,) = findings[round]
        assert (finding.topic, finding.verdict) == (Topic.WEIGHTS, Verdict.UNCHECKED)
        assert why in finding.text


def test_weights_whose_answer_was_lost_are_not_taken_for_refused(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent again they are too early: the chain has them."""
    network = networks(miners=1, weights_rate_limit=25)
    set_weights, lost = network.world.set_weights, list[int]()

    def loses_the_first_answer(peer: PeerId, weights: Mapping[Uid, float]) -> int:
        block = set_weights(peer, weights)
        if not lost:
            lost.append(block)
            raise ChainError("the connection to the chain was lost")
        return block

    monkeypatch.setattr(network.world, "set_weights", loses_the_first_answer)
    network.start()
    network.run_until(3)
    assert [event["block"] for event in network["validator"].events("weights")][:1] == lost
    assert told(network, "weights_not_taken") == []
    assert told(network, "weights_standing")[:1] == paid(network)[:1]


def test_weights_that_the_chain_takes_and_never_reveals_are_told(networks: Networks, tmp_path: Path) -> None:
    network = concealed(networks)
    network.start()
    network.run_until(2)
    network.run_to_block(network.clock.vote_deadline(1))
    peer = network["validator"].peer
    network.world.set_stake(peer, 100, False)
    network.run_to_block(EPOCH)
    network.world.set_stake(peer, 100, True)
    network.run_until(5)
    assert told(network, "weights_refused") == [1]
    (event,) = network["validator"].events("weights_refused")
    assert event["block"] == EPOCH
    assert event["uids"]
    network.close()
    (finding,) = audits(network, 1, tmp_path)["validator"].findings
    assert (finding.topic, finding.verdict) == (Topic.WEIGHTS, Verdict.UNCHECKED)
    assert "were not revealed" in finding.text
