"""What a Bucket is asked to do while something goes wrong, and what must be true afterwards, whatever went wrong.

A trial has a key of its own on a real server, which holds `old` there at first. Its bucket speaks through the proxy;
what stands is read beside it, with plain boto3.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from protocol.errors import StorageError
from storage.resume import download_to
from storage.s3 import S3Bucket
from storage.upload import Upload
from tests.storage.proxy import Proxy

OLD = bytes(number * 31 % 251 for number in range(200_000))
SMALL = OLD[::-1]
LARGE = bytes(range(256)) * 20480 + OLD
"""5 MiB, the least that a part may have, and a second part."""
PART_BYTES = 5 << 20


@dataclass(frozen=True)
class Truth:
    """The server itself."""

    client: Any
    bucket: str

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def stands(self, key: str) -> bytes | None:
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        except ClientError as error:
            assert error.response["Error"]["Code"] == "NoSuchKey", error
            return None

    def begin(self, key: str) -> None:
        self.client.create_multipart_upload(Bucket=self.bucket, Key=key)

    def unfinished(self, prefix: str) -> int:
        page = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix)
        return sum(one["Key"].startswith(prefix) for one in page.get("Uploads", ()))

    def clear(self, prefix: str) -> None:
        """Leave nothing under `prefix`."""
        for one in self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", ()):
            self.client.delete_object(Bucket=self.bucket, Key=one["Key"])
        for one in self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix).get("Uploads", ()):
            if one["Key"].startswith(prefix):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=one["Key"], UploadId=one["UploadId"])


@dataclass
class Trial:
    truth: Truth
    proxy: Proxy
    bucket: S3Bucket
    """Through the proxy."""
    key: str
    folder: Path
    seconds: float = 20.0
    """The time-out of a call."""


@dataclass(frozen=True)
class Verb:
    """Something to ask of a Bucket. `does` raises AssertionError where it returned with anything but the right bytes;
    `writes` is what stands after it returned (None: nothing)."""

    does: Callable[[Trial], None]
    writes: bytes | None = OLD


def get(trial: Trial) -> None:
    assert trial.bucket.get(trial.key, max_bytes=len(OLD), timeout_seconds=trial.seconds, exact=True) == OLD


def get_at_most(trial: Trial) -> None:
    assert trial.bucket.get(trial.key, max_bytes=2 * len(OLD), timeout_seconds=trial.seconds) == OLD


def get_range(trial: Trial) -> None:
    facts = trial.truth.client.head_object(Bucket=trial.truth.bucket, Key=trial.key)
    found = trial.bucket.get_range(
        trial.key, first=1000, num_bytes=150_000, etag=facts["ETag"], timeout_seconds=trial.seconds
    )
    assert found == OLD[1000:151_000]


def download(trial: Trial) -> None:
    path = trial.folder / "file"
    try:
        download_to(trial.bucket, trial.key, path, len(OLD), timeout_seconds=trial.seconds)
    except StorageError:
        assert not path.exists()
        raise
    assert path.read_bytes() == OLD


def put_small(trial: Trial) -> None:
    trial.bucket.put(trial.key, SMALL, timeout_seconds=trial.seconds)


def put_small_file(trial: Trial) -> None:
    (trial.folder / "small").write_bytes(SMALL)
    trial.bucket.put(trial.key, trial.folder / "small", timeout_seconds=trial.seconds)


def put_large(trial: Trial) -> None:
    trial.bucket.put(trial.key, LARGE, timeout_seconds=trial.seconds)


def put_large_file(trial: Trial) -> None:
    (trial.folder / "large").write_bytes(LARGE)
    trial.bucket.put(trial.key, trial.folder / "large", timeout_seconds=trial.seconds)


def parts(trial: Trial) -> None:
    upload = trial.bucket.begin(trial.key, timeout_seconds=trial.seconds)
    try:
        upload.put(2, LARGE[PART_BYTES:], timeout_seconds=trial.seconds)
        upload.put(1, LARGE[:PART_BYTES], timeout_seconds=trial.seconds)
        upload.complete(timeout_seconds=trial.seconds)
    except StorageError:
        upload.abort(timeout_seconds=trial.seconds)
        raise


def abort(trial: Trial) -> None:
    upload = trial.bucket.begin(trial.key, timeout_seconds=trial.seconds)
    upload.put(1, SMALL, timeout_seconds=trial.seconds)
    upload.abort(timeout_seconds=trial.seconds)


def upload(trial: Trial) -> None:
    ahead = Upload(trial.bucket, trial.key, bytearray(LARGE), timeout_seconds=trial.seconds)
    ahead.ready(len(LARGE))
    try:
        ahead.finish(timeout_seconds=trial.seconds)
    finally:
        for thread in threading.enumerate():
            if thread.name.startswith("upload-"):
                thread.join(trial.seconds)


def head(trial: Trial) -> None:
    facts = trial.bucket.head(trial.key, timeout_seconds=trial.seconds)
    assert facts is not None
    assert facts.size_bytes == len(OLD)


def list_(trial: Trial) -> None:
    assert trial.bucket.list(trial.key, max_keys=10, timeout_seconds=trial.seconds) == (trial.key,)


def delete(trial: Trial) -> None:
    trial.bucket.delete(trial.key, timeout_seconds=trial.seconds)


def abort_unfinished(trial: Trial) -> None:
    trial.truth.begin(trial.key)
    assert trial.bucket.abort_unfinished(trial.key, timeout_seconds=trial.seconds) == 1
    assert trial.truth.unfinished(trial.key) == 0


VERBS = {
    "get": Verb(get),
    "get at most": Verb(get_at_most),
    "get_range": Verb(get_range),
    "download_to": Verb(download),
    "head": Verb(head),
    "list": Verb(list_),
    "put": Verb(put_small, SMALL),
    "put file": Verb(put_small_file, SMALL),
    "put large": Verb(put_large, LARGE),
    "put large file": Verb(put_large_file, LARGE),
    "parts": Verb(parts, LARGE),
    "abort": Verb(abort),
    "upload": Verb(upload, LARGE),
    "delete": Verb(delete, None),
    "abort_unfinished": Verb(abort_unfinished),
}
