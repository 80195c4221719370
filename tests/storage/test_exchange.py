"""Publish: until the deadline, and not where it is refused."""

import threading
import time

import pytest

from protocol.errors import AccessDenied, StorageError
from storage.exchange import publish
from tests.fakes.bucket import FakeStore, Faults


def test_publish_tries_again_until_the_bucket_is_back() -> None:
    store = FakeStore()
    store.faults["m1"] = Faults(down=True)
    timer = threading.Timer(0.4, lambda: store.faults.clear())
    timer.start()
    publish(store.bucket("m1"), "k", b"data", timeout_seconds=10)
    timer.join()
    assert store.bucket("m1").get("k", max_bytes=4, timeout_seconds=1) == b"data"


def test_publish_gives_up_at_its_deadline() -> None:
    store = FakeStore()
    store.faults["m1"] = Faults(down=True)
    began = time.monotonic()
    with pytest.raises(StorageError):
        publish(store.bucket("m1"), "k", b"data", timeout_seconds=0.5)
    assert time.monotonic() - began < 2


def test_publish_does_not_insist_where_it_may_not_write() -> None:
    store = FakeStore()
    with pytest.raises(AccessDenied):
        publish(store.bucket("m1", read_only=True), "k", b"data", timeout_seconds=10)
    assert len(store.log) == 1
