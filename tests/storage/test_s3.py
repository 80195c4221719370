"""S3Bucket against servers that lie, stall or break: always a StorageError in time, in little memory, without a word of
the server's or a secret in it."""

import contextlib
import gzip
import logging
import os
import socket
import ssl
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigError, ObjectTooLarge, StorageError
from protocol.ports import Multipart
from protocol.types import Pointer
from storage import client, transport
from storage.s3 import S3Bucket, open_bucket, open_pointer
from tests.storage.hostile import Hostile, Script, hostile, response, says

SECRET = "5ecret" * 6
PATIENCE = 60.0
"""Time-out in seconds of what something else ends: a busy machine may need it."""
SHORT = 0.3
"""Time-out in seconds of what nothing else ends."""
SLACK = 25.0
"""Seconds by which a busy machine may overshoot a deadline; unbounded servers would take 30 or for ever."""
WORD = "peer-chosen-word"
MIB = 1 << 20
FUZZ_CASES = int(os.environ.get("MURMUR_FUZZ_CASES", "2000")) // 50


def bucket_at(server: Hostile) -> S3Bucket:
    return open_bucket(server.endpoint, "bucket", "access", SECRET, local=True)


def get(bucket: S3Bucket, *, max_bytes: int = 1000, seconds: float = PATIENCE, exact: bool = False) -> bytes:
    return bucket.get("key", max_bytes=max_bytes, timeout_seconds=seconds, exact=exact)


# --- servers that lie, stall or break ----------------------------------------------------------------------------


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


def assert_says_nothing(error: BaseException) -> None:
    shown = repr(error) + str(error) + "".join(traceback.format_exception(error))
    assert WORD not in shown
    assert SECRET not in shown


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


# --- listings ----------------------------------------------------------------------------------------------------


def listing(*keys: str, more: bool = False) -> bytes:
    contents = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    token = "<NextContinuationToken>t</NextContinuationToken>" if more else ""
    truncated = str(more).lower()
    return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{contents}{token}</ListBucketResult>".encode()


def test_a_listing_holds_only_keys_of_the_prefix_however_many_the_server_sends() -> None:
    body = listing("../../etc/passwd", "p/b", "p/a", "q", "p/c")
    with hostile(says("200 OK", f"Content-Length: {len(body)}", body=body)) as server:
        assert bucket_at(server).list("p/", max_keys=2, timeout_seconds=PATIENCE) == ("p/a", "p/b")


def test_a_listing_that_never_ends_ends() -> None:
    body = listing("p/a", more=True)
    with hostile(says("200 OK", f"Content-Length: {len(body)}", body=body)) as server:
        assert bucket_at(server).list("p/", max_keys=100, timeout_seconds=PATIENCE) == ("p/a",)
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"<ListBucketResult><Contents><Key>p/a</Key><Size>many</Size></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>p/a</Key><LastModified>never</LastModified></Contents></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>p/a</Key></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        b"<ListBucketResult>" + b"<a>" * 100_000,
        b'<!DOCTYPE a [<!ENTITY x "y">]><ListBucketResult>&x;</ListBucketResult>',
        b"\xff\xfe\x00",
    ],
)
def test_a_malformed_listing_is_a_storage_error(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BACKOFF_SECONDS", 0.001)
    answer = says("200 OK", f"Content-Length: {len(body)}", body=body)
    with hostile(answer) as server, pytest.raises(StorageError) as caught:
        bucket_at(server).list("p/", max_keys=10, timeout_seconds=PATIENCE)
    assert_says_nothing(caught.value)


TAGS = ("ListBucketResult", "Contents", "Key", "Size", "LastModified", "IsTruncated", "Owner", "EncodingType", "Error")
TEXTS = ("", "true", "p/a", "-1", "99999999999999999999", "2020-13-45T99:99:99Z", "url", "%zz", "&#0;", "<", "x" * 300)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """XML that looks like a listing and is wrong somewhere, or is no XML."""
    tree = st.recursive(
        st.sampled_from(TEXTS),
        lambda inner: st.builds(
            lambda tag, inside: f"<{tag}>{''.join(inside)}</{tag}>", st.sampled_from(TAGS), st.lists(inner, max_size=4)
        ),
        max_leaves=12,
    )
    return f"<ListBucketResult>{''.join(draw(st.lists(tree, max_size=4)))}</ListBucketResult>".encode()


def test_whatever_a_server_answers_is_a_result_or_a_storage_error() -> None:
    answers: list[bytes] = []

    def script(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answers[-1])

    with hostile(script) as server:
        bucket = bucket_at(server)

        @settings(max_examples=FUZZ_CASES, deadline=None)
        @given(
            st.one_of(
                documents().map(lambda body: response("200 OK", f"Content-Length: {len(body)}", body=body)),
                st.tuples(
                    st.sampled_from(["200 OK", "206 P", "204 N", "304 N", "404 N", "100 C", "500 E"]),
                    st.lists(
                        st.tuples(
                            st.sampled_from(["Content-Length", "ETag", "Last-Modified", "Content-Range", "X-Amz-Id"]),
                            st.one_of(st.sampled_from(TEXTS), st.text(max_size=20)),
                        ).map(lambda pair: f"{pair[0]}: {pair[1]}"),
                        max_size=4,
                    ),
                ).map(lambda answer: response(answer[0], *answer[1], body=b"hello")),
                st.binary(max_size=200),
            )
        )
        def answered(answer: bytes) -> None:
            answers.append(answer)
            for call in (
                lambda: bucket.list("p/", max_keys=10, timeout_seconds=0.1),
                lambda: bucket.head("key", timeout_seconds=0.1),
                lambda: bucket.get("key", max_bytes=5, timeout_seconds=0.1),
            ):
                with contextlib.suppress(StorageError):
                    call()

        answered()


# --- pointers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.5.5", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[ff02::1]"),
        *("[fec0::1]", "[fec0:0:0:ffff::1]", "[::10.0.0.1]", "[64:ff9b:1::a00:1]", "[4000::1]"),
        *("[::ffff:10.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "localhost", "2130706433", "0x7f.1"),
    ],
)
def test_a_pointer_to_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not public"):
        open_pointer(Pointer(f"https://{address}", "bucket", "access", SECRET), local=False)


@given(st.ip_addresses())
def test_no_special_address_counts_as_public(address: IPv4Address | IPv6Address) -> None:
    special = ("is_private", "is_loopback", "is_link_local", "is_multicast", "is_reserved", "is_unspecified")
    if transport.is_public(str(address)) and address not in ip_network("64:ff9b::/96"):
        assert not any(getattr(address, name, False) for name in (*special, "is_site_local"))


@given(st.integers(0, 2**118 - 1))
def test_a_site_local_address_is_private(within: int) -> None:
    assert not transport.is_public(str(IPv6Address((0xFEC0 << 112) | within)))


@given(st.ip_addresses(v=4))
def test_a_nat64_address_is_as_public_as_what_it_wraps(address: IPv4Address) -> None:
    wrapped = IPv6Address((0x64FF9B << 96) | int(address))
    assert transport.is_public(str(wrapped)) == transport.is_public(str(address))


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://store.example",
        "ftp://store.example",
        "https://",
        "https://user:word@store.example",
        "https://store.example/path",
        "https://store.example?query",
        "https://store.example#part",
        "https://store.example:port",
        "https://[store",
        "file:///etc/passwd",
    ],
)
def test_a_pointer_that_is_not_plain_https_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(Pointer(endpoint, "bucket", "access", SECRET), local=False)


@pytest.mark.parametrize(
    "name", ["", "ab", "a/b", "../x", "arn:aws:s3:us-east-1:1:accesspoint/a", "x--use1-az4--x-s3", "UPPER", "a" * 64]
)
def test_a_bucket_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(Pointer("http://127.0.0.1:9", name, "access", SECRET), local=True)


def test_a_name_that_turns_private_after_it_was_checked_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile(says("200 OK", "Content-Length: 0")) as server:
        port = int(server.endpoint.rpartition(":")[2])
        public = [(int(socket.AF_INET), "8.8.8.8", ("8.8.8.8", port))]
        private = [(int(socket.AF_INET), "127.0.0.1", ("127.0.0.1", port))]
        answers = iter([public, private])
        monkeypatch.setattr(transport, "resolve", lambda host, port: next(answers))
        bucket = open_pointer(Pointer(f"https://rebind.example:{port}", "bucket", "access", SECRET), local=False)
        with pytest.raises(StorageError, match="not public"):
            get(bucket)
        assert server.requests == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [(int(socket.AF_INET), ip, (ip, 443)) for ip in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(transport, "resolve", lambda host, port: mixed)
    with pytest.raises(ConfigError, match="not public"):
        open_pointer(Pointer("https://mixed.example", "bucket", "access", SECRET), local=False)


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server context for `localhost`, whose issuer this process trusts while the test runs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


def test_an_object_comes_over_tls(tls: ssl.SSLContext) -> None:
    with hostile(says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello"), tls=tls) as server:
        assert get(bucket_at(server)) == b"hello"


@pytest.mark.parametrize("script", [byte_a_second, slow_header, silent, endless_without_length])
def test_the_deadline_holds_over_tls(tls: ssl.SSLContext, script: Script) -> None:
    with hostile(script, tls=tls) as server:
        began = time.monotonic()
        with pytest.raises(StorageError):
            get(bucket_at(server), seconds=SHORT)
        assert time.monotonic() - began < SHORT + SLACK


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        port = listener.getsockname()[1]
        bucket = open_bucket(f"https://localhost:{port}", "bucket", "access", SECRET, local=True)
        began = time.monotonic()
        with pytest.raises(StorageError):
            get(bucket, seconds=SHORT)
        assert time.monotonic() - began < SHORT + SLACK


def test_a_certificate_of_an_unknown_issuer_is_refused(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    answer = says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello")
    with hostile(answer, tls=tls) as server, pytest.raises(StorageError):
        get(bucket_at(server), seconds=SHORT)


def test_a_certificate_for_another_host_is_refused(tls: ssl.SSLContext) -> None:
    answer = says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello")
    with hostile(answer, tls=tls) as server:
        elsewhere = bucket_at(Hostile(server.endpoint.replace("localhost", "127.0.0.1")))
        with pytest.raises(StorageError):
            get(elsewhere, seconds=SHORT)


# --- secrets and requests ----------------------------------------------------------------------------------------


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
