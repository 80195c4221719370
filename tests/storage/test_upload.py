"""An upload ahead of its object's end: what travels early, what is seen when, and how it ends."""

import threading
import time
from collections.abc import Iterator

import pytest

from murmur.lab.localnet.store import StoreReady
from murmur.lab.simulation.clock import Life
from murmur.protocol.errors import AccessDenied, StorageError
from storage import exchange, s3, upload
from storage.s3 import open_bucket
from storage.upload import Upload, goes_ahead
from tests.fakes.bucket import Call, FakeStore, Faults
from tests.storage.hostile import hostile
from tests.storage.part_server import PartServer

PART = 100
DATA = bytes(range(250)) + bytes(range(40, 140))
"""Three parts and a half."""
SECONDS = 60.0
"""Nothing that goes well waits for it."""
NEVER = 1e9


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStore]:
    """A store and uploads whose parts are small; no thread of an upload is left behind."""
    monkeypatch.setattr(upload, "PART_BYTES", PART)
    monkeypatch.setattr(exchange, "_PUBLISH_WAIT_SECONDS", 0.01)
    store = FakeStore()
    store.min_part_bytes = PART
    yield store
    until = time.monotonic() + SECONDS
    while any(thread.name.startswith("upload-") for thread in threading.enumerate()):
        assert time.monotonic() < until, "a thread of an upload did not end"
        time.sleep(0.01)


def started(store: FakeStore, data: bytes | bytearray = DATA) -> Upload:
    return Upload(store.bucket("miner"), "k", bytearray(data), timeout_seconds=SECONDS)


def sent(store: FakeStore) -> list[str]:
    return [verb for _, verb, _ in store.log]


def wait_for(store: FakeStore, num_calls: int) -> list[str]:
    until = time.monotonic() + SECONDS
    while len(store.log) < num_calls:
        assert time.monotonic() < until, f"only {sent(store)}"
        time.sleep(0.002)
    return sent(store)


def seen(store: FakeStore) -> bytes | None:
    found = store.buckets["miner"].get("k")
    return None if found is None else found.data


def test_the_object_is_seen_when_it_is_finished_and_its_first_part_went_last(store: FakeStore) -> None:
    ahead = started(store)
    ahead.ready(len(DATA))
    assert sorted(wait_for(store, 5)) == ["begin", "part 2", "part 2", "part 3", "part 4"]
    assert seen(store) is None
    ahead.finish(timeout_seconds=SECONDS)
    assert sent(store)[5:] == ["part 1", "complete"]
    assert seen(store) == DATA
    assert store.unfinished["miner"] == []


def test_only_whole_parts_behind_the_first_travel_before_the_end_is_known(store: FakeStore) -> None:
    ahead = started(store)
    for end in (50, 199, 200, 299):
        ahead.ready(end)
    assert wait_for(store, 3) == ["begin", "part 2", "part 2"]
    ahead.ready(300)
    assert wait_for(store, 4) == ["begin", "part 2", "part 2", "part 3"]
    ahead.finish(timeout_seconds=SECONDS)
    assert seen(store) == DATA


def test_the_first_part_may_change_until_the_end(store: FakeStore) -> None:
    data = bytearray(DATA)
    ahead = Upload(store.bucket("miner"), "k", data, timeout_seconds=SECONDS)
    ahead.ready(len(data))
    wait_for(store, 5)
    data[:10] = b"late words"
    ahead.finish(timeout_seconds=SECONDS)
    assert seen(store) == b"late words" + DATA[10:]


@pytest.mark.parametrize("size", [1, PART, PART + 1, 2 * PART])
def test_any_size_arrives(store: FakeStore, size: int) -> None:
    ahead = started(store, DATA[:size])
    ahead.finish(timeout_seconds=SECONDS)
    assert seen(store) == DATA[:size]


def test_calls_that_fail_are_tried_again(store: FakeStore) -> None:
    failures = {"begin": 2, "part 2": 3, "part 1": 1}

    def flaky(call: Call) -> None:
        if failures.get(call.verb, 0):
            failures[call.verb] -= 1
            raise StorageError(f"{call.verb}: the connection broke")

    store.before = flaky
    ahead = started(store)
    ahead.ready(len(DATA))
    ahead.finish(timeout_seconds=SECONDS)
    assert seen(store) == DATA
    assert not any(failures.values())


def test_a_refused_upload_fails_at_once(store: FakeStore) -> None:
    store.faults["miner"] = Faults(denied=True)
    ahead = started(store)
    with pytest.raises(AccessDenied):
        ahead.finish(timeout_seconds=SECONDS)
    assert sent(store) == ["begin"]


def test_an_upload_that_the_server_forgot_fails_and_leaves_nothing(store: FakeStore) -> None:
    ahead = started(store)
    ahead.ready(200)
    wait_for(store, 3)
    store.bucket("miner").abort_unfinished("", timeout_seconds=1)
    with pytest.raises(StorageError):
        ahead.finish(timeout_seconds=SECONDS)
    assert seen(store) is None
    assert store.unfinished["miner"] == []


def test_a_bucket_that_stands_still_costs_no_more_than_the_time_given(store: FakeStore, life: Life) -> None:
    def still(call: Call) -> None:
        if call.verb == "part 2":
            life.sleep(NEVER)

    store.before = still
    ahead = Upload(store.bucket("miner"), "k", bytearray(DATA), timeout_seconds=30, time=life)
    ahead.ready(len(DATA))
    with pytest.raises(StorageError, match="in time"):
        ahead.finish(timeout_seconds=30)
    assert life.now() == 30.0
    assert seen(store) is None
    assert store.unfinished["miner"] == []


def test_an_abandoned_upload_sends_nothing_more_and_is_never_seen(store: FakeStore) -> None:
    ahead = started(store)
    ahead.ready(200)
    wait_for(store, 3)
    ahead.abandon()
    ahead.abandon()
    ahead.ready(len(DATA))
    assert store.unfinished["miner"] == []
    assert sent(store) == ["begin", "part 2", "part 2", "abort"]


def test_an_upload_that_is_abandoned_while_it_begins_is_aborted(store: FakeStore) -> None:
    entered, held = threading.Event(), threading.Event()

    def slow(call: Call) -> None:
        if call.verb == "begin":
            entered.set()
            held.wait(SECONDS)

    store.before = slow
    ahead = started(store)
    entered.wait(SECONDS)
    ahead.abandon()
    held.set()
    assert wait_for(store, 2) == ["begin", "abort"]


# --- stores that take parts in order, or none ---------------------------------------------------------------------


def test_a_store_that_takes_parts_in_order_is_found_out_by_one_byte_and_remembered(
    store: FakeStore, life: Life
) -> None:
    def in_order(call: Call) -> None:
        if call.verb == "part 2":
            life.sleep(60)
            raise StorageError("upload: out of time")

    store.before = in_order
    bucket = store.bucket("miner")
    assert goes_ahead(bucket, PART + 1)
    ahead = Upload(bucket, "k", bytearray(DATA), timeout_seconds=200, time=life)
    ahead.ready(len(DATA))
    with pytest.raises(StorageError, match="no part before"):
        ahead.finish(timeout_seconds=200)
    assert sent(store) == ["begin", "part 2", "abort"]
    assert not goes_ahead(bucket, PART + 1)
    assert goes_ahead(store.bucket("other"), PART + 1)


def test_a_store_that_only_fails_the_question_is_not_taken_for_one_that_keeps_an_order(store: FakeStore) -> None:
    failures = [StorageError("upload: the connection broke")]

    def flaky(call: Call) -> None:
        if call.verb == "part 2" and failures:
            raise failures.pop()

    store.before = flaky
    bucket = store.bucket("miner")
    Upload(bucket, "k", bytearray(DATA), timeout_seconds=SECONDS).finish(timeout_seconds=SECONDS)
    assert seen(store) == DATA
    assert goes_ahead(bucket, PART + 1)


def test_a_bucket_is_asked_only_once(store: FakeStore) -> None:
    bucket = store.bucket("miner")
    for _ in range(2):
        Upload(bucket, "k", bytearray(DATA), timeout_seconds=SECONDS).finish(timeout_seconds=SECONDS)
    assert sent(store).count("part 2") == 3


def test_parts_that_do_not_move_leave_half_of_the_time_for_another_way(store: FakeStore, life: Life) -> None:
    """One part takes 99 of 200 seconds, no other arrives: half of the 101 that were left then are waited for."""
    seconds = iter([99.0])

    def slow(call: Call) -> None:
        if call.verb.startswith("part") and len(store.log) > 2:
            life.sleep(next(seconds, NEVER))

    store.before = slow
    ahead = Upload(store.bucket("miner"), "k", bytearray(DATA), timeout_seconds=200, time=life)
    with pytest.raises(StorageError, match="3 of 4 parts were not uploaded in time"):
        ahead.finish(timeout_seconds=200)
    assert life.now() == 149.5
    assert seen(store) is None


def test_a_real_client_gives_up_on_a_store_that_takes_parts_in_order_and_a_plain_put_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload, "_PROBE_SECONDS", 0.5)
    server = PartServer(in_order=True)
    data = bytearray(DATA) * ((2 * s3.PART_BYTES + 12345) // len(DATA) + 1)
    with hostile(server) as running:
        bucket = open_bucket(running.endpoint, "bucket", "access", "secret", local=True)
        ahead = Upload(bucket, "key", data, timeout_seconds=60)
        with pytest.raises(StorageError, match="no part before"):
            ahead.finish(timeout_seconds=60)
        assert "part 1" not in server.asked
        bucket.put("key", bytes(data), timeout_seconds=60)
    assert server.objects["key"] == data


def test_parts_of_sixteen_mebibytes_arrive_at_a_real_server(s3_store: StoreReady) -> None:
    user = s3_store.users["miner-0"]
    bucket = open_bucket(s3_store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    data = bytearray(DATA) * ((2 * s3.PART_BYTES + 12345) // len(DATA) + 1)
    ahead = Upload(bucket, "ahead", data, timeout_seconds=60)
    for end in range(0, len(data), 1 << 20):
        ahead.ready(end)
    assert bucket.head("ahead", timeout_seconds=SECONDS) is None
    ahead.finish(timeout_seconds=60)
    assert bucket.get("ahead", max_bytes=len(data), timeout_seconds=60, exact=True) == data
    assert bucket.abort_unfinished("ahead", timeout_seconds=SECONDS) == 0
    bucket.delete("ahead", timeout_seconds=SECONDS)
