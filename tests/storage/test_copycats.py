"""Hotkeys that repeat what another has committed to, and point to its bucket: they cost nobody its link."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from murmur.lab.localnet.store import StoreReady
from murmur.lab.simulation.clock import Life
from murmur.node.fetch import payloads
from murmur.node.fetch.payloads import collect_keys, collect_pinned
from murmur.node.fetch.sources import Sources
from murmur.protocol import keys
from murmur.protocol.messages import ENVELOPE_BYTES, Reveal
from murmur.protocol.types import DIGEST_BYTES, Digest, Peer, PeerId, Pointer, Slot, Uid
from storage.s3 import open_bucket, open_pointer
from storage.seal import seal
from storage.transport import TRAFFIC
from tests.fakes.bucket import FakeStore
from tests.specs import toy_spec

RUN = Digest(bytes(32))
ROUND = 3
COPYCATS = 200


def named(number: int) -> PeerId:
    return PeerId(sha256(number.to_bytes(2, "little")).digest())


VICTIM = named(0)


class Signer:
    """Signs as the victim; `verify` knows it."""

    peer = VICTIM

    def sign(self, message: bytes) -> bytes:
        return sha256(self.peer + message).digest() * 2


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return sha256(peer + message).digest() * 2 == signature


def with_copycats(pointer: Pointer, number: int = COPYCATS) -> list[Peer]:
    """All point to one bucket, and the victim is last in the order."""
    peers = [Peer(named(n), Uid(n), 0, False, 0, Slot(1, pointer, None)) for n in range(number + 1)]
    return [*peers[1:], peers[0]]


def test_their_places_are_asked_for_keys_as_often_as_the_victims_alone(life: Life, tmp_path: Path) -> None:
    """The key is shown late, and the victim is last in the order."""
    store = FakeStore()
    bucket = store.bucket("victim")
    reveal = Reveal(RUN, ROUND, VICTIM, bytes(32), Digest(bytes(32)))
    reveal = Reveal(RUN, ROUND, VICTIM, bytes(32), Digest(bytes(32)), Signer().sign(reveal.signed_part))

    def asked(number: int) -> int:
        peers, until, since = with_copycats(store.pointer("victim"), number), life.now() + 12, life.now() + 6

        def show(call: object) -> None:
            if life.now() >= since:
                store.before = lambda call: None
                bucket.put(keys.reveal(RUN, ROUND), reveal.encode(), timeout_seconds=1)

        store.buckets["victim"].clear()
        store.before, before = show, len(store.log)
        sources = Sources(peers, partial(store.open, time=life))
        order = [peer.id for peer in peers]
        cache = tmp_path / str(number)
        found = collect_keys(
            RUN, ROUND, order, sources, verify, seconds_left=lambda: until - life.now(), cache=cache, time=life
        )
        assert found == {VICTIM: reveal.encode()}
        return sum(verb == "get" for _, verb, _ in store.log[before:])

    assert asked(COPYCATS) <= asked(0) + 2


def test_a_validator_reads_one_payload_and_the_envelope_for_each_of_them(
    s3_store: StoreReady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "room_for_downloads", lambda spec, role, cache: 1 << 40)
    user = s3_store.users["miner-1"]
    bucket = open_bucket(s3_store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    sealed = seal(bytes(8 << 20), run=RUN, round=ROUND, signer=Signer())
    envelope = Digest(sha256(sealed.object[:ENVELOPE_BYTES]).digest())
    bucket.put(keys.payload(RUN, ROUND), sealed.object, timeout_seconds=60)
    pointer = Pointer(s3_store.endpoint, user.bucket, user.read_access_key, user.read_secret_key)
    peers = with_copycats(pointer)
    records = SimpleNamespace(records_bytes=len(sealed.object) - ENVELOPE_BYTES - DIGEST_BYTES)
    layout = SimpleNamespace(part=lambda index, count: records)
    spec: Any = SimpleNamespace(layout=layout, gauntlet=toy_spec().gauntlet, trace=toy_spec().trace)
    _, before = TRAFFIC.moved()
    found = collect_pinned(
        spec,
        RUN,
        ROUND,
        [(peer.id, envelope) for peer in peers],
        Sources(peers, partial(open_pointer, local=True)),
        verify,
        seconds_left=lambda: 60.0,
        cache=tmp_path,
    ).outcome()
    _, after = TRAFFIC.moved()
    assert found[VICTIM] == sealed.object
    assert {bytes(found[peer.id]) for peer in peers[:-1]} == {sealed.object[:ENVELOPE_BYTES]}
    assert after - before < 1.05 * len(sealed.object)
