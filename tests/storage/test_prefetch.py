"""Collecting into the cache: what lies there is not asked for again, and a prefetch holds up nobody."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from murmur.lab.simulation import store as world
from murmur.lab.simulation.clock import Life
from murmur.protocol.errors import ObjectMissing, StorageError
from storage.collect import Collection, gather
from storage.exchange import FetchFault, Source, Wanted, cached
from tests.fakes.bucket import Call, FakeBucket, FakeStore, Faults
from tests.storage.collect_cases import CAP, LARGE, PART_BYTES, SIZE, body, large, peer, put, stored, window


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than a few goes to the disk, part by part."""
    monkeypatch.setattr(world, "PART_BYTES", PART_BYTES)


def test_what_lies_in_the_cache_is_not_asked_for_again(tmp_path: Path) -> None:
    store = FakeStore()
    put(store, "m2", body(2))
    wanted = [large(store, "m1"), stored(store, 2, "m2")]
    for _ in range(2):
        found = gather(wanted, timeout_seconds=CAP, max_threads=1, cache=tmp_path)
        assert found == {peer(1): LARGE, peer(2): body(2)}
        assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == sorted([LARGE, body(2)])
        store.log.clear()
        store.faults.update({name: Faults(down=True) for name in ("m1", "m2")})
    assert store.log == []


@pytest.mark.parametrize("wrong", [LARGE[:-1] + b"x", LARGE[:-1], b""])
def test_a_cached_file_that_is_not_what_was_committed_is_fetched_anew(tmp_path: Path, wrong: bytes) -> None:
    store = FakeStore()
    item = large(store, "m1")
    path = cached(tmp_path, peer(1), "k-m1")
    path.write_bytes(wrong)
    assert gather([item], timeout_seconds=CAP, max_threads=1, cache=tmp_path) == {peer(1): LARGE}
    assert path.read_bytes() == LARGE


@pytest.mark.parametrize("left", [1, PART_BYTES - 1, PART_BYTES, len(LARGE)])
def test_parts_of_another_server_or_of_before_a_power_cut_are_not_this_sources_fault(tmp_path: Path, left: int) -> None:
    """Mirrors of one peer share a place in the cache, and a server chooses the ETag that it tells."""
    store = FakeStore()
    item = large(store, "m1")
    path = cached(tmp_path, peer(1), "k-m1")
    facts = store.bucket("m1", read_only=True).head("k-m1", timeout_seconds=1)
    assert facts is not None
    path.with_name(path.name + ".part").write_bytes(b"x" * left)
    path.with_name(path.name + ".etag").write_text(json.dumps({"etag": facts.etag, "size": len(LARGE)}))
    assert gather([item], timeout_seconds=CAP, max_threads=1, cache=tmp_path) == {peer(1): LARGE}
    assert path.read_bytes() == LARGE


def test_what_was_not_accepted_is_not_left_in_the_cache(tmp_path: Path) -> None:
    store = FakeStore()
    put(store, "m2", b"x" * SIZE)
    wanted = [large(store, "m1", data=bytes(len(LARGE))), stored(store, 2, "m2")]
    found = gather(wanted, timeout_seconds=CAP, max_threads=2, cache=tmp_path)
    assert {fault.kind for fault in found.values() if isinstance(fault, FetchFault)} == {"mismatch"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_cache_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path: Path, size: str) -> None:
    store = FakeStore()
    put(store, "m1", body(1))
    item, data = (stored(store, 1, "m1"), body(1)) if size == "small" else (large(store, "m2"), LARGE)
    (tmp_path / "full").write_bytes(b"no folder")
    assert gather([item], timeout_seconds=CAP, max_threads=1, cache=tmp_path / "full") == {peer(1): data}


def ahead(wanted: list[Wanted], *, max_threads: int, cache: Path) -> Collection:
    """A collection into the cache, for later."""
    return Collection(wanted, seconds_left=lambda: CAP, max_threads=max_threads, cache=cache, room=1 << 30)


def is_left_behind() -> bool:
    """Whether a collection's thread still runs."""
    return any(thread.name.startswith("collect") for thread in threading.enumerate())


def wait_for_what_was_left_behind() -> None:
    until = time.monotonic() + CAP
    while is_left_behind():
        assert time.monotonic() < until, "the thread of a stopped prefetch went on"
        time.sleep(0.01)


def test_a_prefetch_brings_everything_to_the_cache_and_says_when_it_has_ended(tmp_path: Path) -> None:
    store = FakeStore()
    for number in range(2, 8):
        put(store, f"m{number}", body(number))
    wanted = [large(store, "m1"), *(stored(store, number, f"m{number}") for number in range(2, 8))]
    ended = threading.Semaphore(0)
    ahead(wanted, max_threads=2, cache=tmp_path).start(ended.release)
    assert ended.acquire(timeout=CAP)
    store.log.clear()
    found = gather(wanted, timeout_seconds=CAP, max_threads=4, cache=tmp_path)
    assert found == {peer(1): LARGE, **{peer(number): body(number) for number in range(2, 8)}}
    assert store.log == []
    assert not ended.acquire(blocking=False)


def test_peers_that_stall_a_prefetch_use_up_their_own_share(tmp_path: Path, life: Life) -> None:
    store = FakeStore()
    for number in range(12):
        put(store, f"m{number}", body(number))
        if number < 8:
            store.faults[f"m{number}"] = Faults(stalls=True)
    wanted = [stored(store, n, f"m{n}", time=life) for n in range(12)]
    Collection(
        wanted, seconds_left=window(life, 2), max_threads=2, cache=tmp_path, room=1 << 30, time=life
    ).start().outcome()
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {body(n) for n in range(8, 12)}


def test_a_prefetch_that_is_stopped_starts_nothing_more_and_is_resumed(tmp_path: Path) -> None:
    store = FakeStore()
    item = large(store, "m1")
    arrived, released, ended = threading.Event(), threading.Event(), threading.Semaphore(0)

    def slow(call: Call) -> None:
        if parts_asked(store) == 5:
            arrived.set()
            released.wait(CAP)

    store.before = slow
    prefetch = ahead([item], max_threads=1, cache=tmp_path).start(ended.release)
    assert arrived.wait(CAP)
    prefetch.stop()
    assert is_left_behind(), "it was waited for"
    assert ended.acquire(blocking=False)
    released.set()
    wait_for_what_was_left_behind()
    assert parts_asked(store) == 5
    assert gather([item], timeout_seconds=CAP, max_threads=1, cache=tmp_path) == {peer(1): LARGE}
    assert parts_asked(store) == 17


def test_a_download_that_a_server_holds_on_to_does_not_hold_up_the_next_gather(tmp_path: Path) -> None:
    """Another source is asked. Through memory, such servers would fill it."""
    store = FakeStore()
    item = large(store, "m1", "mirror")
    arrived, released = threading.Event(), threading.Event()

    def first_is_held(call: Call) -> None:
        if call.verb == "get" and not arrived.is_set():
            arrived.set()
            released.wait(CAP)

    store.before = first_is_held
    prefetch = ahead([item], max_threads=1, cache=tmp_path).start()
    assert arrived.wait(CAP)
    prefetch.stop()
    found = gather([item], timeout_seconds=8.0, max_threads=1, cache=tmp_path)
    assert found == {peer(1): LARGE}
    assert isinstance(found[peer(1)], memoryview)
    released.set()


def test_a_stopped_prefetch_whose_files_were_swept_away_fetches_nothing_into_memory(tmp_path: Path) -> None:
    store = FakeStore()
    item = replace(large(store, "m1"), sources=large(store, "m1").sources * 2)
    arrived, released = threading.Event(), threading.Event()

    def last(call: Call) -> None:
        if parts_asked(store) == 17:
            arrived.set()
            released.wait(CAP)

    store.before = last
    # Not `ahead`: what may be held in memory instead is what must not be fetched.
    prefetch = Collection([item], seconds_left=lambda: CAP, max_threads=1, cache=tmp_path).start()
    assert arrived.wait(CAP)
    prefetch.stop()
    for path in tmp_path.iterdir():
        path.unlink()
    released.set()
    wait_for_what_was_left_behind()
    assert parts_asked(store) == 17


def test_a_stopped_prefetch_asks_no_other_source(tmp_path: Path) -> None:
    store = FakeStore()
    put(store, "m2", body(1))
    arrived, released = threading.Event(), threading.Event()

    def held(call: Call) -> None:
        if call.bucket == "m1":
            arrived.set()
            released.wait(CAP)
            raise StorageError("get: the body broke")

    store.before = held
    store.bucket("m1")
    prefetch = ahead([stored(store, 1, "m1", "m2")], max_threads=1, cache=tmp_path).start()
    assert arrived.wait(CAP)
    prefetch.stop()
    asked = len(store.log)
    released.set()
    wait_for_what_was_left_behind()
    assert len(store.log) == asked


def parts_asked(store: FakeStore) -> int:
    return sum(verb == "get" for _, verb, _ in store.log)


def test_views_of_the_cache_outlive_its_files(tmp_path: Path) -> None:
    store = FakeStore()
    found = gather([large(store, "m1")], timeout_seconds=CAP, max_threads=1, cache=tmp_path)[peer(1)]
    assert isinstance(found, memoryview)
    for path in tmp_path.iterdir():
        path.unlink()
    assert found == LARGE
    with pytest.raises(TypeError):
        found[0] = 1


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_disk_that_takes_nothing_leaves_out_what_must_not_be_held_in_memory(tmp_path: Path, size: str) -> None:
    store = FakeStore()
    put(store, "m1", body(1))
    item = stored(store, 1, "m1") if size == "small" else large(store, "m2")
    (tmp_path / "full").write_bytes(b"no folder")
    found = Collection([item], seconds_left=lambda: CAP, max_threads=1, cache=tmp_path / "full", room=1 << 30).run()[
        peer(1)
    ]
    assert isinstance(found, FetchFault)
    assert found.kind == "left_out"


def _missing() -> bytes:
    raise ObjectMissing("get: there is no such object")


@pytest.mark.parametrize("lasting", [True, False])
def test_what_needs_more_than_one_sources_share_of_the_time_is_gone_on_with(
    tmp_path: Path, life: Life, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """Beside a mirror that has nothing its owner has half of the time: too little for the object, enough for the rest
    of it."""
    monkeypatch.setattr(world, "PART_BYTES", 2 * len(LARGE))
    store = FakeStore()
    wanted = large(store, "m1", time=life)
    mirror = Source(partial(store.bucket, "mirror", read_only=True, time=life), "k")
    store.bucket("mirror")
    seconds, way = 8.0, 0.75 * 8.0 / len(LARGE)
    turns: list[str] = []

    def travel(num_bytes: int, until: float) -> None:
        life.sleep(min(way * num_bytes, max(0.0, until - life.now())))
        if life.now() >= until:
            raise StorageError("out of time")

    def get(bucket: FakeBucket, key: str, *, timeout_seconds: float, **_: object) -> bytes:
        turns.append("get")
        travel(len(LARGE), life.now() + timeout_seconds)
        return LARGE

    def stream(
        bucket: FakeBucket,
        key: str,
        sink: Callable[[bytes], object],
        *,
        first: int,
        num_bytes: int,
        timeout_seconds: float,
        **_: object,
    ) -> None:
        turns.append("stream")
        until = life.now() + timeout_seconds
        for at in range(first, first + num_bytes, 1 << 14):
            piece = LARGE[at : min(at + (1 << 14), first + num_bytes)]
            travel(len(piece), until)
            sink(piece)

    monkeypatch.setattr(world.StoreBucket, "stream", stream)
    monkeypatch.setattr(
        world.StoreBucket,
        "get",
        lambda bucket, key, **options: get(bucket, key, **options) if key == "k-m1" else _missing(),
    )
    found = Collection(
        [replace(wanted, sources=(*wanted.sources, mirror))],
        seconds_left=window(life, seconds),
        max_threads=1,
        lasting=lasting,
        cache=tmp_path,
        time=life,
    ).run()
    assert found == {peer(1): LARGE}
    assert set(turns) == {"stream"}
    assert len(turns) > 1, "one turn was enough: this shows nothing"


def test_an_owner_that_promises_to_end_in_time_and_gives_a_wrong_last_byte_leaves_the_mirrors_their_time(
    tmp_path: Path, life: Life
) -> None:
    """At its pace it would bring the whole object in nine tenths of the time, and nobody else be asked."""
    store, seconds = FakeStore(), 8.0
    wanted = large(store, "m1", time=life)
    mirror = large(store, "mirror", time=life).sources[0]
    store.bucket("m1").put("k-m1", LARGE[:-1] + bytes([LARGE[-1] ^ 1]), timeout_seconds=1)
    num_parts = -(-len(LARGE) // PART_BYTES)

    def before(call: Call) -> None:
        if call.bucket == "m1" and call.verb == "get":
            life.sleep(0.9 * seconds / num_parts)

    store.before = before
    item = replace(wanted, sources=(*wanted.sources, mirror))
    found = gather([item], timeout_seconds=seconds, max_threads=1, cache=tmp_path, time=life)
    assert found == {peer(1): LARGE}


def test_whole_garbage_of_a_large_object_is_brought_twice_at_most(tmp_path: Path, life: Life) -> None:
    store = FakeStore()
    wanted = large(store, "m1", time=life)
    store.bucket("m1").put("k-m1", bytes(len(LARGE)), timeout_seconds=1)
    found = Collection(
        [wanted], seconds_left=window(life, 60), max_threads=1, lasting=True, cache=tmp_path, room=1 << 30, time=life
    ).run()
    fault = found[peer(1)]
    assert isinstance(fault, FetchFault)
    assert fault.kind == "mismatch"
    assert store.log.count(("m1", "head", "k-m1")) == 2
