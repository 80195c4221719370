"""A key is published only when it reads its bucket and nothing else: on the fake, each way in which it may not be."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from murmur.lab.simulation.store import Faults, Store
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, ObjectMissing, StorageError
from storage.published import Why, try_published
from storage.s3 import RangedBucket
from tests.fakes.bucket import FakeBucket, FakeStore


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def writer(store: Store, name: str = "own") -> FakeBucket:
    return store.bucket(name)


def reader(store: Store, name: str = "own") -> FakeBucket:
    return store.bucket(name, read_only=True, reader="published")


def trial(owner: RangedBucket, published: RangedBucket) -> Why | None:
    unfit = try_published(owner, published, timeout_seconds=5.0)
    return None if unfit is None else unfit.why


def test_a_key_that_reads_and_does_nothing_else_may_be_published(store: FakeStore) -> None:
    assert trial(writer(store), reader(store)) is None
    assert {verb for _, verb, _ in store.log} >= {"put", "get", "delete", "begin"}


def test_nothing_is_left_behind_and_what_a_killed_process_left_is_replaced(store: FakeStore) -> None:
    writer(store).put(keys.trial(), b"of a process that was killed, and longer than any of ours", timeout_seconds=1)
    assert trial(writer(store), reader(store)) is None
    assert store.buckets["own"] == {}


@dataclass
class Partly:
    """A published key that may do one thing of what it must not. `allowed`: the verb that its server lets pass."""

    inner: FakeBucket
    full: FakeBucket
    allowed: str

    def __getattr__(self, verb: str) -> Callable[..., object]:
        return getattr(self.full if verb == self.allowed else self.inner, verb)  # type: ignore[no-any-return]


@pytest.mark.parametrize("verb", ["put", "delete", "begin"])
def test_one_change_that_is_allowed_is_enough_to_refuse_it(store: FakeStore, verb: str) -> None:
    published = Partly(reader(store), writer(store), verb)
    assert trial(writer(store), published) is Why.WRITABLE  # type: ignore[arg-type]
    assert store.buckets["own"] == {}
    assert store.unfinished.get("own", []) == []


def test_the_read_write_key_itself_must_not_be_published(store: FakeStore) -> None:
    assert trial(writer(store), writer(store)) is Why.WRITABLE
    assert store.unfinished.get("own", []) == []


def test_swapped_keys_are_told_from_a_key_that_may_not_write(store: FakeStore) -> None:
    assert trial(reader(store), writer(store)) is Why.SWAPPED
    assert store.buckets["own"] == {}
    assert trial(reader(store), reader(store)) is Why.OWNER_REFUSED


def test_a_key_that_cannot_read_is_told(store: FakeStore) -> None:
    store.faults["other"] = Faults(denied=True)
    assert trial(writer(store), reader(store, "other")) is Why.UNREADABLE


@pytest.mark.parametrize("there", [{}, {keys.trial(): b"x" * 32}, {keys.trial(): b"x" * 33}])
def test_a_key_that_reads_another_bucket_is_told(store: FakeStore, there: dict[str, bytes]) -> None:
    for key, data in there.items():
        writer(store, "other").put(key, data, timeout_seconds=1)
    assert trial(writer(store), reader(store, "other")) is Why.ELSEWHERE


class Cache:
    """A reader through a cache that keeps the first answer, also that there is nothing."""

    def __init__(self, inner: FakeBucket) -> None:
        self.inner = inner
        self.kept: bytes | None = None
        self.asked = False

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float) -> bytes:
        if not self.asked:
            self.asked = True
            try:
                self.kept = self.inner.get(key, max_bytes=max_bytes, timeout_seconds=timeout_seconds)
            except ObjectMissing:
                self.kept = None
        if self.kept is None:
            raise ObjectMissing("get: there is no such object or bucket")
        return self.kept


@pytest.mark.parametrize("before", [None, b"x" * 32])
def test_a_cache_that_keeps_what_is_replaced_is_found_out(store: FakeStore, before: bytes | None) -> None:
    if before is not None:
        writer(store).put(keys.trial(), before, timeout_seconds=1)
    assert trial(writer(store), Cache(reader(store))) is Why.ELSEWHERE  # type: ignore[arg-type]


def test_a_bucket_that_is_not_there_is_told(store: FakeStore) -> None:
    class Nowhere(FakeBucket):
        def put(self, *_: object, **__: object) -> None:
            raise ObjectMissing("put: there is no such object or bucket")

    nowhere = Nowhere(store, "own", read_only=False, reader="owner")
    assert trial(nowhere, reader(store)) is Why.NO_BUCKET


def test_an_owner_that_may_not_delete_is_told(store: FakeStore) -> None:
    class Keeping(FakeBucket):
        def delete(self, *_: object, **__: object) -> None:
            raise AccessDenied("delete: the credential is unknown or may not do this (403)")

    owner = Keeping(store.bucket("own")._store, "own", read_only=False, reader="owner")
    assert trial(owner, reader(store)) is Why.OWNER_REFUSED


def test_a_server_that_does_not_answer_proves_nothing(store: FakeStore) -> None:
    store.bucket("own")
    store.faults["own"] = Faults(down=True)
    with pytest.raises(StorageError) as caught:
        trial(writer(store), reader(store))
    assert not isinstance(caught.value, AccessDenied)


def test_the_refusal_is_told_because_it_may_have_another_cause_than_the_key(store: FakeStore) -> None:
    """A wrong clock refuses the right keys, and only the refusal says so."""
    unfit = try_published(reader(store), reader(store), timeout_seconds=5.0)
    assert unfit is not None
    assert unfit.detail == "put: the credential is unknown or may not do this (403)"
