"""Validators that hold different states and all speak for their own, beside a liar; and who leaves for that what it
holds, and who does not."""

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from gauntlet.agreement import STATEMENT_ROUNDS
from node import catchup, records
from protocol import keys
from protocol.errors import StorageError
from protocol.messages import encode_slot
from protocol.types import Attestation, Digest
from rounds.keep import Keeper
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, with_parts
from tests.node.lies import Forger, WrongTheta, depth, forge, liar, rounds_more, said

Networks = Callable[..., FakeNetwork]
Lie = Literal["genesis", "old", "garbage"]

HONEST = ("first", "second", "third")


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


class Archivist(Keeper):
    """Keeps what it showed of the first rounds, and makes nothing newer."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        look = self.checkpoints.look
        self.checkpoints.look = lambda: look() if self.node.held.saved.round <= 7 else None  # type: ignore[method-assign]


def test_who_is_away_for_a_while_costs_the_others_no_agreed_round(networks: Networks) -> None:
    """It left between its approval of a round and its first word after it; a third of the stake lies."""
    wrong = type("Wrong", (WrongTheta,), {})
    network = networks(miners=2, validators={"first": 101, "second": 100, "liar": 100})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(wrong))
    network.run_until(4, "first", "second")
    network.kill("second")
    before = depth(network, "first")
    wrong.of = network
    for _ in range(2 * STATEMENT_ROUNDS):
        rounds_more(network, 1)
        assert depth(network, "first") >= before
    network.start("second")
    now = rounds_more(network, STATEMENT_ROUNDS)
    assert not {now - 3, now - 2} & set(network["first"].voids())
    assert not network["first"].events("caught_up")


@pytest.mark.parametrize("lag", [12, 30])
def test_what_one_that_is_gone_said_last_draws_nobody_back(networks: Networks, forger: type[Forger], lag: int) -> None:
    """A fifth of the stake has been gone for `lag` rounds. Then one with 8 % is away, and a third of the stake repeats
    the old pair, and has kept a checkpoint of it."""
    network = networks(miners=2, validators={"gone": 20, "first": 39, "second": 8, "liar": 33})
    network.start("miner-1", "miner-2", "first", "second", "gone")
    network.start("liar", role=with_parts(forger, Archivist))
    network.run_until(4, "first", "second")
    network.run_to_block(network.clock.attest_by(4) - 1)
    network.kill("gone")
    network.run_until(4 + lag, "first", "second")
    network.kill("second")
    before, word = depth(network, "first"), said(network, "gone")
    forger.claim = word.theta, word.previous
    for _ in range(STATEMENT_ROUNDS + 3):
        rounds_more(network, 1)
        assert depth(network, "first") >= before
    network.start("second")
    now = rounds_more(network, STATEMENT_ROUNDS)
    assert depth(network, "miner-1") > before
    assert not {now - 3, now - 2} & set(network["first"].voids())


def test_a_record_that_only_some_are_given_parts_nobody_that_agrees(networks: Networks, forger: type[Forger]) -> None:
    """first, second and third have 67 %, and third is away. Of the lies one has a wrong theta, and the other an
    invented record that its bucket gives to some."""
    wrong = type("Wrong", (WrongTheta,), {})
    network = networks(miners=2, validators={"first": 33, "second": 17, "third": 17, "wrong": 15, "liar": 18})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("wrong", role=with_parts(wrong))
    network.start("liar", role=with_parts(forger))
    network.run_until(4, "first", "second", "third")
    network.kill("third")
    wrong.of, forger.claim = network, forge(network, "first")
    key = keys.statement(network.run.id, forger.claim[1])

    def cut(call: Call) -> None:
        if call.key == key and call.reader not in ("first", "third"):
            raise StorageError("no such thing")

    network.store.before = cut
    rounds_more(network, STATEMENT_ROUNDS + 3)
    network.start("third")
    now = rounds_more(network, STATEMENT_ROUNDS + 2)
    assert len({network[name].thetas()[now - 3] for name in HONEST}) == 1
    assert not {now - 3, now - 2} & set(network["first"].voids())


@pytest.mark.parametrize("until", [1, 2])
def test_validators_that_were_killed_in_the_first_rounds_go_on(networks: Networks, until: int) -> None:
    """All were killed before anybody had named what came of the round before, and their last word may be theta_0."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(until, "first", "second")
    network.kill("first", "second")
    network.run_to_block(network.world.final + 130)
    network.start("first", "second")
    now = rounds_more(network, 2 * STATEMENT_ROUNDS)
    assert network["first"].round >= now - 1
    assert not {now - 3, now - 2} & set(network["first"].voids())


def test_buckets_that_stall_silence_nobody_that_looks_for_common_ground(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty hotkeys with dust and a third of the stake name links that only their own buckets could have, and one of
    two honest validators is away. Times to ask are as in a run with rounds of fifteen minutes."""
    for name, seconds in (("ASK_SECONDS", 0.12), ("LINK_SECONDS", 0.004), ("QUIET_SECONDS", 0.008)):
        monkeypatch.setattr(records, name, seconds)
    monkeypatch.setattr(catchup, "ASK_SECONDS", 0.04)
    liars = [*(f"dust-{number}" for number in range(30)), "liar"]
    stakes = {"first": 1000, "second": 1000} | dict.fromkeys(liars, 1) | {"liar": 950}
    network = networks(miners=2, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second")
    network.run_until(4, "first", "second")
    network.kill("second")

    def slow(call: Call) -> None:
        if call.bucket in liars and "/statement/" in call.key:
            until = network.time.now + 0.13
            network.hold(lambda: network.time.now >= until)

    network.store.before = slow
    for _ in range(2 * STATEMENT_ROUNDS + 2):
        round = network.clock.round_at(network.world.final)
        network.run_to_block(network.clock.slot(round, 0)[0] + 1)
        for number, name in enumerate(liars):
            nothing = Digest(f"{number} {round}".encode().ljust(32)[:32])
            word = Attestation(round, 0, nothing, nothing)
            network.world.publish(network[name].peer, encode_slot(network.store.pointer(name), word, None))
        network.run_to_block(network.clock.attest_by(round) + 4)
        assert said(network, "first").round == round
