"""Validators that hold different states and all speak for their own, beside a liar."""

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from gauntlet.agreement import STATEMENT_ROUNDS
from tests.network import FakeNetwork, with_parts
from tests.node.lies import Forger, liar

Networks = Callable[..., FakeNetwork]
Lie = Literal["genesis", "old", "garbage"]

HONEST = ("first", "second", "third")


def rounds_more(network: FakeNetwork, rounds: int) -> int:
    """Lets so many rounds pass; the round of the head then."""
    network.run_to_block(network.world.final + rounds * network.spec.clock.round_blocks)
    return network.clock.round_at(network.world.final)


def run_until_silent_in_different_rounds(
    networks: Networks, forger: type[Forger], lie: Lie, honest: Sequence[str], stake: int
) -> FakeNetwork:
    """Each of these is killed three rounds after the one before, and all are away until chain nodes have pruned it."""
    validators = dict.fromkeys(honest, 100) | {"liar": stake}
    network = networks(miners=2, keep_blocks=45, validators=validators)
    network.start("miner-1", "miner-2", *honest)
    network.start("liar", role=with_parts(liar() if lie == "garbage" else forger))
    network.wait_for(lambda: network[honest[-1]].program is not None)
    start = network[honest[-1]].node.held.claim
    network.run_until(4, honest[-1])
    old = network[honest[-1]].node.held.claim
    for number, name in enumerate(honest):
        network.run_until(7 + 3 * number, honest[-1])
        network.kill(name)
    if lie in ("genesis", "old"):
        forger.claim = start if lie == "genesis" else old
    rounds_more(network, 130 // network.spec.clock.round_blocks + 1)
    return network


@pytest.mark.parametrize("lie", ["genesis", "old", "garbage"])
def test_validators_that_fell_silent_in_different_rounds_go_on_from_one_state(
    networks: Networks, forger: type[Forger], lie: Lie
) -> None:
    network = run_until_silent_in_different_rounds(networks, forger, lie, HONEST, 140)
    held = {name: set(network[name].thetas().values()) for name in HONEST}
    network.start(*HONEST)
    now = rounds_more(network, 2 * STATEMENT_ROUNDS + 5)
    for name in HONEST:
        assert network[name].round >= now - 1
        assert not {now - 3, now - 2} & set(network[name].voids())
        went = {event["theta"] for event in network[name].events("caught_up")}
        assert went <= {theta for states in held.values() for theta in states}
    assert len({network[name].thetas()[now - 3] for name in HONEST}) == 1


def test_who_is_alone_is_not_drawn_back_by_a_liar_that_states_an_old_pair(
    networks: Networks, forger: type[Forger]
) -> None:
    """Nothing can be agreed without the one that is away; where it was speaks, however long it has been silent."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "liar": 100})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(forger))
    network.run_until(3, "first")
    forger.claim = network["first"].node.held.claim
    network.run_until(7, "first", "second")
    network.kill("second")
    held = network["first"].node.held.saved.link
    now = rounds_more(network, 3 * STATEMENT_ROUNDS)
    assert {*range(now - 4, now - 1)} <= set(network["first"].voids())
    assert network["first"].node.held.saved.link == held
