"""Rounds that break off: why is told once a planned round, and asked less and less often until it is mended."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loguru import logger

from murmur.lab.simulation.store import Faults
from murmur.node.sync.backoff import PAUSE_SECONDS, Backoff
from murmur.node.telemetry.trouble import Trouble, Troubles
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, StorageError
from storage.realtime import RealTime
from tests.fakes.bucket import FakeStore
from tests.network import FakeNetwork

REFUSED = AccessDenied("put: the credential is unknown or may not do this (403)")


class Paused(RealTime):
    """Time that passes only by pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def told() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


ROUND_SECONDS = 100.0


class Node:
    """What a node's loop does with its backoff, in the chain's round `round`."""

    def __init__(self, *, denied: bool) -> None:
        self.store, self.time = FakeStore(), Paused()
        own = self.store.bucket("own")
        self.store.faults["own"] = Faults(denied=denied)
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.troubles = Troubles(self, ROUND_SECONDS, self.time)
        self.backoff = Backoff(own, "", ROUND_SECONDS, self.troubles, self.time)

    def emit(self, kind: str, round: int, **fields: Any) -> None:
        self.events.append((kind, round, fields))

    def fails(self, round: int, fault: ChainError | StorageError) -> None:
        self.time.at = ROUND_SECONDS * round
        self.backoff.pause_after(round, fault)

    def said(self) -> list[tuple[str, str]]:
        return [(kind, str(fields["cause"])) for kind, _, fields in self.events]


def test_it_is_said_once_a_round_with_its_reason_and_pauses_grow(told: list[str]) -> None:
    node = Node(denied=True)
    for round in range(7, 12):
        for _ in range(6):
            node.fails(round, REFUSED)
    assert [line.partition(":")[0] for line in told] == [f"round {round}" for round in range(7, 12)]
    refused = "our own bucket refuses our writes (put: the credential"
    assert all(refused in line and "yours to mend" in line and "provider's console" in line for line in told)
    assert [round for _, round, _ in node.events] == [*range(7, 12)]
    assert node.time.pauses[:4] == [1.0, 2.0, 4.0, 5.0], "never longer than a twentieth of a round"


def test_a_whole_round_between_mends_it_and_begins_anew(told: list[str]) -> None:
    node = Node(denied=True)
    node.fails(0, REFUSED)
    node.fails(0, REFUSED)
    node.backoff.passed(0)
    assert node.said() == [("trouble", "bucket_denied")], "something failed in that round"
    node.backoff.passed(1)
    assert node.said() == [("trouble", "bucket_denied"), ("mended", "bucket_denied")]
    node.fails(1, REFUSED)
    assert len(told) == 2, "said at once, within the same planned round"
    assert node.time.pauses == [1.0, 2.0, 1.0]


def test_a_round_that_ended_in_spite_of_a_failure_mends_nothing() -> None:
    node = Node(denied=True)
    node.backoff.tell(3, Trouble("too_slow"))
    node.backoff.passed(3)
    assert [kind for kind, _, _ in node.events] == ["trouble"]
    node.backoff.passed(4)
    assert node.said()[1:] == [("mended", "too_slow")]


def test_a_whole_round_mends_refusals_of_the_chain_but_does_not_say_that_it_is_not_behind() -> None:
    node = Node(denied=False)
    node.fails(0, ChainError("spent", "SpaceLimitExceeded"))
    node.backoff.passed(0)
    node.backoff.passed(1)
    assert node.said() == [("trouble", "posts_used_up"), ("mended", "posts_used_up")]
    node.troubles.tell(1, Trouble("chain_behind"))
    node.backoff.passed(2)
    assert [trouble.cause for trouble in node.troubles.now()] == ["chain_behind"]


def test_a_bucket_that_takes_no_writes_for_another_reason_is_as_bad(told: list[str]) -> None:
    node = Node(denied=False)
    node.store.faults["own"] = Faults(down=True)
    for _ in range(3):
        node.fails(0, StorageError("put: out of time"))
    assert node.time.pauses == [1.0, 2.0, 4.0]
    assert len(told) == 1
    assert "cannot be reached (put: no connection" in told[0]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (REFUSED, "broke_off"),
        (BucketMissing("there is none"), "broke_off"),
        (StorageError("slow"), "broke_off"),
        (ChainError("slow"), "chain_silent"),
    ],
)
def test_what_is_not_our_buckets_fault_is_not_said_to_be(
    fault: ChainError | StorageError, cause: str, told: list[str]
) -> None:
    """A stranger's bucket, the run's data say, refuses too. It is said once a round, and pauses grow."""
    node = Node(denied=False)
    for round in range(6):
        for _ in range(2):
            node.fails(round, fault)
    assert node.said() == [("trouble", cause)] * 6
    assert [str(fault) in line for line in told] == [True] * 6
    assert (node.time.pauses[0], max(node.time.pauses)) == (PAUSE_SECONDS, 0.05 * ROUND_SECONDS)
    assert node.store.buckets["own"] == {}


def test_another_cause_is_said_at_once_and_pauses_begin_anew(told: list[str]) -> None:
    node = Node(denied=True)
    node.fails(0, REFUSED)
    node.fails(0, REFUSED)
    node.store.faults["own"] = Faults(down=True)
    node.fails(0, REFUSED)
    assert node.said() == [("trouble", "bucket_denied"), ("trouble", "bucket_unreachable")]
    assert node.time.pauses == [1.0, 2.0, 1.0]
    assert len(told) == 2


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
    told = [event["cause"] for event in network["two"].events("trouble") if event["about"] == "bucket"]
    assert 2 <= len(told) <= 7
    assert set(told) == {"bucket_denied"}
    assert network["two"].events("mended")[-1]["about"] == "bucket"
    assert network["two"].node.troubles.now() == []
