"""A bucket kept as files: what is read of it is what the server gave, and strangers' keys lead nowhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol import keys
from murmur.protocol.errors import (
    AccessDenied,
    ConfigError,
    ObjectMissing,
    ObjectReplaced,
    ObjectTooLarge,
    StorageError,
)
from murmur.protocol.types import Digest
from storage import recorded
from storage.recorded import RecordedBucket, open_recorded_bucket, record
from tests.fakes.bucket import FakeStore

RUN = Digest(b"r" * 32)
FIRST, SECOND, SHOWN = keys.payload(RUN, 1), keys.report(RUN, 2), keys.checkpoints(RUN)


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    bucket = store.bucket("peer")
    for key, data in {FIRST: b"one", SECOND: b"second", SHOWN: b"old", keys.trial(): b"t"}.items():
        bucket.put(key, data, timeout_seconds=1.0)
    return store


def take(store: FakeStore, folder: Path, max_bytes: int = 100) -> None:
    record(store.bucket("peer", read_only=True), folder, max_bytes, lambda: 1.0)


def read(bucket: RecordedBucket, key: str) -> bytes:
    return bucket.get(key, max_bytes=100, timeout_seconds=1.0)


def test_what_is_recorded_reads_as_from_the_server_and_outlives_it(store: FakeStore, tmp_path: Path) -> None:
    take(store, tmp_path)
    store.bucket("peer").delete(FIRST, timeout_seconds=1.0)
    take(store, tmp_path)
    kept = RecordedBucket(tmp_path)
    assert {key: read(kept, key) for key in (FIRST, SECOND, SHOWN)} == {FIRST: b"one", SECOND: b"second", SHOWN: b"old"}
    assert kept.list("", max_keys=9, timeout_seconds=1.0) == tuple(sorted([FIRST, SECOND, SHOWN]))
    assert kept.list(f"{RUN.hex()[:16]}/report", max_keys=9, timeout_seconds=1.0) == (SECOND,)
    facts = kept.head(SECOND, timeout_seconds=1.0)
    assert facts is not None
    assert facts.size_bytes == 6
    assert kept.get_range(SECOND, first=2, num_bytes=3, etag=facts.etag, timeout_seconds=1.0) == b"con"
    with pytest.raises(ObjectReplaced):
        kept.get_range(SECOND, first=2, num_bytes=3, etag='"other"', timeout_seconds=1.0)
    with pytest.raises(StorageError):
        kept.get_range(SECOND, first=2, num_bytes=5, etag=facts.etag, timeout_seconds=1.0)
    for max_bytes, exact in ((5, False), (7, True)):
        with pytest.raises(ObjectTooLarge):
            kept.get(SECOND, max_bytes=max_bytes, exact=exact, timeout_seconds=1.0)
    assert kept.head(keys.reveal(RUN, 1), timeout_seconds=1.0) is None
    with pytest.raises(ObjectMissing):
        read(kept, keys.reveal(RUN, 1))
    with pytest.raises(AccessDenied):
        kept.put(FIRST, b"x", timeout_seconds=1.0)


def test_what_may_change_is_taken_again_and_asked_of_the_server_while_there_is_one(
    store: FakeStore, tmp_path: Path
) -> None:
    take(store, tmp_path)
    store.bucket("peer").put(SHOWN, b"new", timeout_seconds=1.0)
    store.bucket("peer").put(keys.reveal(RUN, 2), b"late", timeout_seconds=1.0)
    store.log.clear()
    live = RecordedBucket(tmp_path, store.bucket("peer", read_only=True))
    assert (read(live, SHOWN), read(live, keys.reveal(RUN, 2)), read(live, FIRST)) == (b"new", b"late", b"one")
    assert [entry[2] for entry in store.log] == [SHOWN, keys.reveal(RUN, 2)], "what can't change is read here"
    assert read(RecordedBucket(tmp_path), SHOWN) == b"old"
    take(store, tmp_path)
    assert read(RecordedBucket(tmp_path), SHOWN) == b"new"


def test_what_is_too_large_or_has_no_room_is_not_taken(
    store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(store, tmp_path, max_bytes=5)
    assert SECOND not in RecordedBucket(tmp_path).list("", max_keys=9, timeout_seconds=1.0)
    monkeypatch.setattr(recorded, "FREE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match="free space"):
        take(store, tmp_path)


@given(
    st.one_of(st.text(max_size=30), st.sampled_from(["../x", "a/../../x", "/etc/passwd", "a//b", "a\x00b", "a" * 300]))
)
def test_no_key_of_a_stranger_becomes_a_path_outside(key: str) -> None:
    path = recorded._path(Path("/folder"), key)
    assert path is None or (path.parent == Path("/folder") and path.name not in ("", ".", ".."))


def test_a_bucket_of_another_name_than_buckets_have_is_not_opened(tmp_path: Path) -> None:
    for name in ("..", "../other", "a", "/etc", ""):
        with pytest.raises(ConfigError):
            open_recorded_bucket(tmp_path, name)
