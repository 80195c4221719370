"""A few validators, of whom one disappears, lies or withholds: every node reaches the same decision, from the chain."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gauntlet.agreement import SEAT_ROUNDS, abstention
from murmur.node.state.saved import Consensus, Snapshot
from murmur.protocol import keys
from murmur.protocol.types import Digest, Vote
from murmur.rounds.votes import Votes
from murmur.training import checkpoint
from murmur.training.checkpoint import parse_outer
from sparseloco.digest import theta_digest
from tests.network import FakeNetwork, saved_state, with_parts
from tests.small_run import OWNER

Networks = Callable[..., FakeNetwork]


def decisions(network: FakeNetwork, name: str) -> dict[int, tuple[bool, tuple[str, ...]]]:
    return {event["round"]: (event["void"], tuple(event["contributing"])) for event in network[name].events("applied")}


def assert_one_branch(network: FakeNetwork, last: int) -> None:
    """Everybody decided the same in every round that both took part in, and holds the same theta."""
    network.assert_agreement()
    found: dict[int, object] = {}
    for name in network.members:
        for round, decision in decisions(network, name).items():
            assert found.setdefault(round, decision) == decision
    assert max(found) >= last


def test_of_two_equal_validators_one_goes_on_alone_once_the_vote_of_the_other_is_too_old(networks: Networks) -> None:
    network = networks(miners=1, validators={"first": 100, "second": 100})
    network.start()
    network.run_until(1)
    network.kill("first")
    network.run_until(SEAT_ROUNDS + 4)
    assert_one_branch(network, SEAT_ROUNDS + 3)
    # It has half of the stake, and counts for so many rounds after its last vote.
    assert all(1 <= round <= SEAT_ROUNDS + 1 for round in network["second"].voids())


def test_strangers_with_permits_count_for_nothing_cost_no_round_and_are_asked_for_nothing(networks: Networks) -> None:
    """The owner's hotkey that only posted the spec, and a miner with stake. The validator announces itself."""
    network = networks(miners=2)
    network._publish(network["validator"].peer, "validator", None)
    network.world.set_stake(OWNER.peer, 10**15, True)
    network.world.set_stake(network["miner-1"].peer, 10**14, True)
    network.world.step(1)
    network.start()
    network.run_until(3)
    assert network["validator"].voids() == []
    assert [event["round"] for event in network["validator"].events("word_posted")] == [0, 1, 2]
    for member in network.members.values():
        assert member.node.sources().validators() == [network["validator"].peer]


class Liar(Votes):
    """Says something else in every round."""

    def send(self, round: int, vote: Vote) -> int | None:
        node = self.node
        everyone = sum(1 << p.uid for p in node.ports.chain.peers(node.head()) if not p.validates and p.uid)
        nowhere, nothing = Digest(bytes([7] * 32)), Digest(bytes(32))
        match round:
            case 0:
                vote = replace(vote, theta=nowhere)
            case 1:
                vote = replace(vote, previous=nowhere)
            case 2:
                vote = replace(vote, bitmap=vote.bitmap | 1)  # the owner has committed nothing
            case 3:
                vote = replace(vote, bitmap=everyone)  # one more than may contribute
            case 4:
                node.wait_for(node.clock.vote_deadline(round) - 1, "the last moment")
            case 5:
                super().send(round, replace(vote, theta=nowhere))
            case 6:
                super().send(round, vote)
                node.wait_for(node.clock.vote_deadline(round) - 1, "the last moment")
                vote = replace(vote, theta=nowhere)
            case 7:
                super().send(round, vote)
                vote = abstention(round)
            case 8:
                vote = replace(vote, theta=nothing, previous=nothing)  # names peers, and no state
            case 9:
                return None
        return super().send(round, vote)


LIES = 10


def test_a_third_that_lies_in_every_round_voids_none_and_moves_nobody_apart(networks: Networks) -> None:
    network = networks(miners=2, validators={"honest": 100, "other": 100, "liar": 100}, contributors=1)
    network.start("honest", "other", "miner-1", "miner-2")
    network.start("liar", role=with_parts(Liar))
    network.run_until(LIES)
    assert_one_branch(network, LIES - 1)
    told = {event["round"] for event in network["liar"].events("word_posted")}
    assert told >= set(range(LIES - 1))
    for name in ("honest", "other", "miner-1"):
        assert network[name].voids() == []
    for round in range(LIES):
        assert len(network["miner-1"].contributing(round)) == 1


class Withholder(Votes):
    """Copies nothing, whoever lacks it."""

    def hold(self, round: int, at_commit: Any, checked: Any) -> None:
        pass


def test_bytes_that_vanish_after_the_deadline_are_repaired_from_another_validators_mirror(networks: Networks) -> None:
    network = networks(miners=2, validators={"first": 100, "second": 100})
    network.start("miner-1", "miner-2", "second")
    network.start("first", role=with_parts(Withholder))
    mirror = keys.mirror_reveal(network.run.id, 0, network["miner-1"].peer)
    network.run_blocks(lambda: mirror in network.store.buckets["second"])
    network.store.buckets["miner-1"].clear()
    network.run_until(1)
    assert_one_branch(network, 0)
    assert len(network["miner-2"].contributing(0)) == 2


def mended(network: FakeNetwork, name: str) -> list[str]:
    """What the node took in place of what it had saved."""
    return [event["origin"] for event in network[name].events("caught_up") if event["origin"] != "our own state"]


def test_a_node_with_a_wrong_theta_finds_it_out_and_catches_up(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.kill("miner-2")
    spoil(network, "miner-2")
    network.start("miner-2")
    network.run_until(5)
    assert mended(network, "miner-2")
    assert network["miner-2"].thetas()[4] == network["miner-1"].thetas()[4]


def test_a_node_with_a_wrong_link_finds_it_out_and_catches_up(networks: Networks) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.kill("miner-2")
    spoil(network, "miner-2", link=Digest(bytes(32)))
    network.start("miner-2")
    network.run_until(5)
    assert mended(network, "miner-2")
    assert network["miner-2"].thetas()[4] == network["miner-1"].thetas()[4]


def spoil(network: FakeNetwork, name: str, **changes: Any) -> None:
    """Change what a dead node has saved: the named fields, or else its theta."""
    saved, store = saved_state(network, name)
    if not changes:
        snapshot = saved.consensus.snapshot
        state = checkpoint.load(store.snapshot, snapshot.state, network.spec.model.shapes())
        moved = {name: tensor + 1.0 for name, tensor in state.tensors.items()}
        other = checkpoint.save(store.snapshot, replace(state, tensors=moved))
        theta = theta_digest(moved, network.spec.layout, parse_outer(state.facts, network.spec.layout))
        changes = {"consensus": Consensus(Snapshot(saved.round, saved.link, other)), "theta": theta}
    store.commit(replace(saved, **changes))
    store.close()
