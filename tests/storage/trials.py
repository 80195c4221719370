"""What a Bucket is asked to do while something goes wrong, and what has to be true afterwards whatever that was.

A trial has a key of its own on a real server, where OLD stands at first. Its bucket speaks through the proxy; what
stands in the end is read beside it, with plain boto3.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from murmur.lab.localnet.store import StoreUser
from murmur.protocol.errors import StorageError
from storage.resume import download_to
from storage.s3 import S3Bucket
from storage.upload import Upload
from tests.storage.proxy import Proxy

PART_BYTES = 5 << 20
"""The least that a server takes as a part before the last."""
OLD = bytes(number * 31 % 251 for number in range(200_000))
SMALL = OLD[::-1]
LARGE = bytes(range(256)) * (PART_BYTES // 256) + OLD
"""Two parts."""
_NAMES = {None: "nothing", OLD: "what stood before", SMALL: "the new object", LARGE: "the new large object"}

SECONDS = 90.0
"""Time-out of what something else ends: a busy machine may need it."""
SLACK_SECONDS = 30.0
"""How late a busy machine may be; what is not bounded takes a minute and more."""


def named(data: bytes | None) -> str:
    """Short, for pytest compares long bytes for minutes."""
    return _NAMES.get(data) or f"{len(data or b'')} other bytes"


class Truth:
    """A bucket on the server itself, asked with plain boto3."""

    def __init__(self, endpoint: str, owner: StoreUser) -> None:
        self.endpoint = endpoint
        self.bucket = owner.bucket
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=owner.write_access_key,
            aws_secret_access_key=owner.write_secret_key,
            config=Config(signature_version="s3v4", request_checksum_calculation="when_required"),
        )

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def stands(self, key: str) -> bytes | None:
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
            return None

    def etag(self, key: str) -> str:
        return str(self.client.head_object(Bucket=self.bucket, Key=key)["ETag"])

    def begin(self, key: str) -> None:
        self.client.create_multipart_upload(Bucket=self.bucket, Key=key)

    def unfinished(self, key: str) -> list[str]:
        page = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
        return [one["UploadId"] for one in page.get("Uploads", ()) if one["Key"] == key]

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)


@dataclass(frozen=True)
class Trial:
    """`seconds` is the time-out of every call, `read_seconds` the socket's."""

    truth: Truth
    proxy: Proxy
    bucket: S3Bucket
    key: str
    folder: Path
    seconds: float
    read_seconds: float


@dataclass(frozen=True)
class Verb:
    """Something to ask of a Bucket. `does` fails (AssertionError) when it returned anything but the right bytes.
    `operations`: S3's, without which it cannot be done. `writes`: what stands when it has returned. `begun`: an upload
    to the key that somebody began, and that it ends. `before`: what stands at first."""

    does: Callable[[Trial], None]
    operations: tuple[str, ...]
    writes: bytes | None = OLD
    begun: bool = False
    before: bytes | None = OLD


def attempt(trial: Trial, verb: Verb) -> StorageError | None:
    """Do it, and return what it raised. Fails unless, whatever the proxy did,

    - it ended by its deadline and one socket time-out, with the right result or with a StorageError;
    - what stands is whole: what stood before or, when it returned, what was written;
    - no unfinished upload is left that could have been ended;
    - the bucket's connections are none the worse.
    """
    if verb.before is None:
        trial.truth.delete(trial.key)
    else:
        trial.truth.put(trial.key, verb.before)
    if verb.begun:
        trial.truth.begin(trial.key)
    raised = None
    began = time.monotonic()
    try:
        verb.does(trial)
    except StorageError as error:
        raised = error
    took = time.monotonic() - began
    assert took < trial.seconds + trial.read_seconds + SLACK_SECONDS
    stands = trial.truth.stands(trial.key)
    assert named(stands) in {named(verb.writes), *([named(verb.before)] if raised else [])}
    if verb.begun or "CreateMultipartUpload" in verb.operations:
        _require_ended(trial, verb.begun and raised is not None, late=took > trial.seconds - 0.1)
    trial.proxy.faults.clear()
    if stands is not None:
        assert named(trial.bucket.get(trial.key, max_bytes=len(LARGE), timeout_seconds=SECONDS)) == named(stands)
    return raised


def _require_ended(trial: Trial, begun: int, *, late: bool) -> None:
    """No upload is left but those `begun` before and those that the server was not allowed to tell of, or to end; these
    the next start finds. late: the deadline has passed, perhaps while the server told of one."""
    hit = [one for one in trial.proxy.seen if one.fault is not None]
    if not any(one.request.operation == "AbortMultipartUpload" for one in hit):
        created = [one for one in trial.proxy.seen if one.request.operation == "CreateMultipartUpload"]
        untold = [one for one in created if one.forwarded and (late or one.fault is not None)]
        assert len(trial.truth.unfinished(trial.key)) <= len(untold) + begun
    trial.proxy.faults.clear()
    trial.bucket.abort_unfinished(trial.key, timeout_seconds=SECONDS)
    assert trial.truth.unfinished(trial.key) == []


def _same(found: bytes, expected: bytes) -> None:
    assert sha256(found).hexdigest() == sha256(expected).hexdigest()


def _get(trial: Trial) -> None:
    _same(trial.bucket.get(trial.key, max_bytes=len(OLD), timeout_seconds=trial.seconds, exact=True), OLD)


def _get_at_most(trial: Trial) -> None:
    _same(trial.bucket.get(trial.key, max_bytes=2 * len(OLD), timeout_seconds=trial.seconds), OLD)


def _get_range(trial: Trial) -> None:
    found = trial.bucket.get_range(
        trial.key, first=1000, num_bytes=150_000, etag=trial.truth.etag(trial.key), timeout_seconds=trial.seconds
    )
    _same(found, OLD[1000:151_000])


def _download_to(trial: Trial) -> None:
    path = trial.folder / "file"
    try:
        download_to(trial.bucket, trial.key, path, len(OLD), timeout_seconds=trial.seconds)
    except StorageError:
        assert not path.exists()
        raise
    _same(path.read_bytes(), OLD)


def _head(trial: Trial) -> None:
    facts = trial.bucket.head(trial.key, timeout_seconds=trial.seconds)
    assert facts is not None
    assert facts.size_bytes == len(OLD)


def _list(trial: Trial) -> None:
    assert trial.bucket.list(trial.key, max_keys=10, timeout_seconds=trial.seconds) == (trial.key,)


def _put(trial: Trial) -> None:
    trial.bucket.put(trial.key, SMALL, timeout_seconds=trial.seconds)


def _put_file(trial: Trial) -> None:
    (trial.folder / "small").write_bytes(SMALL)
    trial.bucket.put(trial.key, trial.folder / "small", timeout_seconds=trial.seconds)


def _put_large(trial: Trial) -> None:
    trial.bucket.put(trial.key, LARGE, timeout_seconds=trial.seconds)


def _put_large_file(trial: Trial) -> None:
    (trial.folder / "large").write_bytes(LARGE)
    trial.bucket.put(trial.key, trial.folder / "large", timeout_seconds=trial.seconds)


def _create(trial: Trial) -> None:
    assert trial.bucket.create(trial.key, SMALL, timeout_seconds=trial.seconds)


def _create_late(trial: Trial) -> None:
    assert not trial.bucket.create(trial.key, SMALL, timeout_seconds=trial.seconds)


def _parts(trial: Trial) -> None:
    until = time.monotonic() + trial.seconds
    upload = trial.bucket.begin(trial.key, timeout_seconds=trial.seconds)
    try:
        for number, data in ((2, LARGE[PART_BYTES:]), (1, LARGE[:PART_BYTES])):
            upload.put(number, data, timeout_seconds=until - time.monotonic())
        upload.complete(timeout_seconds=until - time.monotonic())
    except StorageError:
        upload.abort(timeout_seconds=SECONDS)
        raise


def _abort(trial: Trial) -> None:
    upload = trial.bucket.begin(trial.key, timeout_seconds=trial.seconds)
    upload.abort(timeout_seconds=trial.seconds)


def _upload(trial: Trial) -> None:
    ahead = Upload(trial.bucket, trial.key, bytearray(LARGE), timeout_seconds=trial.seconds)
    ahead.ready(len(LARGE))
    try:
        ahead.finish(timeout_seconds=trial.seconds)
    finally:
        for thread in threading.enumerate():
            if thread.name.startswith("upload-"):
                thread.join(trial.seconds)


def _delete(trial: Trial) -> None:
    trial.bucket.delete(trial.key, timeout_seconds=trial.seconds)


def _abort_unfinished(trial: Trial) -> None:
    trial.bucket.abort_unfinished(trial.key, timeout_seconds=trial.seconds)
    assert trial.truth.unfinished(trial.key) == []


_IN_PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
VERBS = {
    "get": Verb(_get, ("GetObject",)),
    "get all": Verb(_get_at_most, ("GetObject",)),
    "get_range": Verb(_get_range, ("GetObject",)),
    "download_to": Verb(_download_to, ("HeadObject", "GetObject")),
    "head": Verb(_head, ("HeadObject",)),
    "list": Verb(_list, ("ListObjectsV2",)),
    "put": Verb(_put, ("PutObject",), SMALL),
    "put file": Verb(_put_file, ("PutObject",), SMALL),
    "create": Verb(_create, ("PutObject",), SMALL, before=None),
    "create late": Verb(_create_late, ("PutObject", "GetObject")),
    "put large": Verb(_put_large, _IN_PARTS, LARGE),
    "put large file": Verb(_put_large_file, _IN_PARTS, LARGE),
    "parts": Verb(_parts, _IN_PARTS, LARGE),
    "Upload": Verb(_upload, _IN_PARTS, LARGE),
    "abort": Verb(_abort, ("AbortMultipartUpload",)),
    "delete": Verb(_delete, ("DeleteObject",), None),
    "abort_unfinished": Verb(_abort_unfinished, ("ListMultipartUploads", "AbortMultipartUpload"), begun=True),
}
