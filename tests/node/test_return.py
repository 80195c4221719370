"""Coming back: after a wiped disk, after rounds that could not be had, and from a state that only we hold."""

from collections.abc import Callable
from dataclasses import replace
from shutil import rmtree

import pytest

from gauntlet.agreement import Agreed
from node.events import Events
from node.held import Held
from node.state import Consensus, Snapshot
from protocol.errors import ChainError, StorageError
from protocol.types import Digest
from storage.realtime import REAL
from tests.fakes.bucket import Call
from tests.network import FakeNetwork, saved_state, with_parts
from tests.node.test_catchup import hide_checkpoints
from tests.node.test_checkpoints import MissesEveryRound, NoCheckpoints
from training import checkpoint
from training.replica import Replica, genesis_theta

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
    assert not network["second"].node.behind
    network.run_until(back + 5)
    network.assert_agreement()
    assert not {void for void in network["first"].voids() if void >= back + 4}


def test_a_node_that_could_not_have_a_rounds_bytes_is_back_within_two_rounds_once_it_can(networks: Networks) -> None:
    network = networks(miners=2)
    network.start("miner-1", "miner-2")
    network.start("validator", role=with_parts(NoCheckpoints))
    network.run_until(2)

    def cut(call: Call) -> None:
        if call.reader == "miner-2" and ("/payload/00000002" in call.key or "/mirror/00000002" in call.key):
            raise StorageError("no connection")

    network.store.before = cut
    network.run_blocks(lambda: bool(network["miner-2"].events("passed_over")))
    assert not network["miner-2"].events("caught_up")
    network.store.before = lambda call: None
    can = network["validator"].round
    network.run_blocks(lambda: bool(network["miner-2"].events("caught_up")))
    back = network["miner-2"].events("caught_up")[0]
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
    network.run_blocks(lambda: bool(network["second"].events("passed_over")))
    network.run_blocks(lambda: any(event["why"] == "apart" for event in network["second"].events("unobserved")))
    network.store.before = lambda call: None
    network.run_blocks(lambda: bool(network["second"].events("caught_up")))
    left, back = network["second"].events("passed_over")[0]["round"], network["second"].events("caught_up")[0]["round"]
    network.run_until(back + 2)
    judged = {event["round"]: event["unobserved"] for event in network["second"].events("judged")}
    assert {why for round, why in judged.items() if left < round < back} <= {"apart", "late"}
    assert judged[back + 1] is None
    assert not any(left <= event["round"] < back for event in network["second"].events("weights"))


@pytest.mark.parametrize("name", ["miner-2", "second"])
def test_who_follows_what_most_are_silent_about_says_so_until_they_agree(networks: Networks, name: str) -> None:
    """One of three validators speaks, and may be the one that could not follow the last agreed round."""
    network = networks(miners=2, validators={"first": 100, "second": 100, "third": 100})
    network.start()
    network.run_until(4)
    network.kill("first")
    network.kill("second")
    network.run_until(6, "third")
    if name == "miner-2":
        network.kill(name)
    rmtree(network[name].home)
    network.start(name)
    network.run_blocks(lambda: bool(network[name].events("caught_up")))
    assert network[name].events("caught_up")[-1]["apart"]
    assert network[name].node.held.saved.apart
    network.start(*{"first", "second"} - {name})
    back = network["third"].round
    network.run_until(back + 4)
    network.assert_agreement()
    assert not network[name].node.held.saved.apart
    assert not {void for void in network["third"].voids() if void > back + 2}


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
    held = Held(network.spec, network.run.id, other, store, Events(network.folder / "events", "miner-2"))
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


def test_when_nobody_can_have_an_agreed_rounds_bytes_the_run_goes_on_without_it(networks: Networks) -> None:
    """Whoever stood by its record has lost its disk since, and its miners are gone."""
    network = networks(miners=3)
    network.start()
    network.run_until(2)
    validator = network["validator"]
    network.run_blocks(lambda: any(event["round"] == 2 for event in validator.events("posted")))
    validator.node.before_apply = lambda decision: validator.node.held.clear_cache()

    def cut(call: Call) -> None:
        if "/00000002" in call.key and "report" not in call.key:
            raise StorageError("no connection")

    network.store.before = cut
    for name in ("miner-1", "miner-2", "miner-3"):
        network[name].node.before_apply = lambda decision, name=name: network[name].node.held.clear_cache()
    network.run_blocks(lambda: bool(validator.events("passed_over")))
    network.run_until(6)
    assert {event["round"] for event in validator.events("passed_over")} == {2}
    assert 5 not in validator.voids()  # its bytes are waited for as long as a round takes
    network.assert_agreement()


def test_a_chain_that_does_not_answer_for_a_moment_costs_no_round(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(3)
    node = network["validator"].node
    publish, failed = node.before_apply, []

    def once(decision: Agreed) -> None:
        if not failed:
            failed.append(decision)
            raise ChainError("connection lost")
        publish(decision)

    node.before_apply = once
    network.run_until(8)
    assert failed
    assert not network["validator"].voids()
    assert {event["round"] for event in network["validator"].events("judged")} >= set(range(8))


def test_a_validator_alone_goes_on_when_its_chain_node_has_pruned_the_round_that_it_left_in(networks: Networks) -> None:
    network = networks(miners=2, keep_blocks=45)
    network.start()
    network.run_until(2)
    network.run_blocks(lambda: any(event["round"] == 2 for event in network["validator"].events("posted")))
    network.kill("validator")
    network.run_to_block(network.world.final + 130)
    network.start("validator")
    network.run_blocks(lambda: network["validator"].round > 8)
    back = network["validator"].round
    network.run_until(back + 3)
    assert not {back + 1, back + 2} & set(network["validator"].voids())
    assert network["miner-1"].thetas()[back + 2] == network["validator"].thetas()[back + 2]
