"""Large objects on their way up: what is held in memory, and what a lost answer to the completion costs."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.protocol.errors import ObjectMissing, StorageError
from storage import client
from storage.parts import Section, in_file, in_memory
from storage.s3 import PART_BYTES, S3Bucket, open_bucket
from storage.transport import TRAFFIC
from tests.storage.hostile import hostile
from tests.storage.part_server import PartServer, says

SECONDS = 60.0
MIB = 1 << 20
LARGE = os.urandom(1 << 16) * ((2 * PART_BYTES >> 16) + 5)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PartServer]:
    monkeypatch.setattr(client, "_BACKOFF_SECONDS", 0.01)
    return PartServer()


@pytest.fixture
def bucket(server: PartServer) -> Iterator[S3Bucket]:
    with hostile(server) as running:
        yield open_bucket(running.endpoint, "bucket", "access", "secret", local=True)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, len(LARGE)])
@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_what_is_put_is_what_was_given(
    server: PartServer, bucket: S3Bucket, tmp_path: Path, size: int, kind: str
) -> None:
    (tmp_path / "file").write_bytes(LARGE[:size])
    data = LARGE[:size] if kind == "bytes" else tmp_path / "file"
    bucket.put("key", data, timeout_seconds=SECONDS)
    assert server.objects["key"] == LARGE[:size]


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_what_is_sent_and_received_is_counted(server: PartServer, bucket: S3Bucket, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    before = TRAFFIC.moved()
    bucket.put("key", LARGE if kind == "bytes" else tmp_path / "file", timeout_seconds=SECONDS)
    put = TRAFFIC.moved()
    assert 0 < put[0] - before[0] - len(LARGE) < 20_000
    assert bucket.get("key", max_bytes=len(LARGE), timeout_seconds=SECONDS) == LARGE
    got = TRAFFIC.moved()
    assert 0 < got[1] - put[1] - len(LARGE) < 20_000
    assert got[0] - put[0] < 20_000


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_a_put_holds_no_copy_of_what_it_sends(server: PartServer, bucket: S3Bucket, tmp_path: Path, kind: str) -> None:
    server.keeps = False
    (tmp_path / "file").write_bytes(LARGE)
    data = LARGE if kind == "bytes" else tmp_path / "file"
    bucket.head("warm", timeout_seconds=SECONDS)
    tracemalloc.start()
    bucket.put("key", data, timeout_seconds=SECONDS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [ask for ask in server.asked if ask.startswith("part")] != []
    assert peak < 8 * MIB


def test_a_section_is_read_like_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(LARGE[:1000])
    with (tmp_path / "file").open("rb") as file:
        for section in (Section(in_memory(LARGE[:1000]), 300, 500), Section(in_file(file.fileno()), 300, 500)):
            assert len(section) == 500
            for _ in range(2):
                blocks = list(iter(lambda: section.read(64), b""))  # noqa: B023 - read before the next turn
                assert b"".join(blocks) == LARGE[300:800]
                assert max(map(len, blocks)) == 64
                assert section.seek(0) == 0
            assert section.seek(-10, os.SEEK_END) == 490
            assert section.read() == LARGE[790:800]
            assert section.tell() == 500


def test_a_file_that_becomes_shorter_is_not_sent(server: PartServer, bucket: S3Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(LARGE[:1000])
    with (tmp_path / "file").open("rb") as file:
        section = Section(in_file(file.fileno()), 0, 1000)
        os.truncate(tmp_path / "file", 500)
        with pytest.raises(OSError, match="shorter"):
            section.read()


# --- completions -------------------------------------------------------------------------------------------------


def completions(server: PartServer) -> list[str]:
    """What was asked from the first completion on."""
    return server.asked[server.asked.index("complete") :]


def test_a_completion_whose_answer_is_lost_is_looked_for_and_not_asked_again(
    server: PartServer, bucket: S3Bucket
) -> None:
    server.on_completed = lambda number: False
    bucket.put("key", LARGE, timeout_seconds=SECONDS)
    assert server.objects["key"] == LARGE
    assert completions(server) == ["complete", "head"]


def test_a_completion_that_did_not_arrive_is_asked_again(server: PartServer, bucket: S3Bucket) -> None:
    server.on_complete = lambda number: number == 3
    bucket.put("key", LARGE, timeout_seconds=SECONDS)
    assert server.objects["key"] == LARGE
    assert completions(server) == ["complete", "head", "complete", "head", "complete"]


def test_a_completion_that_failed_inside_of_a_200_is_asked_again(server: PartServer, bucket: S3Bucket) -> None:
    """The server has begun to answer before it has done anything, as S3 does."""
    answer = server.complete

    def fails_at_first(key: str) -> bytes | None:
        if server.completions == 0:
            server.completions += 1
            server.asked.append("complete")
            return says("<Error><Code>InternalError</Code><Message>try again</Message></Error>")
        return answer(key)

    server.complete = fails_at_first  # type: ignore[method-assign]
    bucket.put("key", LARGE, timeout_seconds=SECONDS)
    assert server.objects["key"] == LARGE
    assert completions(server) == ["complete", "head", "complete"]


@pytest.mark.parametrize("old", [LARGE[:-1] + b"x", LARGE + b"x"])
def test_what_stood_there_before_is_not_taken_for_what_was_completed(
    server: PartServer, bucket: S3Bucket, old: bytes
) -> None:
    server.objects["key"] = old
    server.on_complete = lambda number: False
    with pytest.raises(StorageError):
        bucket.put("key", LARGE, timeout_seconds=SECONDS)
    assert server.objects["key"] == old
    assert server.asked.count("complete") == 5
    assert server.asked[-1] == "abort"


def test_an_upload_that_the_server_forgot_is_not_asked_for_again(server: PartServer, bucket: S3Bucket) -> None:
    upload = bucket.begin("key", timeout_seconds=SECONDS)
    upload.put(1, b"part", timeout_seconds=SECONDS)
    server.open = False
    with pytest.raises(ObjectMissing):
        upload.complete(timeout_seconds=SECONDS)
    assert completions(server) == ["complete", "head"]


def test_a_put_that_fails_leaves_no_parts_behind(server: PartServer, bucket: S3Bucket) -> None:
    server.part = lambda number, body: says("no", "400 Bad Request")  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        bucket.put("key", LARGE, timeout_seconds=SECONDS)
    assert server.asked[-1] == "abort"
    assert "key" not in server.objects
