"""Servers that bring a little in every turn: what has grown is gone on with, and its place is behind the others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from murmur.lab.simulation.clock import Life
from murmur.protocol.errors import ObjectMissing, StorageError
from murmur.protocol.ports import ObjectFacts
from storage.collect import Collection, gather
from storage.exchange import RESUMED_BYTES, Data, FetchFault, Source, Wanted
from tests.fakes.bucket import FakeBucket, FakeStore
from tests.storage.collect_cases import NEVER, peer, window

BLOCK = bytes(1 << 14)
NUM_BLOCKS = 80
SIZE = NUM_BLOCKS * len(BLOCK)
WINDOW = 24.0
HONEST, TRICKLE = 0.4, 18.0
"""Seconds in which a server brings the whole object. Most of a trickler's turns bring one part and more."""
ROOM = 1 << 40


class Link:
    """Our own link: whoever sends at a time shares it. `seconds`: for one object alone."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.senders = seconds, 0


class Server(FakeBucket):
    """Sends its object from `since` on, in `seconds` at best; each block behind `fast_blocks` in `then` seconds."""

    def __init__(
        self,
        life: Life,
        seconds: float,
        link: Link | None = None,
        *,
        fast_blocks: int = NUM_BLOCKS,
        then: float = 0.0,
        since: float = 0.0,
    ) -> None:
        super().__init__(FakeStore(), "any", read_only=True, reader="")
        self.life, self.seconds, self.link, self.since = life, seconds, link or Link(), since
        self.fast_blocks, self.then = fast_blocks, then
        self.heads: list[float] = []

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        self.heads.append(self.life.now())
        return ObjectFacts(SIZE, "etag", 0.0) if self.life.now() >= self.since else None

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        raise ObjectMissing("get: read as a stream")

    def stream(
        self,
        key: str,
        sink: Callable[[bytes], object],
        *,
        first: int,
        num_bytes: int,
        etag: str,
        timeout_seconds: float,
    ) -> None:
        until = self.life.now() + timeout_seconds
        self.link.senders += 1
        try:
            for block in range(first // len(BLOCK), (first + num_bytes) // len(BLOCK)):
                paced = max(self.seconds, self.link.seconds * self.link.senders) / NUM_BLOCKS
                way = paced if block < self.fast_blocks else self.then
                self.life.sleep(min(way, max(0.0, until - self.life.now())))
                if self.life.now() >= until:
                    raise StorageError("get: out of time")
                sink(BLOCK)
        finally:
            self.link.senders -= 1


class Watch:
    """What is wanted from these servers, in this order, and when each was whole."""

    def __init__(self, life: Life, servers: list[Server]) -> None:
        self.life, self.servers = life, servers
        self.whole_at: dict[int, float] = {}

    def wanted(self) -> list[Wanted]:
        def item(number: int, server: Server) -> Wanted:
            def accept(data: Data) -> bool:
                self.whole_at.setdefault(number, self.life.now())
                return True

            return Wanted(peer(number), (Source(lambda: server, "k"),), SIZE, accept)

        return [item(number, server) for number, server in enumerate(self.servers)]

    def collect(self, cache: Path, *, threads: int, lasting: bool = True) -> dict[int, float]:
        """Collect all; return when each was whole."""
        Collection(
            self.wanted(),
            seconds_left=window(self.life, WINDOW),
            max_threads=threads,
            lasting=lasting,
            cache=cache,
            room=ROOM,
            time=self.life,
        ).run()
        return self.whole_at


def test_the_objects_are_large_enough_to_go_on_where_they_ended() -> None:
    assert SIZE > RESUMED_BYTES


@pytest.mark.parametrize(("threads", "lasting"), [(10, True), (3, False)], ids=["collected", "fetched early"])
def test_ten_tricklers_in_front_leave_ten_honest_payloads_whole_in_a_tenth_of_the_window(
    tmp_path: Path, life: Life, threads: int, lasting: bool
) -> None:
    servers = [Server(life, TRICKLE) for _ in range(10)] + [Server(life, HONEST) for _ in range(10)]
    whole_at = Watch(life, servers).collect(tmp_path, threads=threads, lasting=lasting)
    assert all(number in whole_at and whole_at[number] <= WINDOW / 10 for number in range(10, 20)), whole_at


def test_tricklers_in_front_of_a_gathering_cost_no_more_than_their_own_shares(tmp_path: Path, life: Life) -> None:
    servers = [Server(life, 2 * TRICKLE) for _ in range(10)] + [Server(life, HONEST) for _ in range(10)]
    watch = Watch(life, servers)
    gather(watch.wanted(), timeout_seconds=WINDOW, max_threads=3, cache=tmp_path, time=life)
    assert all(watch.whole_at[number] <= 0.6 * WINDOW for number in range(10, 20)), watch.whole_at


@pytest.mark.parametrize("before", [0, 10])
def test_slow_links_bring_their_payloads_in_fair_turns(tmp_path: Path, life: Life, before: int) -> None:
    """Each needs more than half of its fair share of the threads' time, and gets several turns for it."""
    slow = 0.6 * WINDOW * 4 / (20 + before)
    servers = [Server(life, 4 * WINDOW) for _ in range(before)] + [Server(life, slow) for _ in range(20)]
    whole_at = Watch(life, servers).collect(tmp_path, threads=4)
    assert sorted(whole_at) == list(range(before, before + 20))
    assert all(len(server.heads) > 1 for server in servers), "one turn was enough: this shows nothing"


def test_a_link_that_carries_the_best_only_brings_them_before_the_garbage_of_others(tmp_path: Path, life: Life) -> None:
    """Equal turns for everybody would leave all of them unfinished."""
    link = Link(0.9 * WINDOW / 20)
    whole_at = Watch(life, [Server(life, 0.0, link) for _ in range(60)]).collect(tmp_path, threads=10)
    assert set(range(20)) <= set(whole_at)


def test_a_fast_beginning_keeps_no_place(tmp_path: Path, life: Life) -> None:
    """Half of the object as fast as the honest bring it, then a block a second."""
    servers = [Server(life, HONEST, fast_blocks=NUM_BLOCKS // 2, then=1.0) for _ in range(10)]
    servers += [Server(life, HONEST) for _ in range(10)]
    whole_at = Watch(life, servers).collect(tmp_path, threads=10)
    assert all(whole_at[number] <= WINDOW / 10 for number in range(10, 20)), whole_at


def test_tricklers_hold_not_all_threads_while_another_may_still_show_its_payload(tmp_path: Path, life: Life) -> None:
    late = Server(life, HONEST, since=life.now() + WINDOW / 2)
    servers = [*(Server(life, 4 * WINDOW) for _ in range(10)), late]
    whole_at = Watch(life, servers).collect(tmp_path, threads=4)
    assert whole_at[10] <= 0.6 * WINDOW


def test_what_grew_is_gone_on_with(tmp_path: Path, life: Life) -> None:
    """Of two objects on one thread the slow one, first in the order, comes behind the other, and is sent once."""
    slow, fast = Server(life, WINDOW / 2), Server(life, HONEST)
    sent = {id(slow): 0, id(fast): 0}

    def counted(server: Server) -> None:
        stream = server.stream

        def count(key: str, sink: Callable[[bytes], object], **options: object) -> None:
            def pass_on(block: bytes) -> None:
                sent[id(server)] += len(block)
                sink(block)

            stream(key, pass_on, **options)  # type: ignore[arg-type]

        server.stream = count  # type: ignore[method-assign,assignment]

    counted(slow)
    counted(fast)
    whole_at = Watch(life, [slow, fast]).collect(tmp_path, threads=1)
    assert whole_at[1] < whole_at[0] < WINDOW
    assert set(sent.values()) == {SIZE}
    assert len(slow.heads) > 1, "one turn was enough: this shows nothing"


def test_a_share_of_nothing_never_holds_up_the_end(tmp_path: Path, life: Life) -> None:
    servers = [Server(life, NEVER) for _ in range(6)]
    found = Collection(
        Watch(life, servers).wanted(),
        seconds_left=window(life, WINDOW),
        max_threads=2,
        lasting=True,
        cache=tmp_path,
        room=ROOM,
        time=life,
    ).run()
    assert {fault.kind for fault in found.values() if isinstance(fault, FetchFault)} == {"unavailable"}
    assert life.now() <= WINDOW + 0.5
    assert max(len(server.heads) for server in servers) < 20, "the share grows with every turn"


def test_promises_that_are_never_kept_cost_others_few_threads(tmp_path: Path, life: Life) -> None:
    """A hundred commit and show nothing. The link is slow, so that each honest payload takes several turns."""
    threads, honest = 10, 20
    servers = [Server(life, 0.6 * WINDOW * threads / honest) for _ in range(honest)]
    servers += [Server(life, HONEST, since=2 * WINDOW) for _ in range(100)]
    whole_at = Watch(life, servers).collect(tmp_path, threads=threads)
    assert sorted(whole_at) == list(range(honest))
