"""A bucket of our own that takes no writes: told once a round, and asked less and less often until it is mended."""

from collections.abc import Callable, Iterator

import pytest
from loguru import logger

from murmur.lab.simulation.store import Faults
from murmur.node.sync.backoff import PAUSE_SECONDS, Backoff
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, StorageError
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


def test_it_is_said_once_a_round_with_its_reason_and_pauses_grow(told: list[str]) -> None:
    node = Node(denied=True)
    for round in range(7, 12):
        for _ in range(6):
            node.fails(round, REFUSED)
    assert [line.partition(":")[0] for line in told] == [f"round {round}" for round in range(7, 12)]
    assert all("(put: the credential" in line and "since round 7" in line and "murmur doctor" in line for line in told)
    assert node.time.pauses[:4] == [1.0, 2.0, 4.0, 5.0], "never longer than a twentieth of a round"


def test_a_round_between_begins_anew(told: list[str]) -> None:
    node = Node(denied=True)
    for round in (0, 1, 3):
        node.fails(round, REFUSED)
    assert "since round 3" in told[-1]


def test_a_bucket_that_takes_no_writes_for_another_reason_is_as_bad(told: list[str]) -> None:
    node = Node(denied=False)
    node.store.faults["own"] = Faults(down=True)
    for _ in range(3):
        node.fails(0, StorageError("put: out of time"))
    assert node.time.pauses == [1.0, 2.0, 4.0]
    assert len(told) == 1


@pytest.mark.parametrize("fault", [REFUSED, BucketMissing("there is none"), StorageError("slow"), ChainError("slow")])
def test_what_is_not_our_buckets_fault_is_told_each_time(fault: ChainError | StorageError, told: list[str]) -> None:
    """A stranger's bucket, the run's data say, refuses too."""
    node = Node(denied=False)
    for round in range(6):
        node.fails(round, fault)
    assert node.time.pauses == [PAUSE_SECONDS] * 6
    assert len(told) == 6
    assert node.store.buckets["own"] == {}


def test_a_validator_whose_token_is_revoked_goes_on_once_it_is_renewed(networks: Callable[..., FakeNetwork]) -> None:
    network = networks(miners=1, validators={"one": 100, "two": 99})
    network.start()
    network.run_until(2)
    network.store.faults["two"] = Faults(denied=True)
    network.run_to_block(network.clock.start(7))
    del network.store.faults["two"]
    network.run_until(10)
    assert 9 in [event["round"] for event in network["two"].events("word_posted")]
    network.assert_agreement()
