"""What a refusal is taken for: by status, by the few codes that are known, and by the server's clock."""

import re
import socket
import threading
import time
from email.utils import formatdate

import pytest

from murmur.protocol.errors import AccessDenied, BucketMissing, ObjectMissing, StorageError
from storage.s3 import S3Bucket, open_bucket
from tests.storage.hostile import Hostile, Script, hostile, response, says
from tests.storage.test_s3 import ERROR_XML, assert_says_nothing

SECONDS = 5.0


def bucket_at(server: Hostile) -> S3Bucket:
    return open_bucket(server.endpoint, "bucket", "access", "5ecret" * 6, local=True)


def get(bucket: S3Bucket) -> bytes:
    return bucket.get("key", max_bytes=1000, timeout_seconds=SECONDS)


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


@pytest.mark.parametrize(
    ("status", "kind"), [("403 No", AccessDenied), ("401 No", AccessDenied), ("404 No", ObjectMissing)]
)
def test_a_refusal_is_not_tried_again(status: str, kind: type[StorageError]) -> None:
    with hostile(says(status, f"Content-Length: {len(ERROR_XML)}", body=ERROR_XML)) as server:
        with pytest.raises(kind) as caught:
            get(bucket_at(server))
        assert len(server.requests) == 1
    assert_says_nothing(caught.value)


def test_a_wrong_clock_is_named_because_it_is_ours_to_fix() -> None:
    body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"
    answer = says("403 Forbidden", f"Content-Length: {len(body)}", body=body)
    with hostile(answer) as server, pytest.raises(AccessDenied, match="clock"):
        get(bucket_at(server))


@pytest.mark.parametrize("minutes", [20, -20])
@pytest.mark.parametrize("verb", ["head", "get"])
def test_a_wrong_clock_is_told_by_the_servers_own(verb: str, minutes: int) -> None:
    """The answer to HEAD has no body that could name it."""
    date = f"Date: {formatdate(time.time() + 60 * minutes, usegmt=True)}"
    with hostile(says("403 Forbidden", "Content-Length: 0", date)) as server:
        bucket = bucket_at(server)
        with pytest.raises(AccessDenied, match="this machine's clock is 20 minutes off the server's"):
            bucket.head("key", timeout_seconds=SECONDS) if verb == "head" else get(bucket)


@pytest.mark.parametrize("date", ["a minute ago", "never", "Mon, 01 Jan 99999 00:00:00", None])
def test_a_clock_that_is_right_or_unknown_is_not_blamed(date: str | None) -> None:
    said = formatdate(time.time() - 60, usegmt=True) if date == "a minute ago" else date
    answer = says("403 Forbidden", "Content-Length: 0", *([f"Date: {said}"] if said else []))
    match = r"credential is unknown or may not do this \(403\)"
    with hostile(answer) as server, pytest.raises(AccessDenied, match=match):
        bucket_at(server).head("key", timeout_seconds=SECONDS)


def test_a_server_that_says_its_date_twice_is_read_all_the_same() -> None:
    answer = says("200 OK", "Content-Length: 5", "Date: never", "Date: ever", 'ETag: "e"', body=b"hello")
    with hostile(answer) as server:
        assert get(bucket_at(server)) == b"hello"


@pytest.mark.parametrize(("code", "kind"), [("NoSuchBucket", BucketMissing), ("NoSuchKey", ObjectMissing)])
def test_a_missing_bucket_is_told_from_a_missing_object(code: str, kind: type[StorageError]) -> None:
    body = error(code)
    with hostile(says("404 Not Found", f"Content-Length: {len(body)}", body=body)) as server:
        with pytest.raises(StorageError) as caught:
            get(bucket_at(server))
        assert len(server.requests) == 1
    assert type(caught.value) is kind
    assert str(caught.value).endswith("there is no such bucket") == (kind is BucketMissing)


def empty(bucket_status: str) -> Script:
    """Has no object, and answers so about the bucket."""

    def script(connection: socket.socket, head: bytes) -> None:
        of_bucket = re.match(rb"HEAD /bucket/? ", head)
        connection.sendall(response(bucket_status if of_bucket else "404 Not Found", "Content-Length: 0"))

    return script


def test_head_asks_for_the_bucket_where_nothing_else_tells() -> None:
    with hostile(empty("404 Not Found")) as server, pytest.raises(BucketMissing, match="no such bucket"):
        bucket_at(server).head("key", timeout_seconds=SECONDS)


@pytest.mark.parametrize(("status", "requests"), [("200 OK", 3), ("403 Forbidden", 4)])
def test_a_bucket_that_is_there_or_may_not_be_asked_for_lacks_the_object_and_is_seen_once(
    status: str, requests: int
) -> None:
    with hostile(empty(status)) as server:
        bucket = bucket_at(server)
        for _ in range(2):
            assert bucket.head("key", timeout_seconds=SECONDS) is None
        assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        ("507 Insufficient Storage", "", StorageError, "full, or over its quota"),
        ("507 Insufficient Storage", "XMinioStorageFull", StorageError, "full, or over its quota"),
        ("403 Forbidden", "QuotaExceeded", StorageError, "full, or over its quota"),
        ("429 Too Many Requests", "", StorageError, "fewer requests"),
        ("503 Slow Down", "SlowDown", StorageError, "fewer requests"),
        ("503 Service Unavailable", "", StorageError, "busy"),
        ("400 Bad Request", "ExpiredToken", AccessDenied, "the token has expired"),
        ("403 Forbidden", "AllAccessDisabled", AccessDenied, "suspended or unpaid"),
        ("402 Payment Required", "", AccessDenied, "suspended or unpaid"),
    ],
)
def test_what_stores_mean_by_their_codes_is_said_in_our_words(
    status: str, code: str, kind: type[StorageError], words: str
) -> None:
    body = error(code) if code else b""
    answer = says(status, f"Content-Length: {len(body)}", body=body)
    with hostile(answer) as server, pytest.raises(StorageError, match=words) as caught:
        bucket_at(server).put("key", b"data", timeout_seconds=2.0)
    assert type(caught.value) is kind
    assert_says_nothing(caught.value)


@pytest.mark.parametrize("first", ["503 Slow Down", "a broken connection"])
def test_a_retry_that_runs_out_of_time_names_what_it_was_to_overcome(first: str) -> None:
    done = threading.Event()

    def script(connection: socket.socket, head: bytes) -> None:
        if len(server.requests) > 1:
            done.wait(SECONDS)
        elif first.startswith("503"):
            connection.sendall(response(first, "Content-Length: 0"))

    words = "busy, throttles us" if first.startswith("503") else "the connection broke"
    with hostile(script) as server:
        with pytest.raises(StorageError, match=words) as caught:
            bucket_at(server).put("key", b"data", timeout_seconds=1.0)
        done.set()
        assert len(server.requests) == 2
    assert_says_nothing(caught.value)


def test_a_server_that_hangs_after_it_has_served_is_not_called_busy() -> None:
    """The second exchange of a call succeeds after a retry; the third is silent: the earlier failure is over."""
    done = threading.Event()

    def script(connection: socket.socket, head: bytes) -> None:
        if len(server.requests) == 1:
            connection.sendall(response("503 Slow Down", "Content-Length: 0"))
        elif len(server.requests) == 2:
            headers = ["Content-Length: 100", 'ETag: "e"']
            connection.sendall(response("200 OK", *headers, body=b"x" * 50))
        else:
            done.wait(SECONDS)

    with hostile(script) as server:
        with pytest.raises(StorageError, match="out of time"):
            bucket_at(server).get("key", max_bytes=1000, timeout_seconds=1.5)
        done.set()
