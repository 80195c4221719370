"""Validators that state what is not so, and what they state."""

from dataclasses import replace
from shutil import rmtree
from typing import ClassVar

import pytest
from rounds.vote import Vote

from gauntlet.agreement import Claim
from protocol import keys
from protocol.messages import encode_link, encode_statement, record_link
from protocol.types import Attestation, Digest, PeerId, Record
from tests.network import FakeNetwork
from training.replica import Replica, genesis_theta

Pairs = tuple[tuple[PeerId, Digest], ...]


def liar() -> type[Vote]:
    """States pairs that nobody can follow, another one in every round; each class of its own."""

    class Liar(Vote):
        def post(self, round: int, statement: Record | Attestation) -> int | None:
            nothing = Digest(f"{id(type(self))} {round}".encode().ljust(32)[:32])
            return super().post(round, replace(statement, theta=nothing, previous=nothing))

    return Liar


class Forger(Vote):
    """States `claim` once there is one."""

    claim: ClassVar[Claim | None] = None

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        if self.claim is not None:
            statement = replace(statement, theta=self.claim[0], previous=self.claim[1])
        return super().post(round, statement)


@pytest.fixture
def forger() -> type[Forger]:
    return type("OneForger", (Forger,), {})


def forge(network: FakeNetwork, on: str, pairs: Pairs = (), *, bitmap: int = 0, round: int | None = None) -> Claim:
    """The claim after an invented record of that round (default: the one it stands at) on top of what this node holds;
    the liar's bucket shows the record."""
    held = network[on].node.held
    record = encode_statement(Record(held.saved.round if round is None else round, bitmap, *held.claim))
    head = network.run.head_at(held.saved.round)
    other = Replica(network.spec, genesis_theta(network.spec.model, 1))
    other.load_consensus(held.replica.consensus_state())
    other.outer_step([], alpha=1.0, aggregate="filtered_mean")
    link = record_link(record, pairs, head)
    shown = encode_link(record, pairs, head)
    network.store.bucket("liar").put(keys.statement(network.run.id, link), shown, timeout_seconds=1)
    return other.digest(), link


def wipe(network: FakeNetwork, *names: str) -> None:
    for name in names:
        network.kill(name)
        rmtree(network[name].home)


class WrongTheta(Forger):
    """States the link that the first holds, and a theta that is not its."""

    of: ClassVar[FakeNetwork | None] = None

    def post(self, round: int, statement: Record | Attestation) -> int | None:
        if self.of is not None:
            link = self.of["first"].node.held.saved.link
            statement = replace(statement, theta=Digest(b"w" * 32), previous=link)
        return super().post(round, statement)


def said(network: FakeNetwork, name: str) -> Attestation | Record:
    slots = {peer.id: peer.slot for peer in network.world.state(network.world.final).peers}
    slot = slots[network[name].peer]
    assert slot is not None
    assert isinstance(slot.statement, Attestation | Record)
    return slot.statement


def depth(network: FakeNetwork, name: str) -> int:
    """Agreed rounds in what this node holds."""
    return network[name].node.held.replica.outer.rounds


def rounds_more(network: FakeNetwork, rounds: int) -> int:
    """Lets so many rounds pass; the round of the head then."""
    network.run_to_block(network.world.final + rounds * network.spec.clock.round_blocks)
    return network.clock.round_at(network.world.final)
