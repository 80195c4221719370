"""The mirror believes only what it has read back."""

import pytest

from protocol import keys, merkle
from protocol.errors import StorageError
from protocol.types import Digest, PeerId
from storage import mirror as mirror_module
from storage import seal as seal_module
from storage.collect import gather
from storage.exchange import Source, Wanted
from storage.mirror import Mirror
from storage.seal import Sealed, matches, seal
from tests.fakes.bucket import FakeStore, Faults
from tests.storage.test_seal import TestSigner

RUN = Digest(bytes(range(32)))
SECTION = 100
SIGNER = TestSigner()


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merkle, "SECTION_BYTES", SECTION)
    monkeypatch.setattr(mirror_module, "SECTION_BYTES", SECTION)
    monkeypatch.setattr(seal_module, "SECTION_BYTES", SECTION)


def sealed(round: int = 3) -> Sealed:
    return seal(bytes(350), key=bytes(32), run=RUN, round=round, signer=SIGNER)


def fresh() -> tuple[FakeStore, Mirror]:
    store = FakeStore()
    return store, Mirror(store.bucket("validator"), RUN)


def test_a_copy_is_held_and_repairs_a_reader() -> None:
    store, mirror = fresh()
    copied = mirror.copy(3, SIGNER.peer, sealed().object, b"reveal", timeout_seconds=1)
    assert mirror.holds(copied, timeout_seconds=1)
    key = keys.mirror(RUN, 3, SIGNER.peer)
    source = Source(lambda: store.bucket("validator", read_only=True), key)
    wanted = [Wanted(SIGNER.peer, (source,), len(sealed().object), matches(sealed().digest))]
    assert gather(wanted, timeout_seconds=1, max_threads=1)[SIGNER.peer] == sealed().object
    reveal = keys.mirror_reveal(RUN, 3, SIGNER.peer)
    assert store.bucket("validator").get(reveal, max_bytes=10, timeout_seconds=1) == b"reveal"


def test_a_copy_that_was_lost_or_changed_is_not_held() -> None:
    _, mirror = fresh()
    copied = mirror.copy(3, SIGNER.peer, sealed().object, timeout_seconds=1)
    key = keys.mirror(RUN, 3, SIGNER.peer)
    body = sealed().object
    ruined = body[:204] + bytes(len(body) - 204)
    for other in (body[:-1], body + b"x", bytes([body[0] ^ 1]) + body[1:], ruined):
        mirror.bucket.put(key, other, timeout_seconds=1)
        assert not mirror.holds(copied, timeout_seconds=1)
    mirror.bucket.put(key, body, timeout_seconds=1)
    assert mirror.holds(copied, timeout_seconds=1)
    mirror.bucket.delete(key, timeout_seconds=1)
    assert not mirror.holds(copied, timeout_seconds=1)


def test_one_spoilt_section_is_found_by_repeated_samples() -> None:
    _, mirror = fresh()
    copied = mirror.copy(3, SIGNER.peer, sealed().object, timeout_seconds=1)
    spoilt = bytearray(sealed().object)
    spoilt[-1] ^= 1
    mirror.bucket.put(keys.mirror(RUN, 3, SIGNER.peer), bytes(spoilt), timeout_seconds=1)
    # One of 4 sections: 200 samples all miss it with probability 1e-25.
    assert not all(mirror.holds(copied, timeout_seconds=1) for _ in range(200))


def test_a_bucket_that_does_not_answer_holds_nothing() -> None:
    store, mirror = fresh()
    copied = mirror.copy(3, SIGNER.peer, sealed().object, timeout_seconds=1)
    for faults in (Faults(down=True), Faults(denied=True), Faults(stalls=True)):
        store.faults["validator"] = faults
        assert not mirror.holds(copied, timeout_seconds=0.1)


def test_bytes_that_are_not_what_their_envelope_says_are_not_mirrored() -> None:
    _, mirror = fresh()
    with pytest.raises(ValueError, match="root differs"):
        mirror.copy(3, SIGNER.peer, sealed().object[:-1] + b"x", timeout_seconds=1)


def test_a_copy_that_cannot_be_stored_is_an_error() -> None:
    store, mirror = fresh()
    store.faults["validator"] = Faults(down=True)
    with pytest.raises(StorageError):
        mirror.copy(3, SIGNER.peer, sealed().object, timeout_seconds=0.2)


def test_prune_deletes_exactly_the_older_rounds_of_this_run() -> None:
    store, mirror = fresh()
    for round in range(6):
        mirror.copy(round, SIGNER.peer, sealed(round).object, b"reveal", timeout_seconds=1)
        mirror.copy_reveal(round, PeerId(b"\xff" * 32), b"reveal", timeout_seconds=1)
    elsewhere = (keys.payload(RUN, 0), keys.checkpoints(RUN), keys.mirror(Digest(bytes(32)), 0, SIGNER.peer))
    for key in elsewhere:
        mirror.bucket.put(key, b"keep", timeout_seconds=1)
    assert mirror.prune(4, timeout_seconds=1) == 12
    left = set(store.buckets["validator"])
    assert left >= set(elsewhere)
    rounds = {int(key.split("/")[2]) for key in left - set(elsewhere)}
    assert rounds == {4, 5}
    assert mirror.prune(4, timeout_seconds=1) == 0
