"""Collecting: a peer's bucket hurts that peer alone, only digests decide, and every peer gets its turn."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.lab.simulation.clock import Life
from murmur.protocol.errors import ConfigError, ObjectMissing, StorageError
from murmur.protocol.types import PeerId, Pointer
from storage.collect import Collection, first, gather
from storage.exchange import Data, FetchFault, Source, Wanted
from storage.s3 import RangedBucket, open_bucket, open_pointer
from tests.fakes.bucket import FakeBucket, FakeStore, Faults
from tests.storage.collect_cases import CAP, NEVER, SIZE, body, gather_until, is_exactly, peer, put, stored, window
from tests.storage.hostile import hostile, response


def test_every_peers_bytes_are_gathered() -> None:
    store = FakeStore()
    for number in range(20):
        put(store, f"m{number}", body(number))
    wanted = [stored(store, number, f"m{number}") for number in range(20)]
    assert gather(wanted, timeout_seconds=CAP, max_threads=4) == {peer(number): body(number) for number in range(20)}


def test_nothing_wanted_is_nothing_gathered() -> None:
    assert gather([], timeout_seconds=5, max_threads=4) == {}


def test_the_first_right_answer_is_taken_and_nobody_else_is_waited_for(life: Life) -> None:
    """Of one object that many may have, of a size that is known as a limit only."""
    store = FakeStore()
    put(store, "stalls", body(9))
    store.faults["stalls"] = Faults(stalls=True)
    put(store, "lies", b"x" * SIZE)
    put(store, "has it", body(9))
    names = ("stalls", "lies", "lacks it", "has it")
    wanted = [
        replace(stored(store, number, name, time=life), size=10 * SIZE, accept=is_exactly(body(9)), exact=False)
        for number, name in enumerate(names)
    ]
    assert first(wanted, timeout_seconds=20, max_threads=4, time=life) == (peer(3), body(9))
    assert first(wanted[1:3], timeout_seconds=20, max_threads=4, time=life) is None
    assert first([], timeout_seconds=20, max_threads=4, time=life) is None
    assert life.now() == 0.0


def test_each_fault_has_its_kind_and_touches_no_other_peer() -> None:
    store = FakeStore()
    for number in range(7):
        put(store, f"m{number}", body(number))
    store.bucket("m1").delete("k", timeout_seconds=1)
    put(store, "m2", b"x" * (SIZE + 1))
    put(store, "m3", b"x" * SIZE)
    store.faults["m4"] = Faults(down=True)
    store.faults["m5"] = Faults(denied=True)
    found = gather([stored(store, n, f"m{n}") for n in range(7)], timeout_seconds=CAP, max_threads=3)
    kinds = [fault.kind if isinstance(fault, FetchFault) else "ok" for fault in (found[peer(n)] for n in range(7))]
    assert kinds == ["ok", "missing", "wrong_size", "mismatch", "unavailable", "unavailable", "ok"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["ok", "missing", "larger", "other", "down", "denied"]), min_size=1, max_size=12))
def test_a_peers_outcome_is_what_it_would_be_alone(kinds: list[str]) -> None:
    store = FakeStore()
    for number, kind in enumerate(kinds):
        data = {"larger": body(number) + b"x", "other": b"\xff" * SIZE}.get(kind, body(number))
        if kind != "missing":
            put(store, f"m{number}", data)
        store.faults[f"m{number}"] = Faults(down=kind == "down", denied=kind == "denied")
    wanted = [stored(store, number, f"m{number}") for number in range(len(kinds))]
    alone = {item.peer: gather([item], timeout_seconds=CAP, max_threads=1)[item.peer] for item in wanted}
    assert gather(wanted, timeout_seconds=CAP, max_threads=3) == alone


def test_stalled_peers_hold_up_nobody_even_when_they_outnumber_the_threads(life: Life) -> None:
    store = FakeStore()
    for number in range(12):
        put(store, f"m{number}", body(number))
        if number < 8:
            store.faults[f"m{number}"] = Faults(stalls=True)
    wanted = [stored(store, n, f"m{n}", time=life) for n in range(12)]
    found = gather(wanted, timeout_seconds=2, max_threads=2, time=life)
    assert life.now() == 2.0
    assert [isinstance(found[peer(n)], bytes) for n in range(12)] == [False] * 8 + [True] * 4


def test_a_bucket_that_ignores_its_time_out_cannot_delay_the_return(life: Life) -> None:
    class Hung(FakeBucket):
        def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
            life.sleep(NEVER)
            raise StorageError("get: out of time")

    store = FakeStore()
    put(store, "good", body(1))
    hung = Hung(store, "hung", read_only=True, reader="")
    wanted = [Wanted(peer(0), (Source(lambda: hung, "k"),), SIZE, bool), stored(store, 1, "good")]
    found = gather(wanted, timeout_seconds=0.5, max_threads=2, time=life)
    assert life.now() == 0.5
    assert found == {peer(0): FetchFault("unavailable", "no answer in time"), peer(1): body(1)}


def test_a_trickling_server_delays_nobody_over_real_http() -> None:
    """The one thread is with it first; to the end it would keep that for more than half an hour."""
    num_trickled = 100 * SIZE

    def trickle(connection: socket.socket, head: bytes) -> None:
        connection.sendall(response("200 OK", f"Content-Length: {num_trickled}", 'ETag: "e"'))
        while True:
            connection.sendall(b"x")
            time.sleep(0.2)

    def honest(connection: socket.socket, head: bytes) -> None:
        connection.sendall(response("200 OK", f"Content-Length: {SIZE}", 'ETag: "e"', body=body(1)))

    with hostile(trickle) as slow, hostile(honest) as good:

        def wanted(number: int, endpoint: str, size: int) -> Wanted:
            bucket = open_bucket(endpoint, "bucket", "access", "secret", local=True)
            return Wanted(peer(number), (Source(lambda: bucket, "k"),), size, is_exactly(body(number)))

        items = [wanted(0, slow.endpoint, num_trickled), wanted(1, good.endpoint, SIZE)]
        found = gather_until(1, items, seconds_left=1.0, max_threads=1)
        assert slow.requests, "it was never asked: this shows nothing"
    assert found[peer(1)] == body(1)
    assert isinstance(found[peer(0)], FetchFault)


def test_any_source_repairs_what_another_lacks(life: Life) -> None:
    store = FakeStore()
    put(store, "lies", b"x" * SIZE)
    put(store, "short", b"x")
    put(store, "mirror", body(1))
    store.faults["stalls"] = Faults(stalls=True)
    put(store, "stalls", body(1))
    for names in ((bad, "mirror") for bad in ("lies", "short", "empty", "stalls")):
        item = stored(store, 1, *names, time=life)
        assert gather([item], timeout_seconds=1, max_threads=1, time=life)[peer(1)] == body(1)
    assert gather([stored(store, 1, "mirror", "lies")], timeout_seconds=CAP, max_threads=1)[peer(1)] == body(1)


def test_the_fault_that_is_told_is_the_owners() -> None:
    store = FakeStore()
    put(store, "short", b"x")
    found = gather([stored(store, 1, "short", "empty")], timeout_seconds=CAP, max_threads=1)[peer(1)]
    assert isinstance(found, FetchFault)
    assert found.kind == "wrong_size"


def test_a_forged_clock_changes_nothing() -> None:
    outcomes = []
    for claimed in (None, 0.0, 4e9):
        store = FakeStore()
        put(store, "m1", body(1))
        put(store, "m2", b"x" * SIZE)
        store.faults.update({name: Faults(modified=claimed) for name in ("m1", "m2")})
        wanted = [stored(store, 1, "m1"), stored(store, 2, "m2")]
        outcomes.append(gather(wanted, timeout_seconds=CAP, max_threads=2))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0][peer(1)] == body(1)


def test_a_bucket_that_answers_each_reader_differently_gives_the_committed_bytes_or_a_fault() -> None:
    store = FakeStore()
    put(store, "m1", body(1))
    store.faults["m1"] = Faults(answers={"leader": body(1), "follower": b"x" * SIZE, "late": body(1) + b"x"})
    put(store, "mirror", body(1))
    for reader in ("leader", "follower", "late"):
        alone = gather([stored(store, 1, "m1", reader=reader)], timeout_seconds=CAP, max_threads=1)[peer(1)]
        assert alone == body(1) if reader == "leader" else isinstance(alone, FetchFault)
        wanted = [stored(store, 1, "m1", "mirror", reader=reader)]
        assert gather(wanted, timeout_seconds=CAP, max_threads=1)[peer(1)] == body(1)


def test_head_that_disagrees_with_get_decides_nothing_about_small_objects() -> None:
    store = FakeStore()
    put(store, "m1", body(1))
    store.faults["m1"] = Faults(head_size=1)
    assert gather([stored(store, 1, "m1")], timeout_seconds=CAP, max_threads=1)[peer(1)] == body(1)


def test_a_pointer_that_may_not_be_followed_is_that_peers_fault() -> None:
    def refused() -> RangedBucket:
        raise ConfigError("the pointer's endpoint leads to an address that is not public")

    found = gather([Wanted(peer(1), (Source(refused, "k"),), SIZE, bool)], timeout_seconds=CAP, max_threads=1)
    assert isinstance(found[peer(1)], FetchFault)


def test_a_bug_of_ours_is_raised_and_not_blamed_on_a_peer() -> None:
    def buggy(data: Data) -> bool:
        raise ZeroDivisionError

    store = FakeStore()
    put(store, "m1", body(1))
    item = stored(store, 1, "m1")
    with pytest.raises(ZeroDivisionError):
        gather([Wanted(item.peer, item.sources, SIZE, buggy)], timeout_seconds=CAP, max_threads=1)


def test_a_peer_wanted_twice_is_our_bug() -> None:
    store = FakeStore()
    with pytest.raises(ValueError, match="twice"):
        gather([stored(store, 1, "m1"), stored(store, 1, "m2")], timeout_seconds=CAP, max_threads=1)


def test_a_name_server_that_never_answers_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **options: object) -> list[object]:
        released.wait(2 * CAP)
        raise OSError("no such name")

    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", never)
    store = FakeStore()
    wanted = []
    for number in range(12):
        put(store, f"m{number}", body(number))
        wanted.append(stored(store, number, f"m{number}"))
    for number in range(8):
        pointer = Pointer(f"https://stalls-{number}.example", "bucket", "a", "s")
        opener = partial(open_pointer, pointer, local=False)
        wanted[number] = Wanted(peer(number), (Source(opener, "k"),), SIZE, bool)
    found = gather_until(4, wanted, seconds_left=1.5, max_threads=2)
    released.set()
    assert [isinstance(found[peer(n)], bytes) for n in range(12)] == [False] * 8 + [True] * 4


def test_many_mirrors_do_not_use_up_the_owners_time(life: Life) -> None:
    asked: list[float] = []

    class Watched(FakeBucket):
        def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
            asked.append(timeout_seconds)
            raise StorageError("get: broken")

    store = FakeStore()
    bucket = Watched(store, "any", read_only=True, reader="")
    found = gather(
        [Wanted(peer(0), tuple(Source(lambda: bucket, "k") for _ in range(64)), SIZE, bool)],
        timeout_seconds=6,
        max_threads=1,
        time=life,
    )
    assert found == {peer(0): FetchFault("unavailable", "get: broken")}
    assert len(asked) == 64
    assert asked[0] == 2.0


class Server(FakeBucket):
    """A peer's bucket whose server takes `latency` seconds for an answer, has the object from `since` on, and counts
    who is in it. With `deaf` it holds on to a request beyond the reader's time-out."""

    inside = 0
    most_inside = 0

    def __init__(self, life: Life, data: bytes, latency: float, since: float = 0.0, deaf: bool = False) -> None:
        super().__init__(FakeStore(), "any", read_only=True, reader="")
        self.life, self.data, self.latency, self.since, self.deaf = life, data, latency, since, deaf
        self.asked: list[float] = []

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        self.asked.append(self.life.now())
        Server.inside += 1
        Server.most_inside = max(Server.most_inside, Server.inside)
        there = self.life.now() >= self.since
        self.life.sleep(self.latency if self.deaf else min(self.latency, timeout_seconds))
        Server.inside -= 1
        if self.latency > timeout_seconds:
            raise StorageError("get: out of time")
        if not there:
            raise ObjectMissing("get: there is no such object or bucket")
        return self.data


def itself(bucket: RangedBucket) -> RangedBucket:
    return bucket


def wanted_from(number: int, opener: Callable[[], RangedBucket]) -> Wanted:
    name = PeerId(sha256(number.to_bytes(4, "little")).digest())
    return Wanted(name, (Source(opener, "k"),), SIZE, is_exactly(bytes(SIZE)))


def hostile_opener(kind: str, number: int, life: Life) -> Callable[[], RangedBucket]:
    if kind == "refused":
        return partial(open_pointer, Pointer(f"https://10.0.0.{number}", "bucket", "a", "s"), local=False)
    server = Server(life, b"", latency=NEVER) if kind == "stalling" else Server(life, b"", latency=0.4, since=NEVER)
    return lambda: server


@pytest.mark.parametrize("kinds", [("stalling",), ("absent",), ("refused",), ("stalling", "absent", "refused")])
def test_two_hundred_hostile_hotkeys_keep_no_honest_key_from_us(kinds: tuple[str, ...], life: Life) -> None:
    """The honest are last in the order, publish a fifth of the window late, and answer after 0.4 s."""
    seconds_left = window(life, 20)
    honest = [Server(life, bytes(SIZE), latency=0.4, since=life.now() + 4) for _ in range(20)]
    wanted = [wanted_from(n, hostile_opener(kinds[n % len(kinds)], n, life)) for n in range(200)]
    wanted += [wanted_from(200 + n, partial(itself, bucket)) for n, bucket in enumerate(honest)]
    Server.inside = Server.most_inside = 0
    found = Collection(wanted, seconds_left=seconds_left, max_threads=128, lasting=True, time=life).run()
    assert [found[item.peer] for item in wanted[200:]] == [bytes(SIZE)] * 20
    assert all(isinstance(found[item.peer], FetchFault) for item in wanted[:200])
    assert Server.most_inside <= 128


def test_slow_answers_count_that_come_before_the_end(life: Life) -> None:
    """Keys published 0.8 to 1.6 s after D, a window of 2.25 s, servers that need up to 0.6 s: more than a quarter of
    what is left. One answers just in time."""
    seconds_left = window(life, 2.25)
    began = life.now()
    servers = [Server(life, bytes(SIZE), latency=0.15 * n, since=began + 0.8 + 0.25 * (4 - n)) for n in range(1, 5)]
    servers.append(Server(life, bytes(SIZE), latency=1.9))
    wanted = [wanted_from(n, partial(itself, bucket)) for n, bucket in enumerate(servers)]
    found = Collection(wanted, seconds_left=seconds_left, max_threads=128, lasting=True, time=life).run()
    assert [found[item.peer] for item in wanted] == [bytes(SIZE)] * 5


def test_the_end_is_when_the_chain_says_so_and_nobody_is_waited_for(life: Life) -> None:
    """Block V comes earlier than planned; a server holds on to us far beyond the time-out."""
    ends = life.now() + 5
    deaf, honest = Server(life, b"", latency=60, deaf=True), Server(life, bytes(SIZE), latency=0.1)
    wanted = [wanted_from(0, lambda: deaf), wanted_from(1, lambda: honest)]
    collection = Collection(
        wanted, seconds_left=lambda: 0 if life.now() > ends else 100, max_threads=4, lasting=True, time=life
    )
    found = collection.run()
    assert 0 <= life.now() - ends <= 0.5
    assert found == {wanted[0].peer: FetchFault("unavailable", "no answer in time"), wanted[1].peer: bytes(SIZE)}
    assert collection.found() == {}, "what is left behind would keep it in memory"


def test_it_ends_when_all_is_there(life: Life) -> None:
    server = Server(life, bytes(SIZE), latency=0.05)
    item = wanted_from(0, lambda: server)
    refused = wanted_from(1, hostile_opener("refused", 1, life))
    homeless = Wanted(peer(2), (), SIZE, bool)
    began = life.now()
    found = Collection([item, refused, homeless], seconds_left=lambda: 60, max_threads=4, lasting=True, time=life).run()
    assert life.now() - began == pytest.approx(0.05)
    assert found[item.peer] == bytes(SIZE)
    assert sorted(fault.kind for fault in found.values() if isinstance(fault, FetchFault)) == ["missing", "refused"]


def test_a_refused_pointer_is_looked_at_once(life: Life) -> None:
    looks: list[str] = []

    def refused() -> RangedBucket:
        looks.append("look")
        raise ConfigError("not public")

    absent = Server(life, b"", latency=0.1, since=NEVER)
    item = Wanted(peer(1), (Source(refused, "k"), Source(lambda: absent, "k")), SIZE, bool)
    Collection([item], seconds_left=window(life, 10), max_threads=1, lasting=True, time=life).run()
    assert len(looks) == 1
    assert len(absent.asked) > 3


def test_what_is_not_there_yet_is_asked_for_gently(life: Life) -> None:
    servers = [Server(life, b"", latency=0.01, since=NEVER) for _ in range(100)]
    wanted = [wanted_from(n, partial(itself, bucket)) for n, bucket in enumerate(servers)]
    Collection(wanted, seconds_left=window(life, 10), max_threads=128, lasting=True, time=life).run()
    counts = [len(server.asked) for server in servers]
    assert min(counts) >= 3
    assert max(counts) <= 11, "a hundred questions a second are enough"


def test_the_callers_order_is_the_order_of_asking(life: Life) -> None:
    servers = [Server(life, b"", latency=0.5, since=NEVER) for _ in range(8)]
    wanted = [wanted_from(n, partial(itself, bucket)) for n, bucket in enumerate(servers)]
    Collection(wanted, seconds_left=window(life, 10), max_threads=1, lasting=True, time=life).run()
    first = [server.asked[0] for server in servers]
    assert first == sorted(first)


def test_stallers_wait_behind_all_others_and_longer_each_time(life: Life) -> None:
    stallers = [Server(life, b"", latency=NEVER) for _ in range(4)]
    late = Server(life, bytes(SIZE), latency=0.1, since=life.now() + 12)
    wanted = [wanted_from(n, partial(itself, bucket)) for n, bucket in enumerate([*stallers, late])]
    found = Collection(wanted, seconds_left=window(life, 20), max_threads=2, lasting=True, time=life).run()
    assert found[wanted[4].peer] == bytes(SIZE)
    assert len(late.asked) > max(len(server.asked) for server in stallers)


def test_whose_turn_never_came_is_not_blamed(life: Life) -> None:
    servers = [Server(life, b"", latency=6, deaf=True), Server(life, bytes(SIZE), latency=0)]
    wanted = [wanted_from(n, partial(itself, bucket)) for n, bucket in enumerate(servers)]
    found = Collection(wanted, seconds_left=window(life, 3), max_threads=1, time=life).run()
    assert [fault.kind for fault in found.values() if isinstance(fault, FetchFault)] == ["left_out", "unavailable"]
    assert not servers[1].asked


def test_a_clock_of_the_callers_that_breaks_is_raised(life: Life) -> None:
    def broken() -> float:
        raise StorageError("the chain does not answer")

    with pytest.raises(StorageError):
        Collection(
            [wanted_from(0, lambda: Server(life, b"", latency=0))], seconds_left=broken, max_threads=1, time=life
        ).run()


def test_what_has_no_room_on_the_disk_is_left_out_from_the_end_and_blames_nobody(tmp_path: Path) -> None:
    store = FakeStore()
    for number in range(4):
        put(store, f"m{number}", body(number))
    wanted = [stored(store, number, f"m{number}") for number in range(4)]
    lie_there = Collection(wanted[3:], seconds_left=lambda: CAP, max_threads=2, cache=tmp_path, room=SIZE).run()
    found = Collection(wanted, seconds_left=lambda: CAP, max_threads=2, cache=tmp_path, room=2 * SIZE + 1).run()
    assert lie_there[peer(3)] == found[peer(3)] == body(3)
    assert [found[peer(n)] for n in range(2)] == [body(0), body(1)]
    assert isinstance(fault := found[peer(2)], FetchFault)
    assert fault.kind == "left_out"
    assert ("m2", "get", "k") not in store.log
