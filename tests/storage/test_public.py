"""Public buckets: read without a credential at https://HOST/KEY, over the same guarded transport as all others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, ConfigError, ObjectMissing, ObjectTooLarge, StorageError
from murmur.protocol.types import Digest, PeerId, PublicPointer
from storage import client
from storage.published import Why, try_published
from storage.resume import download_to
from storage.s3 import PART_BYTES, ObjectReplaced, RangedBucket, S3Bucket, open_bucket, open_pointer, open_published
from tests.fakes.bucket import FakeStore
from tests.storage.hostile import hostile, says
from tests.storage.permissive import permissive
from tests.storage.public import PAGE, Public, public

SECONDS = 20.0
RUN, PEER = Digest(b"r" * 32), PeerId(b"p" * 32)


@pytest.fixture
def owner() -> RangedBucket:
    return FakeStore().bucket("own")


@pytest.fixture
def server(owner: RangedBucket) -> Iterator[Public]:
    with public(owner) as served:
        yield served


def reader(endpoint: str) -> S3Bucket:
    return open_pointer(PublicPointer(endpoint), local=True)


def test_an_object_is_read_at_its_key_below_the_address_and_nothing_is_signed(
    owner: RangedBucket, server: Public
) -> None:
    key = keys.mirror(RUN, 7, PEER)
    owner.put(key, b"payload", timeout_seconds=SECONDS)
    assert reader(server.endpoint).get(key, max_bytes=7, timeout_seconds=SECONDS, exact=True) == b"payload"
    ((method, path, headers),) = server.requests
    assert (method, path) == ("GET", f"/{key}")
    assert not {name for name in headers if name == "authorization" or name.startswith("x-amz")}


def test_a_key_that_begins_like_our_stand_in_for_the_bucket_is_left_whole(owner: RangedBucket, server: Public) -> None:
    owner.put("public/public", b"x", timeout_seconds=SECONDS)
    assert reader(server.endpoint).get("public/public", max_bytes=1, timeout_seconds=SECONDS) == b"x"
    assert server.requests[0][1] == "/public/public"


def test_nobodys_credential_is_looked_for(monkeypatch: pytest.MonkeyPatch, server: Public, owner: RangedBucket) -> None:
    """Where there is something to sign and no key is given, boto3 takes one of the environment, files, its cloud."""
    from botocore.session import Session

    def looks(*_: object, **__: object) -> None:
        raise AssertionError("looked for a credential")

    monkeypatch.setattr(client, "_shared_client", None)

    monkeypatch.setattr(Session, "get_credentials", looks)
    owner.put("key", b"x", timeout_seconds=SECONDS)
    assert reader(server.endpoint).get("key", max_bytes=1, timeout_seconds=SECONDS) == b"x"


def test_what_is_missing_is_missing_whatever_page_people_are_shown(server: Public) -> None:
    bucket = reader(server.endpoint)
    with pytest.raises(ObjectMissing):
        bucket.get("nowhere", max_bytes=1, timeout_seconds=SECONDS)
    assert bucket.head("nowhere", timeout_seconds=SECONDS) is None
    assert len(server.requests) == 2


def test_size_range_and_version_are_checked_as_anywhere(owner: RangedBucket, server: Public) -> None:
    bucket = reader(server.endpoint)
    owner.put("ten", b"0123456789", timeout_seconds=SECONDS)
    with pytest.raises(ObjectTooLarge):
        bucket.get("ten", max_bytes=9, timeout_seconds=SECONDS)
    facts = bucket.head("ten", timeout_seconds=SECONDS)
    assert facts is not None
    assert facts.size_bytes == 10
    assert bucket.get_range("ten", first=3, num_bytes=4, etag=facts.etag, timeout_seconds=SECONDS) == b"3456"
    owner.put("ten", b"abcdefghij", timeout_seconds=SECONDS)
    with pytest.raises(ObjectReplaced):
        bucket.get_range("ten", first=3, num_bytes=4, etag=facts.etag, timeout_seconds=SECONDS)


def test_an_object_of_several_parts_is_downloaded(owner: RangedBucket, server: Public, tmp_path: Path) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256 + 17)
    owner.put("large", data, timeout_seconds=SECONDS)
    download_to(reader(server.endpoint), "large", tmp_path / "large", len(data), timeout_seconds=SECONDS)
    assert (tmp_path / "large").read_bytes() == data


def test_everything_that_would_change_it_is_refused(server: Public) -> None:
    bucket = reader(server.endpoint)
    for change in (
        lambda: bucket.put("key", b"x", timeout_seconds=SECONDS),
        lambda: bucket.delete("key", timeout_seconds=SECONDS),
        lambda: bucket.begin("key", timeout_seconds=SECONDS),
    ):
        with pytest.raises(AccessDenied):
            change()


def test_the_page_of_an_answer_that_should_hold_a_listing_is_refused() -> None:
    page = says("200 OK", f"Content-Length: {len(PAGE)}", body=PAGE)
    with hostile(page) as server, pytest.raises(StorageError):
        reader(server.endpoint).list("p/", max_keys=10, timeout_seconds=2)


@pytest.mark.parametrize(
    "endpoint", ["http://cdn.example", "https://127.0.0.1", "https://169.254.169.254", "https://[::1]:8443"]
)
def test_a_strangers_address_has_to_be_https_and_public(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(PublicPointer(endpoint), local=False)


@pytest.mark.parametrize(
    "endpoint", ["https://cdn.example/prefix", "https://user@cdn.example", "https://cdn.example?a"]
)
def test_an_address_with_more_than_scheme_host_and_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        open_pointer(PublicPointer(endpoint), local=True)


# --- before it is published --------------------------------------------------------------------------------------


def test_a_bucket_that_everybody_may_read_and_nobody_else_may_change_may_be_published(
    owner: RangedBucket, server: Public
) -> None:
    published = open_published(PublicPointer(server.endpoint), local=True)
    assert try_published(owner, published, timeout_seconds=SECONDS) is None
    assert owner.list("", max_keys=10, timeout_seconds=SECONDS) == ()


def test_a_bucket_that_everybody_may_change_may_not() -> None:
    with permissive() as endpoint:
        owner = open_bucket(endpoint, "own", "k", "s", local=True)
        published = open_published(PublicPointer(endpoint), local=True)
        unfit = try_published(owner, published, timeout_seconds=SECONDS)
        assert unfit is not None
        assert unfit.why is Why.WRITABLE


def test_the_address_of_another_bucket_may_not(owner: RangedBucket) -> None:
    with public(FakeStore().bucket("other")) as other:
        published = open_published(PublicPointer(other.endpoint), local=True)
        unfit = try_published(owner, published, timeout_seconds=SECONDS)
        assert unfit is not None
        assert unfit.why is Why.ELSEWHERE


# --- what a cache may keep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        (keys.payload(RUN, 1), b"public, max-age=31536000, immutable"),
        (keys.blob(RUN), b"public, max-age=31536000, immutable"),
        (keys.checkpoints(RUN), b"no-store"),
        (keys.trial(), b"no-store"),
    ],
)
def test_an_object_says_whether_a_cache_may_keep_it(key: str, kept: bytes) -> None:
    body = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
    with hostile(says("200 OK", f"Content-Length: {len(body)}", 'ETag: "1"', body=body)) as server:
        bucket = open_bucket(server.endpoint, "bucket", "k", "s", local=True)
        bucket.put(key, b"x", timeout_seconds=SECONDS)
        bucket.begin(key, timeout_seconds=SECONDS)
        stored = [head.lower() for head in server.requests if head.startswith((b"PUT", b"POST"))]
    assert [b"cache-control: " + kept in head for head in stored] == [True] * 2
