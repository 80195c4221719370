"""What a validator collects: keys from their owners alone, payloads from any source and as views of files."""

import time
from hashlib import sha256

from node.payloads import collect_keys
from node.sources import Sources
from protocol import keys
from protocol.messages import Reveal
from protocol.types import Digest, Peer, PeerId, Slot, Uid
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


def collected(store: FakeStore, peers: list[Peer], seconds: float) -> dict[PeerId, bytes]:
    until = time.monotonic() + seconds
    miners = [peer.id for peer in peers if not peer.validates]
    sources = Sources(peers, store.open)
    return collect_keys(RUN, ROUND, miners, sources, verify, seconds_left=lambda: until - time.monotonic())


def test_a_key_counts_that_its_owner_serves_and_mirrors_are_not_asked() -> None:
    store = FakeStore()
    peers = [peer(store, 0), peer(store, 1), peer(store, 2), peer(store, 9, validates=True)]
    store.bucket("m0").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)
    store.bucket("m1").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)
    store.bucket("m9").put(keys.mirror_reveal(RUN, ROUND, named(2)), reveal(2), timeout_seconds=1)
    store.log.clear()
    assert collected(store, peers, 1) == {named(0): reveal(0)}
    assert {bucket for bucket, _, _ in store.log} == {"m0", "m1", "m2"}


def test_a_key_that_appears_later_is_found() -> None:
    store = FakeStore()
    peers = [peer(store, 0)]
    asked = 0

    def publish_after_two(call: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            store.bucket("m0").put(keys.reveal(RUN, ROUND), reveal(0), timeout_seconds=1)

    store.before = publish_after_two
    assert collected(store, peers, 20) == {named(0): reveal(0)}
