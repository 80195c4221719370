"""Peers that point to one place: it is asked once, and what is there decides whose it is."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.lab.simulation.clock import Life
from murmur.protocol.types import PeerId, Pointer
from storage.collect import Collection, first, gather
from storage.exchange import RESUMED_BYTES, Data, FetchFault, Source, Wanted, cached
from storage.resume import Opening
from tests.fakes.bucket import FakeStore

KEY = "run/payload/00000001"
HEAD_BYTES = 8


def named(number: int) -> PeerId:
    return PeerId(sha256(number.to_bytes(2, "little")).digest())


def begins(peer: PeerId) -> bytes:
    return peer[:HEAD_BYTES]


def whose(peer: PeerId) -> Callable[[Data], bool]:
    return lambda data: bytes(data[:HEAD_BYTES]) == begins(peer)


def item(store: FakeStore, pointer: Pointer, peer: PeerId, size: int, life: Life, *, opening: bool = False) -> Wanted:
    source = Source(lambda: store.open(pointer, time=life), KEY, pointer.endpoint, place=pointer)
    goes_on = Opening(HEAD_BYTES, whose(peer)) if opening else None
    return Wanted(peer, (source,), size, whose(peer), opening=goes_on)


def asked(store: FakeStore) -> int:
    return sum(verb == "get" for _, verb, _ in store.log)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_request_brings_everybody_the_answer(life: Life, place: int) -> None:
    store = FakeStore()
    owner = named(3)
    store.bucket("victim").put(KEY, begins(owner), timeout_seconds=1)
    order = [named(number) for number in (0, 1, 2, 4, 5, 6)]
    order.insert(place, owner)
    wanted = [item(store, store.pointer("victim"), peer, HEAD_BYTES, life) for peer in order]
    found = gather(wanted, timeout_seconds=1, max_threads=4, time=life)
    assert set(found) == set(order)
    assert found[owner] == begins(owner)
    for peer in order:
        got = found[peer]
        assert peer == owner or (isinstance(got, FetchFault) and got.kind == "mismatch")
    assert asked(store) == 1
    assert first(wanted, timeout_seconds=1, max_threads=4, time=life) == (owner, begins(owner))


def test_what_is_missing_is_missing_for_all(life: Life) -> None:
    store = FakeStore()
    store.bucket("victim")
    wanted = [item(store, store.pointer("victim"), named(number), HEAD_BYTES, life) for number in range(5)]
    found = gather(wanted, timeout_seconds=1, max_threads=4, time=life)
    assert {got.kind for got in found.values() if isinstance(got, FetchFault)} == {"missing"}
    assert (len(found), asked(store)) == (5, 1)


def test_places_of_their_own_and_other_sizes_are_asked_each(life: Life) -> None:
    store = FakeStore()
    for name in ("one", "other"):
        store.bucket(name).put(KEY, begins(named(0)), timeout_seconds=1)
    wanted = [
        item(store, store.pointer("one"), named(0), HEAD_BYTES, life),
        item(store, store.pointer("other"), named(1), HEAD_BYTES, life),
        item(store, store.pointer("one"), named(2), HEAD_BYTES + 1, life),
    ]
    gather(wanted, timeout_seconds=1, max_threads=4, time=life)
    assert asked(store) == 3


def test_a_place_that_is_named_twice_for_one_object_is_asked_once(life: Life) -> None:
    store = FakeStore()
    store.bucket("victim")
    one = item(store, store.pointer("victim"), named(0), HEAD_BYTES, life)
    twice = Wanted(one.peer, one.sources * 2, one.size, one.accept)
    gather([twice], timeout_seconds=1, max_threads=4, time=life)
    assert asked(store) == 1


def test_an_object_on_the_disk_lies_under_its_owners_name_and_is_asked_for_nowhere(life: Life, tmp_path: Path) -> None:
    store = FakeStore()
    owner, size = named(3), RESUMED_BYTES + 5
    data = begins(owner) + bytes(size - HEAD_BYTES)
    store.bucket("victim").put(KEY, data, timeout_seconds=1)
    order = [named(number) for number in range(6)]
    wanted = [item(store, store.pointer("victim"), peer, size, life, opening=True) for peer in order]

    def collected() -> dict[PeerId, Data]:
        found = Collection(
            wanted, seconds_left=lambda: 1.0, max_threads=4, cache=tmp_path, room=10 * size, time=life
        ).run()
        return {peer: got for peer, got in found.items() if not isinstance(got, FetchFault)}

    assert {peer: bytes(got) for peer, got in collected().items()} == {owner: data}
    assert [peer for peer in order if cached(tmp_path, peer, KEY).exists()] == [owner]
    store.bucket("victim").delete(KEY, timeout_seconds=1)
    assert {peer: bytes(got) for peer, got in collected().items()} == {owner: data}


def test_a_beginning_that_a_stranger_committed_to_does_not_end_the_wait_for_the_owners_object(life: Life) -> None:
    """The owner replaces its object; a stranger has committed to the old one."""
    store = FakeStore()
    owner, stranger, size = named(0), named(1), 20
    old, new = b"replaced" + bytes(size - 8), begins(owner) + bytes(size - HEAD_BYTES)
    bucket = store.bucket("victim")
    bucket.put(KEY, old, timeout_seconds=1)

    def replace_it(call: object) -> None:
        store.before = lambda call: None if asked(store) < 3 else bucket_now()

    def bucket_now() -> None:
        store.before = lambda call: None
        bucket.put(KEY, new, timeout_seconds=1)

    store.before = replace_it
    wanted = [item(store, store.pointer("victim"), owner, size, life, opening=True)]
    copied = Wanted(
        stranger,
        wanted[0].sources,
        size,
        lambda data: bytes(data[:HEAD_BYTES]) == old[:HEAD_BYTES] and len(data) == HEAD_BYTES,
        opening=Opening(HEAD_BYTES, lambda head: False),
    )
    until = life.now() + 10
    found = Collection(
        [copied, *wanted], seconds_left=lambda: until - life.now(), max_threads=4, lasting=True, time=life
    ).run()
    assert found == {stranger: old[:HEAD_BYTES], owner: new}
