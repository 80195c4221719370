"""Listings, and answers of any bytes: a result or a StorageError."""

import contextlib
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.protocol.errors import StorageError
from storage import client
from tests import random_cases
from tests.storage.hostile import hostile, response, says
from tests.storage.s3_cases import PATIENCE, assert_says_nothing, bucket_at

FUZZ_CASES = max(random_cases.share(40), random_cases.CASES // 50)


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
