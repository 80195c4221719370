"""What a validator collects: keys from their owners alone, payloads from any source and as views of files."""

from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.lab.simulation.clock import Life
from murmur.node.fetch.opening import open_payload
from murmur.node.fetch.payloads import collect_keys, fetch_keys
from murmur.node.fetch.sources import Sources
from murmur.protocol import keys
from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout
from murmur.protocol.messages import Envelope, Reveal
from murmur.protocol.types import Digest, Peer, PeerId, Slot, Uid
from storage.exchange import FetchFault
from tests.fakes.bucket import FakeStore

RUN = Digest(bytes(32))
ROUND = 3


def named(number: int) -> PeerId:
    return PeerId(sha256(bytes([number])).digest())


def peer(store: FakeStore, number: int, *, validates: bool = False) -> Peer:
    store.bucket(f"m{number}")
    return Peer(named(number), Uid(number), 10 * validates, validates, 0, Slot(1, store.pointer(f"m{number}"), None))


def reveal(number: int, round: int = ROUND) -> bytes:
    return Reveal(RUN, round, named(number), bytes(32), Digest(bytes(32))).encode()


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return True


def collected(store: FakeStore, peers: list[Peer], life: Life, cache: Path) -> dict[PeerId, bytes]:
    """What there is to be had within 20 s."""
    until = life.now() + 20
    miners = [peer.id for peer in peers if not peer.validates]
    sources = Sources(peers, partial(store.open, time=life))
    left = lambda: until - life.now()  # noqa: E731
    return collect_keys(RUN, ROUND, miners, sources, verify, seconds_left=left, cache=cache, time=life)


def test_a_key_counts_that_its_owner_serves_and_mirrors_are_not_asked(life: Life, tmp_path: Path) -> None:
    store = FakeStore()
    peers = [peer(store, 0), peer(store, 1), peer(store, 2), peer(store, 9, validates=True)]
    store.bucket("m0").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)
    store.bucket("m1").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)
    store.bucket("m9").put(keys.mirror_reveal(RUN, ROUND, named(2)), reveal(2), timeout_seconds=1)
    store.log.clear()
    assert collected(store, peers, life, tmp_path) == {named(0): reveal(0)}
    assert {bucket for bucket, _, _ in store.log} == {"m0", "m1", "m2"}


def test_a_key_that_appears_later_is_found(life: Life, tmp_path: Path) -> None:
    store = FakeStore()
    peers = [peer(store, 0)]
    asked = 0

    def publish_after_two(call: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            store.bucket("m0").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)

    store.before = publish_after_two
    assert collected(store, peers, life, tmp_path) == {named(0): reveal(0)}


def test_a_key_that_was_read_is_there_when_its_owner_has_left(life: Life, tmp_path: Path) -> None:
    """For whoever names a peer, was killed, and has to open what it left."""
    key_hash = Digest(sha256(bytes(32)).digest())
    store, sealed = FakeStore(), Envelope(RUN, ROUND, named(0), key_hash, Digest(bytes(32)))
    store.bucket("m0").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)
    assert collected(store, [peer(store, 0)], life, tmp_path).keys() == {named(0)}
    pinned = [(named(0), sealed)]
    found = fetch_keys(RUN, ROUND, pinned, Sources((), store.open), 1.0, tmp_path, life)
    assert found[named(0)] == reveal(0)
    assert isinstance(fetch_keys(RUN, ROUND, pinned, Sources((), store.open), 1.0, None, life)[named(0)], FetchFault)


def test_pinned_bytes_that_are_no_envelope_are_nobodys_update() -> None:
    """A commitment or claim may pin whatever its author likes."""
    garbage = bytes(range(256)) * 40
    with pytest.raises(InvalidSubmission, match="envelope"):
        open_payload(Layout.of({"w": (64, 64)}, 32), PeerId(bytes(32)), 1, bytes(32), garbage)
