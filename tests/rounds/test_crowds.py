"""A crowd that points to somebody's bucket costs that bucket nothing, and nobody its place. Whole networks in modelled
time: real miners and validators, whose requests the store counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger

from murmur.lab.simulation.network import Network
from murmur.lab.simulation.signer import HashSigner
from murmur.lab.simulation.store import Call, StoreBucket
from murmur.protocol.messages import encode_slot
from murmur.protocol.types import Commitment, Digest, PeerId, Pointer
from tests.rounds.test_mirrors import contributing, until

STRANGERS = 200
CALM_ROUNDS = range(2, 5)
CROWDED_ROUNDS = range(6, 9)
"""The strangers come in the round between."""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    torch.set_num_threads(1)
    logger.disable("")
    told: list[object] = []
    made = Network(
        tmp_path,
        1,
        validators=2,
        miners=3,
        tell=lambda member, event, round, fields: told.append((member.name, event, round, fields)),
    )
    made.history = told  # type: ignore[attr-defined]
    yield made
    made.close()
    logger.enable("")


def the_same(pointer: Pointer, number: int) -> Pointer:
    return pointer


def another_key(pointer: Pointer, number: int) -> Pointer:
    """The server refuses it."""
    return replace(pointer, access_key=f"made-up-{number}")


def refusing(network: Network) -> None:
    """The store knows the credential of each bucket."""
    serve = network.store.open

    def opened(pointer: Pointer, **options: Any) -> StoreBucket:
        bucket = serve(pointer, **options)
        bucket.revoked = pointer != network.store.pointer(pointer.bucket)
        return bucket

    network.store.open = opened  # type: ignore[method-assign]


class Crowd:
    """Hotkeys that point to the victim's bucket and commit in each round, every second one to what a miner commits
    to."""

    def __init__(self, network: Network, victim: str, pointer: Callable[[Pointer, int], Pointer]) -> None:
        self.network, self.committed = network, -1
        self.strangers: list[tuple[PeerId, Pointer]] = []
        for number in range(STRANGERS):
            peer = HashSigner(f"stranger-{number}").peer
            network.world.register(peer)
            self.strangers.append((peer, pointer(network.store.pointer(victim), number)))
        for peer, target in self.strangers:
            network.world.publish(peer, encode_slot(target, None, None))

    def commit(self) -> None:
        """Commit as soon as the miner has."""
        network, miner = self.network, self.network.members["miner-1"].peer
        slot = next(peer for peer in network.world.state(network.world.final).peers if peer.id == miner).slot
        statement = slot.statement if slot is not None else None
        if isinstance(statement, Commitment) and statement.round > self.committed:
            self.committed = statement.round
            for number, (peer, target) in enumerate(self.strangers):
                envelope = statement.envelope if number % 2 else Digest(number.to_bytes(32, "little"))
                network.world.publish(peer, encode_slot(target, Commitment(statement.round, envelope), None))


@pytest.mark.parametrize(
    ("victim", "pointer"),
    [
        ("miner-1", the_same),
        pytest.param("validator-1", the_same, marks=pytest.mark.check),
        pytest.param("miner-1", another_key, marks=pytest.mark.check),
        pytest.param("validator-1", another_key, marks=pytest.mark.check),
    ],
)
def test_a_bucket_that_200_strangers_point_to_gets_at_most_twice_the_requests(
    network: Network, victim: str, pointer: Callable[[Pointer, int], Pointer]
) -> None:
    asked = Counter[int]()

    def count(call: Call) -> None:
        if call.bucket == victim and call.reader != victim:
            asked[network.run.clock.round_at(network.world.final)] += 1

    network.store.before = count
    refusing(network)
    network.begin()
    until(network, lambda: network.run.clock.round_at(network.world.final) > CALM_ROUNDS[-1])
    crowd = Crowd(network, victim, pointer)

    def played() -> bool:
        crowd.commit()
        return network.run.clock.round_at(network.world.final) > CROWDED_ROUNDS[-1]

    until(network, played)
    calm, crowded = sum(asked[round] for round in CALM_ROUNDS), sum(asked[round] for round in CROWDED_ROUNDS)
    assert crowded <= 2 * calm
    assert all(len(contributing(network, "miner-2")[round]) == 3 for round in (*CALM_ROUNDS, *CROWDED_ROUNDS[:-1]))
