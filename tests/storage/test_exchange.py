"""Publish: until the deadline, and not where it is refused. Fetch: from which of an object's sources."""

from pathlib import Path

import pytest

from murmur.lab.simulation import store as world
from murmur.lab.simulation.clock import Life
from murmur.protocol.errors import AccessDenied, StorageError
from murmur.protocol.types import PeerId
from storage import exchange
from storage.collect import gather
from storage.exchange import Source, Wanted, publish
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


PART, PARTS = 1000, 10
OWNER = PeerId(bytes(32))


def fetched(life: Life, cache: Path, monkeypatch: pytest.MonkeyPatch, seconds_a_part: dict[str, float]) -> FakeStore:
    """Gather one object within 12 s from these buckets, in this order, each over a link of its own speed."""
    monkeypatch.setattr(world, "PART_BYTES", PART)
    monkeypatch.setattr(exchange, "RESUMED_BYTES", PART)
    store, data = FakeStore(), bytes(number % 251 for number in range(PART * PARTS))
    sources = []
    for name, seconds in seconds_a_part.items():
        store.bucket(name).put("k", data, timeout_seconds=1)

        def link(key: str, num_bytes: int, *, up: bool, seconds: float = seconds) -> float:
            return seconds * num_bytes / PART

        bucket = store.bucket(name, read_only=True, reader="", time=life, link=link)
        sources.append(Source(lambda bucket=bucket: bucket, "k", kept_as=name))  # type: ignore[misc]
    store.log.clear()
    wanted = Wanted(OWNER, tuple(sources), len(data), lambda found: found == data)
    found = gather([wanted], timeout_seconds=12, max_threads=1, cache=cache, time=life)
    assert found[OWNER] == data
    return store


def test_a_source_that_others_follow_gets_its_share_whatever_its_pace_promises(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may never give the last byte."""
    store = fetched(life, tmp_path, monkeypatch, {"owner": 1.0, "mirror": 0.3, "other": 1.0})
    assert {bucket for bucket, verb, _ in store.log if verb == "get"} == {"owner", "mirror"}


def test_a_source_that_is_too_slow_for_the_object_loses_its_turn(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fetched(life, tmp_path, monkeypatch, {"owner": 1.5, "mirror": 0.1, "other": 0.1})
    assert {bucket for bucket, verb, _ in store.log if verb == "get"} == {"owner", "mirror"}
