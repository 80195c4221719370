"""S3Bucket against servers that lie, stall or break: always a StorageError in time, in little memory, without a word of
the server's or a secret in it."""

import contextlib
import gzip
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable

import pytest

from murmur.protocol.errors import ObjectTooLarge, StorageError
from murmur.protocol.ports import Multipart
from storage.s3 import S3Bucket
from tests.storage.hostile import Script, hostile, response, says
from tests.storage.s3_cases import MIB, PATIENCE, SECRET, SHORT, SLACK, WORD, assert_says_nothing, bucket_at, get


def endless(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("200 OK", "Content-Length: 900", 'ETag: "e"'))
    while True:
        connection.sendall(b"x" * 65536)


def endless_without_length(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("200 OK", 'ETag: "e"'))
    while True:
        connection.sendall(b"x" * 65536)


def endless_chunks(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("200 OK", "Transfer-Encoding: chunked", 'ETag: "e"'))
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def endless_error(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("403 Forbidden"))
    while True:
        connection.sendall(b"x" * 65536)


def endless_header(connection: socket.socket, head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        connection.sendall(b"x" * 65536)


def endless_continue(connection: socket.socket, head: bytes) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def many_headers(connection: socket.socket, head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-Many: x\r\n" * 1000)


def byte_a_second(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("200 OK", "Content-Length: 900", 'ETag: "e"'))
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


def slow_header(connection: socket.socket, head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


def slow_error(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("500 Oops", "Content-Length: 900"))
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


def silent(connection: socket.socket, head: bytes) -> None:
    connection.recv(1)


def half_a_body(connection: socket.socket, head: bytes) -> None:
    connection.sendall(response("200 OK", "Content-Length: 900", 'ETag: "e"', body=b"x" * 450))


def not_http(connection: socket.socket, head: bytes) -> None:
    connection.sendall(WORD.encode() + b"\r\n\r\n")


ERROR_XML = f"<Error><Code>{WORD}</Code><Message>{WORD}</Message></Error>".encode()
BOMB = b'<!DOCTYPE b [<!ENTITY a "%s">]><Error><Code>&a;</Code></Error>' % (b"x" * 1000)

REFUSED: dict[str, Script] = {
    "nothing but an endless body without a length": endless_without_length,
    "endless chunks": endless_chunks,
    "an endless error": endless_error,
    "an endless header": endless_header,
    "endless 100 Continue": endless_continue,
    "endless headers": many_headers,
    "a byte a second": byte_a_second,
    "a header a byte a second": slow_header,
    "an error a byte a second": slow_error,
    "silence": silent,
    "half a body, always": half_a_body,
    "no HTTP": not_http,
    "an empty answer": says("200 OK"),
    "no length": says("200 OK", 'ETag: "e"', body=b"hello"),
    "a length that is no number": says("200 OK", f"Content-Length: {WORD}", 'ETag: "e"', body=b"hello"),
    "a negative length": says("200 OK", "Content-Length: -5", 'ETag: "e"', body=b"hello"),
    "two lengths": says("200 OK", "Content-Length: 5", "Content-Length: 6", 'ETag: "e"', body=b"hello!"),
    "a giant's length": says("200 OK", f"Content-Length: {1 << 40}", 'ETag: "e"', body=b"x" * 1024),
    "a date that is none": says("200 OK", "Content-Length: 5", f"Last-Modified: {WORD}", body=b"hello"),
    "a date beyond time": says("200 OK", "Content-Length: 5", "Last-Modified: Mon, 01 Jan 99999 00:00:00 GMT"),
    "a redirect to a private address": says("307 Temporary Redirect", "Location: http://169.254.169.254/latest"),
    "a redirect to another region": says("301 Moved", f"x-amz-bucket-region: {WORD}", body=ERROR_XML),
    "a region that is wrong": says("400 Bad Request", f"x-amz-bucket-region: {WORD}", body=ERROR_XML),
    "an error of its own": says(f"418 {WORD}", "Content-Length: 200", body=ERROR_XML),
    "malformed XML": says("400 Bad Request", "Content-Length: 9", body=b"<Error><<"),
    "an entity bomb": says("400 Bad Request", f"Content-Length: {len(BOMB)}", body=BOMB),
    "5xx for ever": says("503 Slow Down", "Content-Length: 0"),
    "an answer that is not asked for": says("206 Partial Content", "Content-Range: bytes 0-4/5", 'ETag: "e"'),
    "no permission": says("403 Forbidden", f"Content-Length: {len(ERROR_XML)}", body=ERROR_XML),
    "a status beyond HTTP": says("999 Huh", "Content-Length: 0"),
}


@pytest.mark.parametrize("script", REFUSED.values(), ids=REFUSED.keys())
def test_a_misbehaving_server_gives_a_storage_error_in_time_and_little_memory(script: Script) -> None:
    with hostile(script) as server:
        bucket = bucket_at(server)
        tracemalloc.start()
        began = time.monotonic()
        with pytest.raises(StorageError) as caught:
            get(bucket, seconds=2 * SHORT)
        seconds, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seconds < 2 * SHORT + SLACK
    assert peak < 12 * MIB
    assert_says_nothing(caught.value)


def with_head(headers: int, length: int, announced: int = 0) -> Script:
    """Answers with `headers` of `length` bytes each, after `announced` answers of 1 KiB that only announce it."""
    many = [f"X-Many-{number}: {'x' * length}" for number in range(headers)]
    before = response("100 Continue", f"X-Before: {'x' * 1000}") * announced
    whole = before + response("200 OK", "Content-Length: 5", 'ETag: "e"', *many, body=b"hello")
    return lambda connection, head: connection.sendall(whole)


@pytest.mark.parametrize("script", [with_head(90, 60_000), with_head(1, 10, announced=5000)])
def test_an_answers_head_is_bounded_as_a_whole(script: Script) -> None:
    with hostile(with_head(20, 2000, announced=1)) as server:
        assert get(bucket_at(server)) == b"hello"
    with hostile(script) as server:
        bucket = bucket_at(server)
        tracemalloc.start()
        with pytest.raises(StorageError):
            get(bucket, seconds=2.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2 * MIB


@pytest.mark.parametrize("script", [silent, endless_header, byte_a_second, not_http, endless_error])
@pytest.mark.parametrize("verb", ["put", "complete", "abort"])
def test_every_call_about_parts_is_bounded(script: Script, verb: str) -> None:
    calls: dict[str, Callable[[Multipart], object]] = {
        "put": lambda parts: parts.put(1, b"x" * 100_000, timeout_seconds=SHORT),
        "complete": lambda parts: parts.complete(timeout_seconds=SHORT),
        "abort": lambda parts: parts.abort(timeout_seconds=SHORT),
    }

    begun = threading.Event()

    def begins(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"HEAD") and not begun.is_set():
            return connection.sendall(response("404 Not Found", "Content-Length: 0"))
        begun.set()
        if not head.startswith(b"POST /bucket/key?uploads"):
            return script(connection, head)
        body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        connection.sendall(response("200 OK", f"Content-Length: {len(body)}", body=body))

    with hostile(begins) as server:
        parts = bucket_at(server).begin("key", timeout_seconds=PATIENCE)
        began = time.monotonic()
        with pytest.raises(StorageError) as caught:
            calls[verb](parts)
        assert time.monotonic() - began < SHORT + SLACK
    assert_says_nothing(caught.value)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("begin", b""),
        ("begin", b"<InitiateMultipartUploadResult></InitiateMultipartUploadResult>"),
        ("abort_unfinished", b"<ListMultipartUploadsResult><Upload></Upload></ListMultipartUploadsResult>"),
    ],
)
def test_an_answer_about_uploads_that_lacks_what_it_has_to_say_is_a_storage_error(verb: str, body: bytes) -> None:
    with hostile(says("200 OK", f"Content-Length: {len(body)}", body=body)) as server, pytest.raises(StorageError):
        getattr(bucket_at(server), verb)("key", timeout_seconds=PATIENCE)


def test_uploads_that_are_listed_for_ever_are_aborted_for_a_while() -> None:
    body = (
        b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
        b"<Upload><Key>p/1</Key><UploadId>u</UploadId></Upload>"
        b"<Upload><Key>other</Key><UploadId>u</UploadId></Upload></ListMultipartUploadsResult>"
    )

    def script(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"DELETE"):
            return connection.sendall(response("204 No Content"))
        connection.sendall(response("200 OK", f"Content-Length: {len(body)}", body=body))

    with hostile(script) as server:
        assert bucket_at(server).abort_unfinished("p/", timeout_seconds=PATIENCE) == 10
        assert not [head for head in server.requests if head.startswith(b"DELETE /bucket/other")]


@pytest.mark.parametrize("script", [silent, slow_header, endless_header, many_headers, not_http, endless_error])
@pytest.mark.parametrize("verb", ["put", "head", "list", "delete", "get_range", "begin", "abort_unfinished"])
def test_every_verb_is_bounded(script: Script, verb: str) -> None:
    calls: dict[str, Callable[[S3Bucket], object]] = {
        "put": lambda bucket: bucket.put("key", b"x" * 100_000, timeout_seconds=SHORT),
        "head": lambda bucket: bucket.head("key", timeout_seconds=SHORT),
        "list": lambda bucket: bucket.list("p", max_keys=10, timeout_seconds=SHORT),
        "delete": lambda bucket: bucket.delete("key", timeout_seconds=SHORT),
        "get_range": lambda bucket: bucket.get_range("key", first=0, num_bytes=5, etag='"e"', timeout_seconds=SHORT),
        "begin": lambda bucket: bucket.begin("key", timeout_seconds=SHORT),
        "abort_unfinished": lambda bucket: bucket.abort_unfinished("p", timeout_seconds=SHORT),
    }
    with hostile(script) as server:
        bucket = bucket_at(server)
        began = time.monotonic()
        with pytest.raises(StorageError) as caught:
            calls[verb](bucket)
        assert time.monotonic() - began < SHORT + SLACK
    assert_says_nothing(caught.value)


def test_a_server_that_does_not_take_the_bytes_cannot_hold_an_upload() -> None:
    def deaf(connection: socket.socket, head: bytes) -> None:
        time.sleep(2 * PATIENCE)

    with hostile(deaf) as server:
        began = time.monotonic()
        with pytest.raises(StorageError):
            bucket_at(server).put("key", bytes(40 * MIB), timeout_seconds=SHORT)
        assert time.monotonic() - began < SHORT + SLACK


def test_more_bytes_than_announced_are_not_read() -> None:
    with hostile(endless) as server:
        assert get(bucket_at(server)) == b"x" * 900


def test_an_encoded_body_is_neither_inflated_nor_taken_for_the_object() -> None:
    bomb = gzip.compress(bytes(50 * MIB))
    headers = (f"Content-Length: {len(bomb)}", "Content-Encoding: gzip", 'ETag: "e"')
    with hostile(says("200 OK", *headers, body=bomb)) as server, pytest.raises(StorageError, match="compressed"):
        get(bucket_at(server), max_bytes=len(bomb), exact=True)


@pytest.mark.parametrize("exact", [False, True])
def test_an_object_that_is_too_large_is_refused_before_its_body_comes(exact: bool) -> None:
    def announces(connection: socket.socket, head: bytes) -> None:
        connection.sendall(response("200 OK", f"Content-Length: {1 << 40}", 'ETag: "e"'))
        time.sleep(2 * PATIENCE)

    with hostile(announces) as server:
        began = time.monotonic()
        with pytest.raises(ObjectTooLarge) as caught:
            get(bucket_at(server), exact=exact)
        assert time.monotonic() - began < SLACK
    assert caught.value.size_bytes == 1 << 40


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_server_error_is_tried_again_inside_the_deadline() -> None:
    answers = [response("503 Slow Down", "Content-Length: 0")] * 2
    answers.append(response("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello"))
    remaining = iter(answers)
    with hostile(lambda connection, head: connection.sendall(next(remaining))) as server:
        assert get(bucket_at(server)) == b"hello"
        assert len(server.requests) == 3


def test_no_secret_appears_in_repr_errors_or_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for script in (silent, not_http, says("403 No"), says("500 No"), says("200 OK", "Content-Length: 5")):
            with hostile(script) as server:
                bucket = bucket_at(server)
                assert SECRET not in repr(bucket) + str(bucket)
                with pytest.raises(StorageError) as caught:
                    get(bucket, seconds=SHORT)
                assert_says_nothing(caught.value)
    assert caplog.records, "nothing was logged, so nothing was tested"
    assert SECRET not in caplog.text


def test_no_word_of_the_server_appears_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for script in (*REFUSED.values(), says("200 OK", "Content-Length: 5", f"{WORD}\x01\x00", WORD, body=b"hello")):
            with hostile(script) as server, contextlib.suppress(StorageError):
                get(bucket_at(server), seconds=0.1)
    assert WORD not in caplog.text


def test_an_upload_asks_for_nothing_that_r2_refuses() -> None:
    bodies: list[bytes] = []

    def script(connection: socket.socket, head: bytes) -> None:
        bodies.append(head)
        connection.sendall(response("200 OK", "Content-Length: 0", 'ETag: "e"'))

    with hostile(script) as server:
        bucket_at(server).put("key", b"hello", timeout_seconds=PATIENCE)
    sent = bodies[0].lower()
    assert b"put /bucket/key http/1.1" in sent
    assert b"expect:" not in sent
    assert b"x-amz-checksum" not in sent
    assert b"x-amz-trailer" not in sent
    assert b"/auto/s3/aws4_request" in sent
