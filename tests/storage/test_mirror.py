"""The mirror: copies under their keys, whole or not at all, and gone when their time is over."""

from pathlib import Path

import pytest

from murmur.protocol import keys
from murmur.protocol.errors import StorageError
from murmur.protocol.types import Digest, PeerId
from storage.collect import gather
from storage.exchange import Source, Wanted
from storage.mirror import Mirror
from storage.seal import Sealed, matches, seal
from tests.fakes.bucket import FakeStore, Faults
from tests.storage.test_seal import TestSigner

RUN = Digest(bytes(range(32)))
SIGNER = TestSigner()


def sealed(round: int = 3) -> Sealed:
    return seal(bytes(350), key=bytes(32), run=RUN, round=round, signer=SIGNER)


def fresh() -> tuple[FakeStore, Mirror]:
    store = FakeStore()
    return store, Mirror(store.bucket("validator"), RUN)


def test_a_copy_repairs_a_reader(tmp_path: Path) -> None:
    store, mirror = fresh()
    file = tmp_path / "sealed"
    file.write_bytes(sealed().object)
    size = len(sealed().object)
    assert not mirror.has(3, SIGNER.peer, size, timeout_seconds=1)
    mirror.copy(3, SIGNER.peer, file, timeout_seconds=1)
    mirror.copy_reveal(3, SIGNER.peer, b"reveal", timeout_seconds=1)
    assert mirror.has(3, SIGNER.peer, size, timeout_seconds=1)
    assert not mirror.has(3, SIGNER.peer, size + 1, timeout_seconds=1)
    key = keys.mirror(RUN, 3, SIGNER.peer)
    source = Source(lambda: store.bucket("validator", read_only=True), key)
    wanted = [Wanted(SIGNER.peer, (source,), size, matches(sealed().digest))]
    assert gather(wanted, timeout_seconds=1, max_threads=1)[SIGNER.peer] == sealed().object
    reveal = keys.mirror_reveal(RUN, 3, SIGNER.peer)
    assert store.bucket("validator").get(reveal, max_bytes=10, timeout_seconds=1) == b"reveal"


def test_a_copy_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    store, mirror = fresh()
    with pytest.raises(OSError, match="nowhere"):
        mirror.copy(3, SIGNER.peer, tmp_path / "nowhere", timeout_seconds=0.2)
    store.faults["validator"] = Faults(down=True)
    with pytest.raises(StorageError):
        mirror.copy(3, SIGNER.peer, sealed().object, timeout_seconds=0.2)


def test_prune_deletes_exactly_the_older_rounds_of_this_run() -> None:
    store, mirror = fresh()
    for round in range(6):
        mirror.copy(round, SIGNER.peer, sealed(round).object, timeout_seconds=1)
        mirror.copy_reveal(round, SIGNER.peer, b"reveal", timeout_seconds=1)
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
