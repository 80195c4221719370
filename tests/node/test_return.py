"""Coming back: after a wiped disk, after rounds that could not be had, and from a state that only we hold."""

from collections.abc import Callable
from dataclasses import replace
from shutil import rmtree

import pytest

from murmur.node.node import VAIN_ROUNDS
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Consensus, Snapshot
from murmur.node.telemetry.events import Events
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.types import Digest, Selection
from murmur.training import checkpoint
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from storage.realtime import REAL
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, saved_state, with_parts
from tests.node.lies import returns, votes_of, wipe
from tests.node.test_catchup import hide_checkpoints
from tests.node.test_checkpoints import MissesEveryRound, NoCheckpoints

Networks = Callable[..., FakeNetwork]


def test_a_wiped_validator_of_two_judges_again_within_four_rounds(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("miner-1", "miner-2")
    network.start("first", "second", role=with_parts(MissesEveryRound))
    network.run_until(3)
    network.kill("second")
    network.run_until(16)
    assert network["first"].voids()  # half of the stake cannot decide while the other half counts
    rmtree(network["second"].home)
    network.store.buckets["second"].clear()
    network.start("second", role=with_parts(MissesEveryRound))
    back = network["first"].round
    network.run_blocks(lambda: bool(network["second"].events("reported")))
    assert network["second"].events("caught_up")
    assert network["second"].events("reported")[0]["round"] < back + 4
    assert network["second"].node.at_tip
    network.run_until(back + 5)
    network.assert_agreement()
    assert not {void for void in network["first"].voids() if void >= back + 4}


@pytest.mark.parametrize("theta_0", ["readable", "lost"])
def test_a_node_that_could_not_have_a_rounds_bytes_is_back_within_two_rounds_once_it_can(
    networks: Networks, theta_0: str
) -> None:
    network = networks(miners=2)
    genesis = keys.blob(Digest(bytes.fromhex(network.spec.genesis_checkpoint)))
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(NoCheckpoints))
    network.run_until(2)

    def cut(call: Call) -> None:
        lost = "/payload/00000003" in call.key or "/mirror/00000003" in call.key
        if call.reader == "miner-2" and (lost or (theta_0 == "lost" and call.key == genesis)):
            raise StorageError("no connection")

    network.store.before = cut
    network.run_blocks(lambda: bool(network["miner-2"].events("not_followed")))
    assert not returns(network, "miner-2")
    network.store.before = lambda call: None
    can = network["validator"].round
    network.run_blocks(lambda: bool(returns(network, "miner-2")))
    (back,) = returns(network, "miner-2")
    assert back["round"] <= can + 2
    assert back["origin"] == "our own state"
    network.run_until(back["round"] + 2)
    last = back["round"] + 1
    assert network["miner-2"].thetas()[last] == network["miner-1"].thetas()[last]


def test_a_validator_that_passed_a_round_over_judges_nobody_before_it_is_back(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 300, "second": 100})
    network.start("miner-1", "miner-2", "first")
    network.start("second", role=with_parts(MissesEveryRound))
    network.run_until(2)

    def cut(call: Call) -> None:
        if call.reader == "second" and ("/payload/00000002" in call.key or "/mirror/00000002" in call.key):
            raise StorageError("no connection")

    network.store.before = cut
    network.run_blocks(lambda: bool(network["second"].events("not_followed")))
    network.run_blocks(lambda: any(event["why"] == "apart" for event in network["second"].events("unobserved")))
    network.store.before = lambda call: None
    network.run_blocks(lambda: bool(returns(network, "second")))
    left, back = network["second"].events("not_followed")[0]["round"], returns(network, "second")[0]["round"]
    network.run_until(back + 2)
    judged = {event["round"]: event["unobserved"] for event in network["second"].events("judged")}
    assert {why for round, why in judged.items() if left < round < back} <= {"apart", "late"}
    assert judged[back + 1] is None
    assert not any(left <= event["round"] < back for event in network["second"].events("weights"))


@pytest.mark.parametrize("name", [pytest.param("miner-2", marks=pytest.mark.slow), "second"])
def test_who_comes_back_with_nothing_while_most_are_silent_stands_where_the_chain_says(
    networks: Networks, name: str
) -> None:
    """One of three validators speaks, and nothing is agreed."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "third": 100})
    network.start()
    network.run_until(4)
    network.kill("first", "second")
    network.run_until(6, "third")
    wipe(network, name)
    network.start(name)
    network.run_blocks(lambda: bool(network[name].events("caught_up")))
    assert network[name].node.at_tip
    assert network[name].node.state.ref == network["third"].node.state.ref
    network.start(*{"first", "second"} - {name})
    back = network["third"].round
    network.run_until(back + 4)
    network.assert_agreement()
    assert not {void for void in network["third"].voids() if void > back + 1}


@pytest.mark.parametrize("hidden", [False, True])
def test_a_node_that_followed_what_only_a_minority_held_goes_back_before_the_fork(
    networks: Networks, hidden: bool
) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(5)
    network.kill("miner-2")
    saved, store = saved_state(network, "miner-2")
    other = Replica(network.spec, genesis_theta(network.spec.model, 9))
    state, link = checkpoint.save(store.snapshot, other.consensus_state()), Digest(b"\1" * 32)
    minority = Consensus(Snapshot(saved.round, link, state))
    store.commit(replace(saved, consensus=minority, theta=other.digest(), link=link))
    store.close()
    if hidden:
        hide_checkpoints(network)
    network.start("miner-2")
    network.run_until(7)
    back = network["miner-2"].events("caught_up")[-1]
    assert back["origin"].startswith("genesis" if hidden else "the checkpoint")
    assert network["miner-2"].thetas()[6] == network["miner-1"].thetas()[6]


def test_a_node_that_followed_a_minority_steps_back_by_what_it_has_itself(networks: Networks) -> None:
    """Nobody gives it a checkpoint, nor the payloads that it has applied before."""
    network = networks(miners=2)
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(NoCheckpoints))
    network.run_until(5)
    network.kill("miner-2")
    saved, store = saved_state(network, "miner-2")
    before = saved.consensus.snapshot.round
    (last,) = saved.consensus.log
    assert (before, last.round) == (4, 4)
    other = Replica(network.spec, genesis_theta(network.spec.model, 9))
    held = NodeState(network.spec, network.run.id, other, store, Events(network.folder / "events", "miner-2"))
    held.load_consensus(saved.consensus.snapshot)
    other.outer_step(held.redo.updates(last, 1, REAL), alpha=last.alpha / 2, aggregate=last.aggregate)
    forked = replace(last, alpha=last.alpha / 2, link=Digest(b"\1" * 32))
    minority = replace(saved.consensus, log=(forked,))
    store.commit(replace(saved, consensus=minority, theta=other.digest(), link=forked.link))
    store.close()

    def cut(call: Call) -> None:
        kinds, rounds = ("payload", "mirror"), range(before)
        if call.reader == "miner-2" and any(f"/{kind}/{round:08d}" in call.key for kind in kinds for round in rounds):
            raise StorageError("no connection")

    network.store.before = cut
    network.start("miner-2")
    network.run_until(7)
    back = network["miner-2"].events("caught_up")[-1]
    assert back["origin"] == f"our own state of round {before}"
    assert network["miner-2"].thetas()[6] == network["miner-1"].thetas()[6]


def test_when_nobody_can_have_an_agreed_rounds_bytes_the_run_goes_on_from_before_it(networks: Networks) -> None:
    """Whoever named its peers has lost its disk since, and its miners are gone. Everybody goes back in one round, once
    the validator has waited in vain for long enough."""
    network = networks(miners=3)
    network.start()
    network.run_until(2)
    validator = network["validator"]
    network.run_blocks(lambda: any(event["round"] == 2 for event in validator.events("word_posted")))

    def cut(call: Call) -> None:
        if "/00000002" in call.key and "report" not in call.key:
            raise StorageError("no connection")

    network.store.before = cut
    before = validator.node.state.ref
    for member in network.members.values():
        member.node.before_apply = lambda _, member=member: member.node.state.clear_cache()  # type: ignore[misc]
    network.run_blocks(lambda: bool(validator.events("not_followed")))
    lost = validator.events("not_followed")[0]["round"]
    network.run_until(lost + VAIN_ROUNDS + 4)
    assert 2 not in validator.thetas()
    rounds = range(lost + 1, lost + VAIN_ROUNDS + 3)
    votes = [vote for vote in votes_of(network, "validator") if vote.round in rounds]
    assert [vote.state_ref for vote in votes if vote.round <= lost + VAIN_ROUNDS] == [None] * VAIN_ROUNDS
    (back,) = [vote for vote in votes if vote.round == lost + VAIN_ROUNDS + 1]
    assert back.state_ref == before
    network.assert_agreement()
    assert len({member.thetas()[lost + VAIN_ROUNDS + 3] for member in network.members.values()}) == 1
    assert not {void for void in validator.voids() if void > lost + VAIN_ROUNDS + 1}


def test_a_chain_that_does_not_answer_for_a_moment_costs_no_round(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(3)
    node = network["validator"].node
    publish, failed = node.before_apply, list[Selection | None]()

    def once(selection: Selection | None) -> None:
        if not failed:
            failed.append(selection)
            raise ChainError("connection lost")
        publish(selection)

    node.before_apply = once
    network.run_until(8)
    assert failed
    assert not network["validator"].voids()
    assert {event["round"] for event in network["validator"].events("judged")} >= set(range(8))
