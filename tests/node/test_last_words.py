"""Nobody speaks for a state, or follows a claim, that what most of the stake said last does not lie behind."""

from collections.abc import Callable

import pytest

from gauntlet.agreement import STATEMENT_ROUNDS
from node import catchup, records
from protocol import keys
from protocol.errors import StorageError
from protocol.messages import first_link
from protocol.types import Attestation, Record
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, with_parts
from tests.node.lies import Forger, forge, liar, wipe
from tests.node.test_checkpoints import NoCheckpoints

Networks = Callable[..., FakeNetwork]


def now(network: FakeNetwork) -> int:
    return network.clock.round_at(network.world.final)


def pass_rounds(network: FakeNetwork, count: int) -> None:
    network.run_to_block(network.world.final + count * network.spec.clock.round_blocks)


def said(network: FakeNetwork, name: str) -> Record | Attestation:
    """This validator's last word on chain."""
    slot = {peer.id: peer.slot for peer in network.world.state(network.world.final).peers}[network[name].peer]
    assert slot is not None
    assert isinstance(slot.statement, Record | Attestation)
    return slot.statement


def agrees_again(network: FakeNetwork, *names: str) -> None:
    """After so long that whoever waited in vain has spoken, these agree in every round, and hold the same."""
    end = now(network) + STATEMENT_ROUNDS + 9
    network.run_blocks(lambda: now(network) >= end)
    assert not {end - 3, end - 2} & set(network[names[0]].voids())
    held = {network[name].thetas().get(end - 2) for name in names}
    assert len(held) == 1
    assert None not in held


@pytest.mark.parametrize("keep", [None, 45])
def test_a_run_whose_validators_were_away_from_its_first_round_begins_once_they_are_back(
    networks: Networks, keep: int | None
) -> None:
    """They have said nothing but that they are there, and only a liar has stated anything since."""
    network = networks(miners=2, keep_blocks=keep, validators={"first": 100, "second": 100, "liar": 60})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_to_block(network.clock.commit_by(0) - 3)
    network.kill("first", "second")
    network.run_to_block(network.clock.attest_by(1) + 2)
    assert said(network, "liar").round == 1
    network.start("first", "second")
    agrees_again(network, "first", "second")
    assert network["first"].node.held.saved.link != first_link(network.run.id)


def test_who_lost_everything_is_silent_after_a_restart_while_a_liar_states_the_start(
    networks: Networks, forger: type[Forger]
) -> None:
    """The liar has most of what is spoken, and with the word of who holds theta_0 most of the stake."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "third": 100, "liar": 140})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("liar", role=with_parts(forger))
    network.wait_for(lambda: network["third"].program is not None)
    start = network["third"].node.held.claim
    network.run_until(4, "third")
    network.kill("second", "third")
    wipe(network, "first")
    before = said(network, "first")
    forger.claim = start
    network.run_to_block(network.world.final + 70)
    network.start("first")
    pass_rounds(network, 1)
    network.kill("first")
    network.start("first")
    pass_rounds(network, STATEMENT_ROUNDS + 3)
    assert network["first"].node.behind
    assert said(network, "first") == before
    network.start("second", "third")
    agrees_again(network, "first", "second", "third")
    followed = {event["theta"] for name in ("first", "second", "third") for event in network[name].events("caught_up")}
    assert start[0].hex() not in followed


def test_who_lost_everything_and_could_apply_the_first_round_is_silent_until_it_has_caught_up(
    networks: Networks,
) -> None:
    """What was sent in later rounds is out of reach, and the other validator that held it is away."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(5, "first", "second")
    network.kill("second")
    wipe(network, "first")
    before = said(network, "first")
    network.run_to_block(network.world.final + 130)
    buckets = {name: bucket for name, bucket in network.store.buckets.items() if name != "owner"}
    for name, bucket in buckets.items():
        kept = {keys.payload(network.run.id, 0), keys.reveal(network.run.id, 0)}
        network.store.buckets[name] = {key: found for key, found in bucket.items() if key in kept}
    network.start("first")
    pass_rounds(network, 10)
    assert [event["round"] for event in network["first"].events("applied") if not event["void"]] == [0]
    assert network["first"].node.behind
    assert said(network, "first") == before
    for name, bucket in buckets.items():
        network.store.buckets[name] = bucket | network.store.buckets[name]
    network.start("second")
    agrees_again(network, "second", "first")
    assert not network["second"].events("caught_up")
    assert not network["first"].node.behind


@pytest.mark.parametrize("keep", [None, 45])
def test_a_liar_that_repeats_what_one_that_left_said_last_keeps_nobody_out_and_takes_nobody_back(
    networks: Networks, forger: type[Forger], keep: int | None
) -> None:
    """Together they have more than half of the stake."""
    stakes = {"first": 120, "second": 115, "away": 100, "liar": 165}
    network = networks(miners=2, keep_blocks=keep, validators=stakes)
    network.start("miner-1", "first", "second", "away")
    network.start("liar", role=with_parts(forger))
    network.run_until(3, "first", "second", "away")
    network.run_to_block(network.clock.attest_by(3) - 1)
    network.kill("away")
    word = said(network, "away")
    forger.claim = word.theta, word.previous
    pass_rounds(network, STATEMENT_ROUNDS + 6)
    at = network["first"].round
    network.start("miner-2")
    pass_rounds(network, 3)
    assert network["miner-2"].events("caught_up")
    last = network["miner-2"].round - 1
    assert network["miner-2"].thetas()[last] == network["first"].thetas()[last]
    network.start("away")
    agrees_again(network, "first", "second", "away", "miner-2")
    taken_back = [event for name in ("first", "second") for event in network[name].events("caught_up")]
    assert not [event for event in taken_back if event["round"] > at]


def test_an_honest_validator_that_could_read_nothing_for_a_while_comes_back_beside_one_that_left(
    networks: Networks,
) -> None:
    """The two have more than half of the stake, and said the same last."""
    network = networks(miners=2, validators={"first": 120, "second": 115, "away": 100, "stuck": 165})
    network.start()
    network.run_until(3)

    def cut(call: Call) -> None:
        if call.reader == "stuck" and call.bucket != "stuck":
            raise StorageError("no connection")

    network.store.before = cut
    network.run_to_block(network.clock.attest_by(3) - 1)
    network.kill("away")
    pass_rounds(network, STATEMENT_ROUNDS + 7)
    assert said(network, "stuck").previous == said(network, "away").previous != said(network, "first").previous
    assert said(network, "stuck").round > said(network, "away").round
    network.store.before = lambda call: None
    agrees_again(network, "first", "second", "stuck")


@pytest.mark.parametrize("stake", [60, 100, 140])
def test_nobody_leaves_what_it_holds_for_a_newer_record_that_a_liar_has_invented_on_top_of_it(
    networks: Networks, forger: type[Forger], stake: int
) -> None:
    """Two of three were away for longer than their chain nodes keep; the third states what they hold, with more stake
    than the liar or as much."""
    stakes = {"first": 100, "second": 100, "third": 100, "liar": stake}
    network = networks(miners=2, keep_blocks=45, validators=stakes)
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("liar", role=with_parts(forger, NoCheckpoints))
    network.run_until(4)
    network.kill("first", "second")
    pass_rounds(network, 1)
    forger.claim = forge(network, "third", round=now(network))
    pass_rounds(network, 2)
    network.start("first", "second")
    agrees_again(network, "first", "second", "third", "miner-1")
    followed = {
        event["theta"]
        for name in ("first", "second", "third", "miner-1")
        for event in network[name].events("caught_up")
    }
    assert forger.claim[0].hex() not in followed


def test_a_liars_bucket_that_stalls_takes_no_time_from_the_claim_that_is_true(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three validators come back with nothing, and a liar has more stake than the one that speaks."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "third": 100, "liar": 140})
    network.start("miner-1", "miner-2", "first", "second", "third")
    network.start("liar", role=with_parts(liar()))
    network.run_until(4, "third")
    wipe(network, "first", "second")
    network.run_until(network["third"].round + 1, "third")
    back = network["third"].round
    monkeypatch.setattr(records, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(records, "LINK_SECONDS", 0.01)
    monkeypatch.setattr(catchup, "ASK_SECONDS", 0.1)

    def stall(call: Call) -> None:
        if call.reader in ("first", "second") and call.bucket == "liar":
            until = network.time.now + records.ASK_SECONDS
            network.hold(lambda: network.time.now >= until)
            raise StorageError("out of time")

    network.store.before = stall
    network.start("first", "second")
    agrees_again(network, "first", "second", "third")
    for name in ("first", "second"):
        assert network[name].events("caught_up")[0]["round"] <= back + 2


def test_validators_that_fell_silent_on_different_states_go_on_when_they_are_back(networks: Networks) -> None:
    """One had said the newer one and the other not yet; then their chain nodes have pruned the rounds since."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(3, "first", "second")
    round = network["first"].round
    network.run_to_block(network.clock.slot(round, 0)[0] - 2)
    network.kill("second")
    network.run_to_block(network.clock.attest_by(round) + 1)
    network.kill("first")
    assert said(network, "first").previous != said(network, "second").previous
    network.run_to_block(network.world.final + 130)
    network.start("first", "second")
    agrees_again(network, "first", "second")


@pytest.mark.parametrize("until", [3, 4])
def test_validators_that_had_not_said_yet_what_they_hold_go_on_when_they_are_back(
    networks: Networks, until: int
) -> None:
    """What they named last is the state of their last snapshot, or the one after the first round of their log."""
    network = networks(miners=2, keep_blocks=45, validators={"first": 100, "second": 100, "liar": 20})
    network.start("miner-1", "miner-2", "first", "second")
    network.start("liar", role=with_parts(liar()))
    network.run_until(until, "first", "second")
    network.run_to_block(network.clock.slot(network["first"].round, 0)[0] - 2)
    network.kill("first", "second")
    saved = network["first"].node.held.saved
    assert said(network, "first").previous != saved.link
    network.run_to_block(network.world.final + 130)
    network.start("first", "second")
    agrees_again(network, "first", "second")
