"""A bucket of our own that refuses us: told once a round, asked less and less often, and at last somebody has to mend
it."""

from collections.abc import Callable, Iterator

import pytest
from loguru import logger

from murmur.lab.simulation.store import Faults
from murmur.node.sync.backoff import PAUSE_SECONDS, ROUNDS, Backoff
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, ConfigError, StorageError
from storage.realtime import RealTime
from tests.fakes.bucket import FakeStore
from tests.network import FakeNetwork

REFUSED = AccessDenied("put: the credential is unknown or may not do this (403)")


class Paused(RealTime):
    def __init__(self) -> None:
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def told() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


class Node:
    """What a node's loop does with its backoff, in the chain's round `round`."""

    def __init__(self, *, denied: bool) -> None:
        self.store, self.time, self.round = FakeStore(), Paused(), 0
        own = self.store.bucket("own")
        self.store.faults["own"] = Faults(denied=denied)
        self.backoff = Backoff(own, 100.0, lambda: self.round, self.time)

    def fails(self, round: int, fault: ChainError | StorageError) -> None:
        """Its state stands at round 0 for ever."""
        self.round = round
        self.backoff.pause_after(0, fault)


def test_three_rounds_on_end_end_the_node_with_what_to_check(told: list[str]) -> None:
    node = Node(denied=True)
    for round in range(7, 7 + ROUNDS - 1):
        for _ in range(6):
            node.fails(round, REFUSED)
    assert len(told) == ROUNDS - 1, "once a round"
    assert node.time.pauses[:4] == [1.0, 2.0, 4.0, 5.0], "never longer than a twentieth of a round"
    with pytest.raises(ConfigError, match=r"refused us for 3 rounds.*MURMUR_BUCKET__ACCESS_KEY.*MURMUR_BUCKET__NAME"):
        node.fails(7 + ROUNDS - 1, REFUSED)


def test_a_round_between_begins_the_count_anew() -> None:
    node = Node(denied=True)
    for round in (0, 1, 3, 4, 6):
        node.fails(round, REFUSED)


@pytest.mark.parametrize("fault", [REFUSED, BucketMissing("there is none"), StorageError("slow"), ChainError("slow")])
def test_what_is_not_our_buckets_refusal_never_ends_the_node(fault: ChainError | StorageError, told: list[str]) -> None:
    """A stranger's bucket, the run's data say, refuses too."""
    node = Node(denied=False)
    for round in range(2 * ROUNDS):
        node.fails(round, fault)
    assert node.time.pauses == [PAUSE_SECONDS] * 2 * ROUNDS
    assert len(told) == 2 * ROUNDS
    assert node.store.buckets["own"] == {}


def test_a_miner_whose_token_is_revoked_ends_and_others_go_on(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=2)
    network.start()
    network.run_until(2)
    network.store.faults["miner-1"] = Faults(denied=True)
    (fault,) = network.until_dead("miner-1")
    assert isinstance(fault, ConfigError)
    assert "refused us" in str(fault)
    assert network["miner-2"].alive


def test_a_validator_whose_token_is_revoked_ends_too(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=1, validators={"one": 100, "two": 99})
    network.start()
    network.run_until(2)
    network.store.faults["two"] = Faults(denied=True)
    (fault,) = network.until_dead("two")
    assert isinstance(fault, ConfigError)
    assert "refused us" in str(fault)
