"""Putting a run before everybody: how far it is, also in the middle of an object."""

import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from murmur.owner.publish import Blob, upload
from murmur.protocol.errors import StorageError
from murmur.protocol.ports import ObjectFacts
from murmur.protocol.types import Digest
from storage.transport import TRAFFIC

SIZE = 1000


class Slow:
    """A bucket that sends half of an object, and the rest when that was told. `there`: keys that it has; `failing`: it
    breaks off once."""

    def __init__(self, told: threading.Event, there: tuple[str, ...] = (), *, failing: bool = False) -> None:
        self.told, self.there, self.failing = told, there, failing

    def head(self, key: str, **_: Any) -> ObjectFacts | None:
        return ObjectFacts(SIZE, "", 0.0) if any(key.endswith(name) for name in self.there) else None

    def put(self, key: str, data: Path, **_: Any) -> None:
        self.told.clear()
        TRAFFIC.add(sent=SIZE // 2)
        if not self.told.wait(30.0):
            raise AssertionError("half of an object went up unsaid")
        if self.failing:
            self.failing = False
            raise StorageError("the connection broke")
        TRAFFIC.add(sent=SIZE // 2)


@pytest.fixture
def blobs(tmp_path: Path) -> list[Blob]:
    found = []
    for number in range(3):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]) * SIZE)
        found.append((Digest(sha256(path.read_bytes()).digest()), path))
    return found


@pytest.mark.parametrize("failing", [False, True])
def test_the_middle_of_an_object_is_told_and_what_was_there_counts(
    blobs: list[Blob], monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    monkeypatch.setattr("murmur.owner.publish.TELL_SECONDS", 0.01)
    monkeypatch.setattr("murmur.owner.publish.FIRST_PAUSE_SECONDS", 0.0)
    half_way, seen = threading.Event(), []

    def tell(done: int, total: int) -> None:
        assert total == 3 * SIZE
        seen.append(done)
        if done % SIZE:
            half_way.set()

    bucket: Any = Slow(half_way, (blobs[1][0].hex(),), failing=failing)
    upload(bucket, blobs, tell)
    assert 2 * SIZE + SIZE // 2 in seen
    assert seen[-1] == 3 * SIZE
    assert failing or seen == sorted(seen)
