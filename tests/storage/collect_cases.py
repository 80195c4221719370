"""Wanted objects in fake buckets, small and large, and collections that end when enough is there."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256

from murmur.protocol.ports import Time
from murmur.protocol.types import PeerId
from storage.collect import Collection
from storage.exchange import Data, FetchFault, Source, Wanted
from storage.realtime import REAL
from storage.s3 import RangedBucket
from tests.fakes.bucket import FakeStore

SIZE = 100
CAP = 100.0
"""Real seconds after which something is taken to be held up for ever. Nothing that goes well waits for it."""
NEVER = 1e9


def peer(number: int) -> PeerId:
    return PeerId(sha256(bytes([number])).digest())


def body(number: int) -> bytes:
    return bytes([number]) * SIZE


def is_exactly(data: bytes) -> Callable[[Data], bool]:
    digest = sha256(data).digest()
    return lambda found: sha256(found).digest() == digest


def stored(store: FakeStore, number: int, *names: str, reader: str = "somebody", time: Time = REAL) -> Wanted:
    """A peer's object, wanted from the named buckets, whose servers live in `time`."""

    def opener(name: str) -> Callable[[], RangedBucket]:
        return lambda: store.bucket(name, read_only=True, reader=reader, time=time)

    return Wanted(peer(number), tuple(Source(opener(name), "k") for name in names), SIZE, is_exactly(body(number)))


def put(store: FakeStore, name: str, data: bytes) -> None:
    store.bucket(name).put("k", data, timeout_seconds=1)


def gather_until(
    num_found: int, wanted: list[Wanted], *, seconds_left: float, max_threads: int
) -> Mapping[PeerId, Data | FetchFault]:
    """Collect in real time with the end always so far away, until so many are there: a slow machine has more turns."""
    collection: Collection
    cap = time.monotonic() + CAP

    def left() -> float:
        assert time.monotonic() < cap, f"only {len(collection.found())} of {num_found}"
        return seconds_left if len(collection.found()) < num_found else 0.0

    collection = Collection(wanted, seconds_left=left, max_threads=max_threads)
    return collection.run()


def window(time: Time, seconds: float) -> Callable[[], float]:
    until = time.now() + seconds
    return lambda: until - time.now()


PART_BYTES = 1 << 16
LARGE = bytes(16 * PART_BYTES) + b"end"


def large(store: FakeStore, *names: str, data: bytes = LARGE, time: Time = REAL) -> Wanted:
    sources = tuple(Source(partial(store.bucket, name, read_only=True, time=time), f"k-{name}") for name in names)
    for name in names:
        if name not in store.buckets:
            store.bucket(name).put(f"k-{name}", data, timeout_seconds=1)
    return Wanted(peer(1), sources, len(LARGE), is_exactly(LARGE))
