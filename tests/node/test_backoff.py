"""Rounds that break off: why is told once a planned round, and asked less and less often until it is mended."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from loguru import logger

from murmur.lab.simulation.store import Call, Faults
from murmur.node.own_bucket import OwnBucket
from murmur.node.sync.backoff import PAUSE_SECONDS, Backoff
from murmur.node.telemetry.trouble import Trouble, Troubles
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, StorageCause, StorageError
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
KEY = "0" * 16 + "/payload/00000001"


class Node:
    """What a node's loop does with its bucket and its backoff, in the chain's round `round`."""

    def __init__(self, **faults: bool) -> None:
        self.store, self.time, self.round = FakeStore(), Paused(), 0
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.troubles = Troubles(self, ROUND_SECONDS, self.time)
        self.own = OwnBucket(self.store.bucket("own"), "bucket own", self.troubles, lambda: self.round, self.time)
        self.backoff = Backoff(self.own, ROUND_SECONDS, self.troubles, self.time)
        self.store.faults["own"] = Faults(**faults)

    def emit(self, kind: str, round: int, **fields: Any) -> None:
        self.events.append((kind, round, fields))

    def plays(self, round: int, key: str = KEY) -> None:
        """Try a round, whose payload goes to this key."""
        self.round, self.time.at = round, ROUND_SECONDS * round
        try:
            self.own.put(key, b"payload", timeout_seconds=1.0)
        except StorageError as fault:
            self.backoff.pause_after(round, fault)

    def fails(self, round: int, fault: ChainError | StorageError) -> None:
        self.time.at = ROUND_SECONDS * round
        self.backoff.pause_after(round, fault)

    def said(self) -> list[tuple[str, str]]:
        return [(kind, str(fields["cause"])) for kind, _, fields in self.events]


def test_it_is_said_once_a_round_with_its_reason_and_pauses_grow(told: list[str]) -> None:
    node = Node(denied=True)
    for round in range(7, 12):
        for _ in range(6):
            node.plays(round)
    assert [line.partition(":")[0] for line in told] == [f"round {round}" for round in range(7, 12)]
    refused = "our own bucket refuses our writes (put: "
    assert all(refused in line and "yours to mend" in line and "provider's console" in line for line in told)
    assert [round for _, round, _ in node.events] == [*range(7, 12)]
    assert node.time.pauses[:4] == [1.0, 2.0, 4.0, 5.0], "never longer than a twentieth of a round"


def test_the_same_kind_of_request_answered_mends_it_and_pauses_begin_anew_after_a_whole_round() -> None:
    node = Node(denied=True)
    node.plays(0)
    node.plays(0)
    node.store.faults["own"] = Faults()
    node.plays(1)
    assert node.said() == [("trouble", "bucket_denied"), ("mended", "bucket_denied")]
    node.backoff.passed(0)
    node.backoff.passed(1)
    node.store.faults["own"] = Faults(denied=True)
    node.plays(2)
    assert node.time.pauses == [1.0, 2.0, 1.0]


def test_what_fails_for_one_kind_of_object_alone_is_told_of_our_own_bucket() -> None:
    """A full bucket still takes small objects."""
    node = Node()
    full = StorageError("put: the bucket or its account is full (507)")
    full.cause = StorageCause.FULL

    def before(call: Call) -> None:
        if "payload" in call.key:
            raise full

    node.store.before = before
    for round in range(3):
        node.plays(round)
        node.plays(round, "0" * 16 + "/reveal/1")
    assert node.said() == [("trouble", "bucket_full")] * 3
    node.store.before = lambda call: None
    node.plays(3)
    assert node.said()[3:] == [("mended", "bucket_full")]


@pytest.mark.parametrize("verb", ["list", "delete"])
def test_a_key_that_may_not_tidy_up_costs_storage_and_is_told(verb: str) -> None:
    node = Node()
    denied = AccessDenied(f"{verb}: the credential is unknown or may not do this (403)")
    denied.cause = StorageCause.DENIED

    def before(call: Call) -> None:
        if call.verb == verb:
            raise denied

    node.store.before = before
    for round in range(3):
        node.time.at = ROUND_SECONDS * round
        with suppress(StorageError):
            node.own.list("", max_keys=10, timeout_seconds=1.0)
        with suppress(StorageError):
            node.own.delete(KEY, timeout_seconds=1.0)
    assert node.said() == [("trouble", "bucket_untidy")] * 2, "a moment's failure is not told, the next round's is"


def test_alternating_causes_do_not_begin_pauses_anew() -> None:
    node = Node()
    for turn in range(40):
        node.store.faults["own"] = Faults(denied=bool(turn % 2), down=not turn % 2)
        node.plays(0)
    assert node.time.pauses[3:] == [5.0] * 37


def test_a_round_that_ended_in_spite_of_a_failure_mends_nothing() -> None:
    node = Node()
    node.backoff.tell(3, Trouble("too_slow"))
    node.backoff.passed(3)
    assert [kind for kind, _, _ in node.events] == ["trouble"]
    node.backoff.passed(4)
    assert node.said()[1:] == [("mended", "too_slow")]


def test_a_whole_round_mends_refusals_of_the_chain_but_does_not_say_that_it_is_not_behind() -> None:
    node = Node()
    node.fails(0, ChainError("spent", "SpaceLimitExceeded"))
    node.backoff.passed(0)
    node.backoff.passed(1)
    assert node.said() == [("trouble", "posts_used_up"), ("mended", "posts_used_up")]
    node.troubles.tell(1, Trouble("chain_behind"))
    node.backoff.passed(2)
    assert [trouble.cause for trouble in node.troubles.now()] == ["chain_behind"]


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
    node = Node()
    for round in range(6):
        for _ in range(2):
            node.fails(round, fault)
    assert node.said() == [("trouble", cause)] * 6
    assert [str(fault) in line for line in told] == [True] * 6
    assert (node.time.pauses[0], max(node.time.pauses)) == (PAUSE_SECONDS, 0.05 * ROUND_SECONDS)
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
    told = [event["cause"] for event in network["two"].events("trouble") if event["about"] == "bucket"]
    assert 2 <= len(told) <= 7
    assert set(told) == {"bucket_denied"}
    assert network["two"].events("mended")[-1]["about"] == "bucket"
    assert network["two"].node.troubles.now() == []
