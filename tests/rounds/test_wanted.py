"""What a list of wanted payloads can make others upload. Whole networks in modelled time, in which one hotkey lists all
payloads of the last rounds, in every round."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from loguru import logger

from murmur.lab.simulation.network import Network
from murmur.lab.simulation.signer import HashSigner
from murmur.lab.simulation.store import Call
from murmur.node.sync.repair_requests import encode_wanted
from murmur.protocol import keys
from murmur.protocol.messages import encode_slot
from murmur.protocol.types import Commitment, Digest
from tests.rounds.test_mirrors import until

ROUNDS = range(4, 12)
BACK = 12
LIARS = 4

Made = Callable[[str], Network]


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Made]:
    torch.set_num_threads(1)
    logger.disable("")
    made: list[Network] = []

    def make(name: str) -> Network:
        made.append(Network(tmp_path / name, 1, validators=3, miners=5, tell=lambda member, event, round, fields: None))
        return made[-1]

    yield make
    for network in made:
        network.close()
    logger.enable("")


class Liars:
    """Hotkeys with a bucket and nothing else that say that they lack everything; they commit to nothing that exists,
    or not even that."""

    def __init__(self, network: Network, number: int, *, commit: bool) -> None:
        self.network, self.commit, self.round = network, commit, -1
        self.signers = [HashSigner(f"liar-{one}") for one in range(number)]
        for one, signer in enumerate(self.signers):
            network.store.bucket(f"liar-{one}")
            network.world.register(signer.peer)
            network.world.publish(signer.peer, encode_slot(network.store.pointer(f"liar-{one}"), None, None))

    def lie(self) -> None:
        network = self.network
        round = network.run.clock.round_at(network.world.final)
        if round == self.round or round < 0:
            return
        self.round = round
        peers = [member.peer for member in network.members.values() if not member.validates]
        for one, signer in enumerate(self.signers):
            rounds = range(max(0, round - BACK + one), round + 1)  # not everybody's begins with the same one
            said = encode_wanted([(old, peer) for old in rounds for peer in peers], network.run.id, signer)
            bucket = network.store.bucket(f"liar-{one}")
            bucket.put(keys.wanted(network.run.id), said, timeout_seconds=1)
            if self.commit:
                statement = Commitment(round, Digest(bytes(32)))
                network.world.publish(signer.peer, encode_slot(network.store.pointer(f"liar-{one}"), statement, None))


def copies(network: Network, number: int, *, commit: bool) -> float:
    """The mean number of copies that are uploaded in a round beside so many liars."""
    uploaded = Counter[int]()

    def watch(call: Call) -> None:
        if "/mirror/" in call.key and call.verb in ("put", "complete"):
            uploaded[network.run.clock.round_at(network.world.final)] += 1

    network.store.before = watch
    network.begin()
    liars = Liars(network, number, commit=commit)

    def played() -> bool:
        liars.lie()
        return network.run.clock.round_at(network.world.final) > ROUNDS[-1]

    until(network, played, rounds=20)
    return sum(uploaded[round] for round in ROUNDS) / len(ROUNDS)


@pytest.fixture
def calm(networks: Made) -> float:
    return copies(networks("calm"), 0, commit=False)


def test_one_that_never_mines_gets_one_selection_of_copies_in_all_at_most(networks: Made, calm: float) -> None:
    network = networks("liar")
    assert copies(network, 1, commit=False) <= calm + network.spec.gauntlet.contributors


@pytest.mark.parametrize("number", [1, LIARS])
def test_those_that_commit_to_nothing_get_no_more_together(networks: Made, calm: float, number: int) -> None:
    network = networks("liar")
    assert copies(network, number, commit=True) <= calm + network.spec.gauntlet.contributors
