"""Validators that say what is not so, and what stands on chain of anybody's votes."""

from dataclasses import replace
from hashlib import sha256
from shutil import rmtree
from typing import Any, ClassVar

import pytest

from murmur.node.state.saved import Consensus, Snapshot
from murmur.protocol import keys
from murmur.protocol.messages import ENVELOPE_BYTES, encode_selection, link_of
from murmur.protocol.types import Digest, PeerId, Selection, StateRef, Vote
from murmur.rounds.votes import Votes
from murmur.training import checkpoint
from murmur.training.checkpoint import parse_outer
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco.digest import theta_digest
from tests.network import FakeNetwork, saved_state


def liar() -> type[Votes]:
    """Names states that nobody can follow, another one in every round; each class of its own."""

    class Liar(Votes):
        def send(self, round: int, vote: Vote) -> int | None:
            nothing = Digest(f"{id(type(self))} {round}".encode().ljust(32)[:32])
            return super().send(round, replace(vote, theta=nothing, previous=nothing))

    return Liar


class Forger(Votes):
    """Names `state` once there is one."""

    state_ref: ClassVar[StateRef | None] = None
    selects: ClassVar[bool] = True
    """Whether it names anybody with that."""

    def send(self, round: int, vote: Vote) -> int | None:
        if self.state_ref is not None:
            vote = replace(vote, theta=self.state_ref.theta, previous=self.state_ref.link)
            vote = vote if self.selects else replace(vote, bitmap=0)
        return super().send(round, vote)


@pytest.fixture
def forger() -> type[Forger]:
    return type("OneForger", (Forger,), {})


def forge(network: FakeNetwork, on: str, round: int | None = None) -> StateRef:
    """The state after an invented selection of that round (default: the one it stands at) on top of what this node
    holds. Everybody can follow it: the liar's bucket has the selection, and its only payload, which is garbage."""
    held = network[on].node.state
    round = held.saved.round if round is None else round
    garbage = b"g" * network.spec.object_bytes
    envelope = Digest(sha256(garbage[:ENVELOPE_BYTES]).digest())
    pairs = ((network["liar"].peer, envelope),)
    invented = Selection(round, *held.ref, network.run.head_at(round), pairs)
    other = Replica(network.spec, genesis_theta(network.spec.model, 1))
    other.load_consensus(held.replica.consensus_state())
    outer = network.run.spec_at(round).outer
    other.outer_step([None], alpha=outer.alpha, aggregate=outer.aggregate)
    bucket = network.store.bucket("liar")
    bucket.put(keys.payload(network.run.id, round), garbage, timeout_seconds=1)
    bucket.put(keys.selection(network.run.id, link_of(invented)), encode_selection(invented), timeout_seconds=1)
    return StateRef(other.digest(), link_of(invented))


def wipe(network: FakeNetwork, *names: str) -> None:
    for name in names:
        network.kill(name)
        rmtree(network[name].home)


def spoil(network: FakeNetwork, name: str) -> None:
    """Kill this node, and let what it has saved follow from another theta at the same link."""
    network.kill(name)
    saved, store = saved_state(network, name)
    state = checkpoint.load(store.snapshot, saved.consensus.snapshot.state, network.spec.model.shapes())
    moved = {name: tensor + 1.0 for name, tensor in state.tensors.items()}
    wrong = checkpoint.save(store.snapshot, replace(state, tensors=moved))
    theta = theta_digest(moved, network.spec.layout, parse_outer(state.facts, network.spec.layout))
    store.commit(replace(saved, consensus=Consensus(Snapshot(saved.round, saved.link, wrong)), theta=theta))
    store.close()


def vote_of(network: FakeNetwork, name: str) -> Vote:
    """This validator's vote that stands on chain."""
    (vote,) = _votes(network, network[name].peer, network.world.final)
    return vote


def votes_of(network: FakeNetwork, name: str) -> list[Vote]:
    """Every vote that this validator ever said."""
    found: list[Vote] = []
    for block in range(network.world.final + 1):
        found += [vote for vote in _votes(network, network[name].peer, block) if vote not in found[-1:]]
    return found


def _votes(network: FakeNetwork, peer: PeerId, block: int) -> list[Vote]:
    slots = [each.slot for each in network.world.state(block, archive=True).peers if each.id == peer]
    return [slot.statement for slot in slots if slot is not None and isinstance(slot.statement, Vote)]


def refs_of(network: FakeNetwork, name: str) -> set[StateRef]:
    """All that this validator ever named."""
    return {vote.state_ref for vote in votes_of(network, name) if vote.state_ref is not None}


def returns(network: FakeNetwork, name: str) -> list[dict[str, Any]]:
    """Each catch-up of this node but for the one with which a new folder begins."""
    return [event for event in network[name].events("caught_up") if event["round"] > 0]


def depth(network: FakeNetwork, name: str) -> int:
    """Agreed rounds in what this node holds."""
    return network[name].node.state.replica.outer.rounds


def now(network: FakeNetwork) -> int:
    """The round of the final head."""
    return network.clock.round_at(network.world.final)


def rounds_more(network: FakeNetwork, rounds: int) -> int:
    """Lets so many rounds pass; the round of the head then."""
    network.run_to_block(network.world.final + rounds * network.spec.clock.round_blocks)
    return now(network)


def agrees_again(network: FakeNetwork, *names: str, rounds: int = 4) -> None:
    """After so many rounds these hold the same, all that they have applied was the same, and nothing is void."""
    end = rounds_more(network, rounds)
    network.assert_agreement(*names)
    for name in names:
        assert {end - 2, end - 1} <= network[name].thetas().keys() - set(network[name].voids()), name
    assert len({network[name].thetas()[end - 1] for name in names}) == 1
