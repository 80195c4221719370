"""Publish: until the deadline, and not where it is refused."""

import pytest

from protocol.errors import AccessDenied, StorageError
from simulation.clock import Life
from storage.exchange import publish
from tests.fakes.bucket import FakeStore, Faults


def test_publish_tries_again_until_the_bucket_is_back(life: Life) -> None:
    store = FakeStore()
    store.faults["m1"] = Faults(down=True)
    life.clock.at(4.0, store.faults.clear)
    publish(store.bucket("m1"), "k", b"data", timeout_seconds=10, time=life)
    assert 4.0 <= life.now() < 10.0
    assert store.bucket("m1").get("k", max_bytes=4, timeout_seconds=1) == b"data"


def test_publish_gives_up_at_its_deadline(life: Life) -> None:
    store = FakeStore()
    store.faults["m1"] = Faults(down=True)
    with pytest.raises(StorageError):
        publish(store.bucket("m1"), "k", b"data", timeout_seconds=10, time=life)
    assert 1.0 < life.now() <= 10.0
    assert len(store.log) > 3


def test_publish_does_not_insist_where_it_may_not_write() -> None:
    store = FakeStore()
    with pytest.raises(AccessDenied):
        publish(store.bucket("m1", read_only=True), "k", b"data", timeout_seconds=10)
    assert len(store.log) == 1
