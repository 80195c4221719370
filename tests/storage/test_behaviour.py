"""What trials of a store find out, over stores that do one thing differently; nothing of them stays."""

import time
from threading import Barrier

import pytest

from murmur.lab.simulation.store import Faults
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, StorageError
from storage.behaviour import (
    PART_BYTES,
    WRITERS,
    Speed,
    creates_once,
    server_time,
    speed,
    takes_parts_in_any_order,
    tells_versions_apart,
)
from storage.realtime import RealTime
from storage.s3 import S3Bucket, open_bucket
from tests.fakes.bucket import Call, FakeBucket, FakeStore
from tests.storage.faults import refuses, takes_no_condition
from tests.storage.permissive import permissive
from tests.storage.proxy import Action, Fault, Proxy
from tests.storage.trials import Truth

SECONDS = 5.0


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def owner(store: FakeStore) -> FakeBucket:
    return store.bucket("own")


@pytest.fixture
def reader(store: FakeStore) -> FakeBucket:
    return store.bucket("own", read_only=True, reader="published")


def test_a_usual_store_takes_parts_in_any_order(store: FakeStore, owner: FakeBucket) -> None:
    assert takes_parts_in_any_order(owner, timeout_seconds=SECONDS)
    assert store.buckets["own"] == {}
    assert not store.unfinished["own"]


def test_a_store_that_wants_them_in_order_is_found_out(store: FakeStore, owner: FakeBucket) -> None:
    def before(call: Call) -> None:
        if call.verb == "part 2":
            raise StorageError("upload: out of time")

    store.before = before
    assert not takes_parts_in_any_order(owner, timeout_seconds=SECONDS)
    assert store.buckets["own"] == {}
    assert not store.unfinished["own"]


def test_a_refusal_is_no_answer(owner: FakeBucket, reader: FakeBucket) -> None:
    with pytest.raises(AccessDenied):
        takes_parts_in_any_order(reader, timeout_seconds=SECONDS)


def test_parts_that_come_back_otherwise_are_a_failure(store: FakeStore, owner: FakeBucket) -> None:
    store.faults["own"] = Faults(answers={"owner": bytes(PART_BYTES)})
    with pytest.raises(StorageError, match="not what was sent"):
        takes_parts_in_any_order(owner, timeout_seconds=SECONDS)


def test_versions_are_told_apart_or_not(store: FakeStore, owner: FakeBucket, reader: FakeBucket) -> None:
    assert tells_versions_apart(owner, reader, timeout_seconds=SECONDS)

    class Mixing(FakeBucket):
        def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
            return self.get(key, max_bytes=1 << 20, timeout_seconds=timeout_seconds)

    mixing = Mixing(store, "own", read_only=True, reader="published")
    assert not tells_versions_apart(owner, mixing, timeout_seconds=SECONDS)
    assert store.buckets["own"] == {}


def test_speed_is_bytes_by_seconds_each_way(store: FakeStore) -> None:
    class Ticking(RealTime):
        seconds = 0.0

        def now(self) -> float:
            return self.seconds

        def sleep(self, seconds: float) -> None:
            self.seconds += seconds

    def link(key: str, num_bytes: int, *, up: bool) -> float:
        return num_bytes / (100 if up else 400)

    clock = Ticking()
    owner = store.bucket("own", time=clock, link=link)
    assert speed(owner, owner, 1000, timeout_seconds=60.0, time=clock) == Speed(100.0, 400.0)
    assert keys.trial() not in store.buckets["own"]


def test_a_servers_clock_is_read_from_any_answer() -> None:
    with permissive() as endpoint:
        found = server_time(endpoint, timeout_seconds=SECONDS)
    assert found is not None
    assert abs(found - time.time()) < 60


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://[", "http://host:port"])
def test_a_server_that_is_not_there_is_a_storage_error(endpoint: str) -> None:
    with pytest.raises(StorageError):
        server_time(endpoint, timeout_seconds=SECONDS)


def test_a_usual_store_creates_once(store: FakeStore, owner: FakeBucket) -> None:
    assert creates_once(owner, timeout_seconds=SECONDS)
    assert store.buckets["own"] == {}


def test_a_store_that_does_not_know_the_condition_is_found_out(store: FakeStore) -> None:
    class Careless(FakeBucket):
        def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
            self.put(key, data, timeout_seconds=timeout_seconds)
            return True

    store.bucket("own")
    bucket = Careless(store, "own", read_only=False, reader="owner")
    assert not creates_once(bucket, timeout_seconds=SECONDS)


def test_a_store_that_looks_before_it_writes_is_found_out(store: FakeStore) -> None:
    """It refuses what comes later. Of those that come at once each finds nothing there."""
    racing = Barrier(WRITERS, timeout=SECONDS)

    class Racy(FakeBucket):
        def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
            if self.head(key, timeout_seconds=timeout_seconds) is not None:
                return False
            racing.wait()
            self.put(key, data, timeout_seconds=timeout_seconds)
            return True

    store.bucket("own")
    bucket = Racy(store, "own", read_only=False, reader="owner")
    assert not creates_once(bucket, timeout_seconds=SECONDS)
    assert store.buckets["own"] == {}


REFUSALS = [("400 Bad Request", "InvalidArgument"), ("501 Not Implemented", "NotImplemented")]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_a_store_that_refuses_the_condition_does_not_create_once(
    truth: Truth, proxy: Proxy, bucket: S3Bucket, status: str, code: str
) -> None:
    proxy.faults.append(Fault(takes_no_condition(status, code), ("PutObject",)))
    assert not creates_once(bucket, timeout_seconds=SECONDS)
    assert truth.stands(keys.trial()) is None


@pytest.mark.parametrize(
    "does",
    [
        *(refuses(*refusal) for refusal in REFUSALS),
        takes_no_condition("500 Internal Server Error", "InternalError"),
        takes_no_condition("503 Slow Down", "SlowDown"),
    ],
    ids=["400 to any put", "501 to any put", "500", "503"],
)
def test_a_store_that_fails_is_not_said_to_refuse_the_condition(proxy: Proxy, bucket: S3Bucket, does: Action) -> None:
    proxy.faults.append(Fault(does, ("PutObject",)))
    with pytest.raises(StorageError):
        creates_once(bucket, timeout_seconds=SECONDS)


def test_a_store_that_cannot_be_reached_is_not_said_to_refuse_the_condition() -> None:
    nobody = open_bucket("http://127.0.0.1:9", "nobody", "access", "secret", local=True)
    with pytest.raises(StorageError):
        creates_once(nobody, timeout_seconds=0.5)
