"""Bodies that break, and objects that are replaced while they are read: one version, whole, or an error."""

import re
import socket
from pathlib import Path

import pytest

from murmur.protocol.errors import ObjectReplaced, StorageError
from storage import client
from storage.resume import download_to
from storage.s3 import S3Bucket, open_bucket
from tests.storage.hostile import Hostile, Script, hostile, response, says

SECONDS = 15.0


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BACKOFF_SECONDS", 0.001)


def bucket_at(server: Hostile) -> S3Bucket:
    return open_bucket(server.endpoint, "bucket", "access", "secret", local=True)


def get(bucket: S3Bucket, max_bytes: int) -> bytes:
    return bucket.get("key", max_bytes=max_bytes, timeout_seconds=SECONDS)


def get_range(bucket: S3Bucket, first: int, num_bytes: int, etag: str = '"one"') -> bytes:
    return bucket.get_range("key", first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=SECONDS)


def breaking(data: bytes, etags: list[str], piece: int) -> Script:
    """Serves `data` but hangs up after `piece` bytes of every body. The ETag is the next of `etags`, the last for ever;
    a request whose If-Match differs gets 412."""
    served = iter(etags)
    state = {"etag": next(served)}

    def script(connection: socket.socket, head: bytes) -> None:
        asked = re.search(rb"(?i)\r\nif-match: ([^\r]+)", head)
        if asked and asked[1].decode() != state["etag"]:
            connection.sendall(response("412 Precondition Failed", "Content-Length: 0"))
            return
        ranged = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)", head)
        first = int(ranged[1]) if ranged else 0
        common = (f"Content-Length: {len(data) - first}", f"ETag: {state['etag']}")
        if ranged:
            where = f"Content-Range: bytes {first}-{len(data) - 1}/{len(data)}"
            connection.sendall(response("206 Partial Content", *common, where))
        else:
            connection.sendall(response("200 OK", *common))
        connection.sendall(data[first : first + piece])
        state["etag"] = next(served, state["etag"])

    return script


def test_a_broken_body_goes_on_where_it_broke_under_the_same_etag() -> None:
    data = bytes(range(256)) * 4
    with hostile(breaking(data, ['"one"'], 300)) as server:
        assert get(bucket_at(server), 1024) == data
        assert [b"if-match" in head.lower() for head in server.requests] == [False, True, True, True]


def test_an_object_replaced_while_it_is_read_is_read_again_from_its_beginning() -> None:
    data = bytes(range(256)) * 2
    with hostile(breaking(data, ['"one"', '"two"'], 300)) as server:
        assert get(bucket_at(server), 1024) == data
        assert len(server.requests) == 4


def test_an_object_that_is_replaced_every_time_ends_in_an_error() -> None:
    etags = [f'"{number}"' for number in range(100)]
    with hostile(breaking(bytes(512), etags, 300)) as server, pytest.raises(StorageError, match="replaced 3 times"):
        get(bucket_at(server), 1024)


def test_a_server_that_answers_another_range_is_refused() -> None:
    body = says("206 Partial Content", "Content-Range: bytes 0-4/10", "Content-Length: 5", 'ETag: "e"', body=b"01234")
    with hostile(body) as server, pytest.raises(StorageError, match="another range"):
        get_range(bucket_at(server), 5, 5, '"e"')


def replaced(old: bytes, new: bytes) -> Script:
    """Knows no If-Match: serves 300 bytes of `old`, and from then on `new`, under ETags of their own."""
    versions = iter([(old, '"one"', 300)])

    def script(connection: socket.socket, head: bytes) -> None:
        ranged = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)", head)
        data, etag, piece = (new, '"two"', len(new))
        if not head.startswith(b"HEAD"):
            data, etag, piece = next(versions, (new, '"two"', len(new)))
        elif not asked:
            data, etag = old, '"one"'
        asked.append(head)
        first = int(ranged[1]) if ranged else 0
        facts = [f"Content-Length: {len(data) - first}", f"ETag: {etag}"]
        if ranged:
            facts.append(f"Content-Range: bytes {first}-{len(data) - 1}/{len(data)}")
        connection.sendall(response("206 Partial Content" if ranged else "200 OK", *facts))
        if not head.startswith(b"HEAD"):
            connection.sendall(data[first : first + piece])

    asked: list[bytes] = []
    return script


OLD, NEW = b"o" * 1000, b"n" * 1000


def test_a_server_that_serves_another_version_in_spite_of_if_match_mixes_none() -> None:
    with hostile(replaced(OLD, NEW)) as server:
        assert get(bucket_at(server), 1000) == NEW


def test_a_file_is_of_one_version_in_spite_of_such_a_server(tmp_path: Path) -> None:
    with hostile(replaced(OLD, NEW)) as server:
        download_to(bucket_at(server), "key", tmp_path / "file", 1000, timeout_seconds=SECONDS)
    assert (tmp_path / "file").read_bytes() == NEW


@pytest.mark.parametrize("etag", ['"two"', None])
def test_a_range_of_another_version_or_of_nobody_knows_which_is_refused(etag: str | None) -> None:
    facts = ["Content-Length: 5", "Content-Range: bytes 0-4/10", *([f"ETag: {etag}"] if etag else [])]
    with hostile(says("206 Partial Content", *facts, body=b"01234")) as server, pytest.raises(ObjectReplaced):
        get_range(bucket_at(server), 0, 5)


@pytest.mark.parametrize("where", ["bytes */3", None])
def test_a_range_beyond_the_end_is_of_another_version(where: str | None) -> None:
    facts = ["Content-Length: 0", *([f"Content-Range: {where}"] if where else [])]
    with hostile(says("416 Range Not Satisfiable", *facts)) as server:
        with pytest.raises(ObjectReplaced):
            get_range(bucket_at(server), 5, 5)
        assert len(server.requests) == 1


def test_a_range_of_an_object_whose_length_the_server_keeps_to_itself_is_a_range() -> None:
    facts = ("Content-Length: 5", "Content-Range: bytes 0-4/*", 'ETag: "one"')
    with hostile(says("206 Partial Content", *facts, body=b"01234")) as server:
        assert get_range(bucket_at(server), 0, 5) == b"01234"


def test_a_body_may_break_however_often_as_long_as_it_brings_something() -> None:
    data = bytes(range(256)) * 4
    with hostile(breaking(data, ['"one"'], 40)) as server:
        assert get(bucket_at(server), 1024) == data
        assert len(server.requests) == 26


def test_a_body_that_brings_nothing_is_given_up() -> None:
    served = iter([300, 300])

    def script(connection: socket.socket, head: bytes) -> None:
        breaking(bytes(1024), ['"one"'], next(served, 0))(connection, head)

    with hostile(script) as server:
        with pytest.raises(StorageError, match="broke 10 times at byte 600 of 1024"):
            get(bucket_at(server), 1024)
        assert len(server.requests) == 11


def test_a_stream_is_stopped_by_whoever_takes_it() -> None:
    class Enough(StorageError):
        pass

    def enough(block: bytes) -> None:
        raise Enough

    with hostile(breaking(bytes(1024), ['"one"'], 1024)) as server:
        with pytest.raises(Enough):
            bucket_at(server).stream("key", enough, first=0, num_bytes=1024, etag='"one"', timeout_seconds=SECONDS)
        assert len(server.requests) == 1


def test_a_stopped_download_reads_no_further_and_is_gone_on_with(tmp_path: Path) -> None:
    data = bytes(range(256)) * (1 << 14)
    asked: list[int] = []

    def after_two() -> bool:
        asked.append(0)
        return len(asked) > 3

    with hostile(breaking(data, ['"one"'], len(data))) as server:
        with pytest.raises(StorageError, match="no longer wanted"):
            download_to(
                bucket_at(server), "key", tmp_path / "file", len(data), timeout_seconds=SECONDS, stopped=after_two
            )
        came = (tmp_path / "file.part").stat().st_size
        assert 0 < came < len(data)
        download_to(bucket_at(server), "key", tmp_path / "file", len(data), timeout_seconds=SECONDS)
        assert f"range: bytes={came}-" in server.requests[-1].decode().lower()
    assert (tmp_path / "file").read_bytes() == data
