"""Validators that state what is not so, while those with most of the stake are away or have lost everything."""

from collections.abc import Callable

import pytest
from node.claimed import CLAIMS_ASKED, Claimed

from gauntlet.agreement import STATEMENT_ROUNDS
from protocol import keys
from protocol.errors import ChainError, StorageError
from protocol.messages import first_link
from protocol.types import Attestation, Digest, Record
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, with_parts
from tests.node.lies import Forger, forge, liar, wipe
from tests.node.test_checkpoints import NoCheckpoints

Networks = Callable[..., FakeNetwork]


def fail_once(network: FakeNetwork, name: str, after: int) -> list[int]:
    """The chain fails this node for a moment in a round after that one; which, once it has."""
    node, failed = network[name].node, list[int]()
    apply = node._apply

    def once(round: int) -> object:
        if round > after and not failed:
            failed.append(round)
            raise ChainError("connection lost")
        return apply(round)

    node._apply = once  # type: ignore[method-assign, assignment]
    return failed


@pytest.mark.parametrize("stakes", [(140,), (110, 110, 110)])
def test_liars_with_more_stake_than_the_only_honest_one_that_speaks_keep_nobody_out(
    networks: Networks, stakes: tuple[int, ...]
) -> None:
    """Those that came back with nothing say nothing before they have followed somebody: till then nobody has half."""
    liars = {f"liar-{number}": stake for number, stake in enumerate(stakes)}
    away = 100 * len(stakes)
    network = networks(miners=2, keep_blocks=45, validators={"first": away, "second": away, "third": 100} | liars)
    network.start("miner-1", "miner-2", "first", "second", "third")
    for name in liars:
        network.start(name, role=with_parts(liar()))
    network.run_until(4, "third")
    wipe(network, "first", "second")
    network.run_until(network["third"].round + 1, "third")
    back = network["third"].round
    network.start("first", "second")
    network.run_until(back + 10, "first", "second", "third")
    for name in ("first", "second"):
        assert network[name].events("caught_up")[0]["round"] <= back + 2 * len(stakes)
    assert not {void for void in network["third"].voids() if void > back + 3 * len(stakes)}
    assert network["first"].thetas()[back + 9] == network["third"].thetas()[back + 9]


def test_every_claim_has_its_turn() -> None:
    claims = [(Digest(bytes([number]) * 32), Digest(bytes(32))) for number in range(2 * CLAIMS_ASKED)]
    stakes = {claim: 40 - number for number, claim in enumerate(claims)}
    asked = [Claimed(round, stakes, 900).worth_asking for round in range(5)]
    assert all(len(each) == len(set(each)) == CLAIMS_ASKED and each[0] == claims[0] for each in asked)
    assert {claim for each in asked for claim in each} == set(claims)
    assert Claimed(3, {claims[0]: 51, claims[1]: 49}, 100).worth_asking == (claims[0], claims[1])
    assert Claimed(3, {claims[0]: 5, claims[1]: 0}, 300).worth_asking == (claims[0],)
    assert Claimed(3, {claims[0]: 0}, 300).worth_asking == (claims[0],)


def test_who_can_see_on_chain_what_was_agreed_on_follows_no_claim_with_less_stake(
    networks: Networks, forger: type[Forger]
) -> None:
    """The honest claim has most of what is spoken, and cannot be had for a moment."""
    network = networks(miners=2, validators={"first": 140, "second": 110, "third": 100, "liar": 100})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("liar", role=with_parts(forger, NoCheckpoints))
    network.run_until(3)
    wipe(network, "first")
    network.run_until(5)
    claim = forge(network, "second")
    network.run_until(6)
    network.kill("third")
    last = network["second"].node.held.saved.link
    network.store.buckets["liar"].pop(keys.statement(network.run.id, last))
    forger.claim = claim
    network.run_until(network["second"].round + 1, "second")

    def cut(call: Call) -> None:
        if call.reader == "first" and call.bucket in ("second", "third"):
            raise StorageError("no connection")

    network.store.before = cut
    network.start("first")
    end = network["second"].round + 4
    network.run_until(end, "second")
    network.store.before = lambda call: None
    network.start("third")
    network.run_until(end + 6, "second")
    honest = ("first", "second", "third", "miner-1", "miner-2")
    told = {event["theta"] for name in honest for event in network[name].events("caught_up")}
    assert claim[0].hex() not in told


def test_a_chain_that_fails_for_a_moment_moves_nobody_to_a_liars_state(
    networks: Networks, forger: type[Forger]
) -> None:
    network = networks(miners=2, validators={"first": 50, "second": 200, "liar": 60, "other": 55})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(forger))
    network.start("other", role=with_parts(liar()))
    network.run_until(3)
    network.kill("second")
    network.run_until(network["first"].round + 1, "first")
    forger.claim = forge(network, "first")
    link, now = network["first"].node.held.saved.link, network["first"].round
    failed = fail_once(network, "first", now)
    network.run_until(now + 3, "first")
    assert failed
    assert network["first"].node.held.saved.link == link


def test_a_chain_that_fails_for_a_moment_sets_nobody_apart_from_its_own_state(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100, "third": 100})
    network.start()
    network.run_until(3)
    network.kill("first", "second")
    network.run_until(network["third"].round + 1, "third")
    failed = fail_once(network, "third", -1)
    network.run_until(network["third"].round + 2, "third")
    assert failed
    assert not network["third"].node.held.saved.apart


def test_validators_that_were_away_together_go_on_beside_a_liar(networks: Networks) -> None:
    """Their chain nodes have pruned the rounds since, and nobody but the liar speaks."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(3, "first", "second")
    network.kill("first", "second")
    network.run_to_block(network.world.final + 130)
    network.start("first", "second")
    end = network.clock.round_at(network.world.final) + STATEMENT_ROUNDS + 9
    network.run_blocks(lambda: network.clock.round_at(network.world.final) >= end)
    assert network["first"].round >= end - 1
    assert not {end - 3, end - 2} & set(network["first"].voids())


def test_who_has_lost_everything_speaks_for_no_genesis_after_a_restart_either(networks: Networks) -> None:
    """With the others away for longer than it counts them, its word would take the whole run back to theta_0."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(3, "first", "second")
    network.kill("second")
    wipe(network, "first")
    network.run_to_block(network.world.final + 130)
    buckets = dict(network.store.buckets)
    network.store.buckets["second"] = {}
    network.start("first")
    for _ in range(2):
        network.run_to_block(network.world.final + 4 * network.spec.clock.round_blocks)
        network.kill("first")
        network.start("first")
    network.run_to_block(network.world.final + 8 * network.spec.clock.round_blocks)
    slot = {peer.id: peer.slot for peer in network.world.state(network.world.final).peers}[network["first"].peer]
    assert slot is not None
    assert slot.statement is not None
    assert not isinstance(slot.statement, Record | Attestation) or slot.statement.previous != first_link(network.run.id)
    network.store.buckets |= buckets
    network.start("second")
    network.run_blocks(lambda: bool(network["first"].events("caught_up")))
    end = network["second"].round + 6
    network.run_until(end, "first", "second")
    assert network["first"].thetas()[end - 1] == network["second"].thetas()[end - 1]


@pytest.mark.parametrize("wiped", ["first", "miner-2"])
@pytest.mark.parametrize("together", [True, False])
def test_the_cheapest_lie_takes_nobody_back_to_the_start(
    networks: Networks, forger: type[Forger], wiped: str, together: bool
) -> None:
    """theta_0 can be followed by everybody, and nobody else speaks. With it the liar has most of the stake. The others
    may have said their last words in several rounds, and named several links."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "third": 100, "liar": 140})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("liar", role=with_parts(forger))
    network.wait_for(lambda: network["third"].program is not None)
    start = network["third"].node.held.claim
    assert start[1] == first_link(network.run.id)
    network.run_until(4, "third")
    if not together:
        network.kill("second")
        network.run_until(6, "third")
    for name in ({"first", "third"} - {wiped}) | ({"second"} if together else set()):
        network.kill(name)
    wipe(network, wiped)
    forger.claim = start
    network.run_to_block(network.world.final + 70)
    network.start(wiped)
    network.run_to_block(network.world.final + (STATEMENT_ROUNDS + 3) * network.spec.clock.round_blocks)
    assert start[0].hex() not in {event["theta"] for event in network[wiped].events("caught_up")}
    if not together:
        return  # how long the others then need is told in decision 0054
    network.start(*{"first", "second", "third"} - {wiped})
    end = network.clock.round_at(network.world.final) + STATEMENT_ROUNDS + 9
    network.run_until(end, wiped, "second", "third")
    network.run_until(end + 3, wiped, "second", "third")
    last = max(network[wiped].thetas().keys() & network["third"].thetas().keys())
    assert last >= end
    assert network[wiped].thetas()[last] == network["third"].thetas()[last]
    assert not {end - 3, end - 2} & set(network["third"].voids())
    assert network["third"].node.held.saved.link != start[1]


def test_a_record_that_names_a_peer_twice_ends_nobody(networks: Networks, forger: type[Forger]) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100, "liar": 60})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(forger))
    network.run_until(3)
    network.kill("second")
    wipe(network, "first")
    pair = (network["miner-1"].peer, Digest(b"\7" * 32))
    forger.claim = forge(network, "second", (pair, pair), bitmap=6)
    at = network["miner-1"].round
    network.run_blocks(lambda: network.clock.round_at(network.world.final) > at + 1)
    network.start("first", "second")
    end = network.world.final + 100
    network.run_to_block(end)
    assert network["first"].error is None
    last = min(network[name].round for name in ("first", "second")) - 1
    assert network["first"].thetas()[last] == network["second"].thetas()[last]
