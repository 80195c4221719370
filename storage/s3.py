"""The Bucket port over S3 (boto3): Cloudflare R2, AWS, SeaweedFS, MinIO, Swift, Ceph.

This module issues the bucket's requests. storage/client.py signs and parses, storage/transport.py exchanges (the server
may be a stranger's), and storage/refusals.py translates failures.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from murmur.protocol.errors import (
    AccessDenied,
    BucketMissing,
    ConfigError,
    ObjectMissing,
    ObjectReplaced,
    ObjectTooLarge,
    StorageError,
)
from murmur.protocol.keys import is_final
from murmur.protocol.ports import Bucket, Multipart, ObjectFacts
from murmur.protocol.types import Pointer, PublicPointer
from storage import transport
from storage.client import PUBLIC, Client, pause
from storage.deadline import current_deadline, deadline, remaining_seconds, set_deadline
from storage.parts import Parts, ReadAt, Section, in_file, in_memory
from storage.refusals import NO_BUCKET, asking
from storage.transport import Transport

PART_BYTES = 16 << 20
"""Size of a part of an upload. A download has to bring as much to count as moving."""
CREATE_BYTES = 1 << 20
"""Largest object of `create`: one request."""
UPLOAD_THREADS = 3
"""Concurrent parts of one object: more would only share the uplink."""

_BREAKS = 10
"""Consecutive breaks of a body without a byte received before giving up."""
_VERSIONS = 3
"""Times that an object may be replaced during a read before giving up."""
_READ_BYTES = 64 << 10
"""Small: a download that is stopped ends with its next block, and holds up its successor until then."""
ABORT_SECONDS = 5.0
_PAGE_KEYS = 1000
_PAGES_OF_UPLOADS = 10

_KEPT, _NOT_KEPT = "public, max-age=31536000, immutable", "no-store"
"""Cache-Control of an object, for a cache in front of a public bucket."""

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RESERVED_ENDINGS = ("--x-s3", "--ol-s3", "-s3alias", ".mrap", "--table-s3")
"""Names that boto3 routes to other AWS services than the endpoint's bucket."""

Sink = Callable[[bytes], object]
"""Takes the next block."""


class RangedBucket(Bucket, Protocol):
    """A Bucket that also reads ranges of one version of an object, for resuming and sampling."""

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        """Return bytes first .. first + num_bytes - 1 of the version with this ETag.

        Raises ObjectReplaced when the object is another version by now, and the errors of `get`.
        """
        ...

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        """Pass the same bytes as `get_range` to `sink` in order, block by block, in little memory.

        Blocks before an error have already been passed on. A StorageError or OSError of `sink` ends the stream and is
        raised.
        """
        ...


class SharedBucket(RangedBucket, Protocol):
    """A RangedBucket that many write and read."""

    def versions(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> dict[str, str]:
        """Return the keys that begin with `prefix`, in order, at most `max_keys`, each with the ETag of its object. An
        ETag that has not changed is of the same bytes; an empty one says nothing."""
        ...


def open_bucket(endpoint: str, bucket: str, access_key: str, secret_key: str, *, local: bool) -> "S3Bucket":
    """Open a bucket that the operator configured, with its own credential; its address may be private.

    Raises ConfigError for an endpoint that is not plain https (http only with `local`) or an unusable bucket name.
    """
    return S3Bucket(Pointer(endpoint, bucket, access_key, secret_key), local=local, public_only=False)


def open_pointer(pointer: Pointer | PublicPointer, *, local: bool) -> "S3Bucket":
    """Open a bucket that a stranger points to. Unless the run is `local`: https and public addresses only, checked
    again at every connection.

    Raises ConfigError for a pointer that may not be followed. A host name that does not resolve is no error here; the
    first call raises StorageError.
    """
    if not local:
        _require_public(*_plain_endpoint(pointer.endpoint, local=False))
    return S3Bucket(pointer, local=local, public_only=not local)


def open_published(pointer: Pointer | PublicPointer, *, local: bool) -> "S3Bucket":
    """Open our own bucket by our published pointer. Unlike a stranger's, its address may be private as seen from here.

    Raises ConfigError for a pointer that no node could follow.
    """
    return S3Bucket(pointer, local=local, public_only=False)


class S3Bucket:
    """One bucket with one credential, or a public one with none (RangedBucket). Thread-safe; keeps up to 32
    connections."""

    def __init__(self, pointer: Pointer | PublicPointer, *, local: bool, public_only: bool) -> None:
        _plain_endpoint(pointer.endpoint, local=local)
        self._bucket = PUBLIC if isinstance(pointer, PublicPointer) else pointer.bucket
        if not _BUCKET_NAME.fullmatch(self._bucket) or self._bucket.endswith(_RESERVED_ENDINGS):
            raise ConfigError(
                "a bucket name must be 3 to 63 of a-z, 0-9, '.' and '-', and none of the names that S3 reserves"
            )
        self._endpoint = pointer.endpoint
        self._public_only = public_only
        self._transport = Transport(pointer.endpoint, public_only=public_only)
        self._client = Client(pointer, self._transport)
        self._exists = isinstance(pointer, PublicPointer)
        """True once the bucket has been seen, or if it is public and cannot be checked: a 404 then means a missing
        object."""

    def __repr__(self) -> str:
        return f"S3Bucket({self._endpoint!r}, {self._bucket!r})"

    # --- the port ----------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        """See Bucket. Data of more than 16 MiB is sent in parts; the last request makes the object visible."""
        if isinstance(data, Path):
            with data.open("rb") as file:
                self._put(key, in_file(file.fileno()), os.fstat(file.fileno()).st_size, timeout_seconds)
        else:
            self._put(key, in_memory(data), len(data), timeout_seconds)

    def create(self, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        """See Bucket. One PutObject: with parts, servers that support the condition let several writers win."""
        if len(data) > CREATE_BYTES:
            raise ValueError(f"create: {len(data)} bytes, at most {CREATE_BYTES}")
        with deadline(timeout_seconds):
            fault: StorageError | None = None
            try:
                with asking("create", timeout_seconds):
                    body = Section(in_memory(data), 0, len(data))
                    self._client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*", **_kept(key))
                return True
            except AccessDenied:
                raise
            except StorageError as failed:
                fault = failed  # refused, or the answer was lost: the stored object decides
            try:
                return self.get(key, max_bytes=CREATE_BYTES, timeout_seconds=timeout_seconds) == data
            except ObjectTooLarge:
                return False
            except ObjectMissing:
                raise fault from None

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        """See Bucket. A broken body is resumed at the break, under the same ETag."""
        with deadline(timeout_seconds):
            for _ in range(_VERSIONS):
                try:
                    with asking("get", timeout_seconds):
                        return self._whole(key, max_bytes, exact)
                except ObjectReplaced:
                    continue
        raise StorageError(f"get: the object was replaced {_VERSIONS} times while it was read")

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        """See RangedBucket."""
        buffer = BytesIO()
        self.stream(key, buffer.write, first=first, num_bytes=num_bytes, etag=etag, timeout_seconds=timeout_seconds)
        return buffer.getvalue()

    def stream(self, key: str, sink: Sink, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> None:
        """See RangedBucket. A broken body is resumed."""
        with asking("get", timeout_seconds):
            self._stream(key, sink, first, first + num_bytes, etag)

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        """See Bucket. HEAD's 404 does not say whether the object or the bucket is missing, so that is checked."""
        facts = self._look(key, timeout_seconds=timeout_seconds)
        if facts is None:
            self._require_bucket(timeout_seconds)
        return facts

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        """See Bucket."""
        return tuple(self.versions(prefix, max_keys=max_keys, timeout_seconds=timeout_seconds))

    def versions(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> dict[str, str]:
        """See SharedBucket. Keys that do not begin with `prefix` are dropped, whatever the server sends."""
        found: dict[str, str] = {}
        options: dict[str, Any] = {}
        with asking("list", timeout_seconds):
            while len(found) < max_keys:
                page = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=min(_PAGE_KEYS, max_keys - len(found)), **options
                )
                before = len(found)
                found |= {
                    item["Key"]: item.get("ETag", "")
                    for item in page.get("Contents", ())
                    if item["Key"].startswith(prefix)
                }
                # A page without new keys ends the listing: a server could send such pages for ever.
                if not page["IsTruncated"] or len(found) == before:
                    break
                options = {"ContinuationToken": page["NextContinuationToken"]}
        return dict(sorted(found.items())[:max_keys])

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        """See Bucket."""
        try:
            with asking("delete", timeout_seconds):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        except ObjectMissing:
            return

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        """See Bucket."""
        return self._begin(key, timeout_seconds)

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        """See Bucket."""
        aborted = 0
        with asking("abort", timeout_seconds):
            for _ in range(_PAGES_OF_UPLOADS):
                # Aborted uploads are no longer listed, so always ask for the first page.
                page = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix)
                found = [item for item in page.get("Uploads", ()) if item["Key"].startswith(prefix)]
                for item in found:
                    self._abort(item["Key"], item["UploadId"])
                aborted += len(found)
                if not page["IsTruncated"] or not found:
                    break
        return aborted

    def _abort(self, key: str, upload: str) -> None:
        """Abort an upload. A missing one was aborted by a request whose answer was lost."""
        with suppress(ObjectMissing), asking("abort", remaining_seconds()):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    # --- writing -----------------------------------------------------------------------------------------------

    def _put(self, key: str, read_at: ReadAt, size: int, timeout_seconds: float) -> None:
        if size > PART_BYTES:
            return self._put_parts(key, read_at, size, timeout_seconds)
        with asking("put", timeout_seconds):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=Section(read_at, 0, size), **_kept(key))

    def _put_parts(self, key: str, read_at: ReadAt, size: int, timeout_seconds: float) -> None:
        upload = None
        try:
            with deadline(timeout_seconds):
                upload = self._begin(key, timeout_seconds)
                self._send_all(upload, read_at, size, timeout_seconds)
                upload.complete(timeout_seconds=timeout_seconds)
        except BaseException:
            if upload is not None:
                with suppress(StorageError):
                    upload.abort(timeout_seconds=ABORT_SECONDS)
            raise

    def _send_all(self, upload: Parts, read_at: ReadAt, size: int, timeout_seconds: float) -> None:
        inherited = (current_deadline(),)
        with ThreadPoolExecutor(UPLOAD_THREADS, initializer=set_deadline, initargs=inherited) as workers:
            sent = []
            for number, first in enumerate(range(0, size, PART_BYTES), 1):
                section = Section(read_at, first, min(PART_BYTES, size - first))
                sent.append(workers.submit(upload.send, number, section, timeout_seconds=timeout_seconds))
            try:
                for part in sent:
                    part.result()
            except BaseException:
                workers.shutdown(cancel_futures=True)
                raise

    def _begin(self, key: str, timeout_seconds: float) -> Parts:
        with deadline(timeout_seconds):
            before = self._look(key, timeout_seconds=timeout_seconds)
            with asking("upload", timeout_seconds):
                answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, **_kept(key))
                names = {"Bucket": self._bucket, "Key": key, "UploadId": answer["UploadId"]}
        return Parts(self._client, names, partial(self._look, key), before)

    # --- reading -----------------------------------------------------------------------------------------------

    def _look(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        try:
            with asking("head", timeout_seconds):
                answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except ObjectMissing:
            return None
        if "ContentLength" not in answer:
            raise StorageError("head: the server does not say the object's size")
        self._exists = True
        modified = answer.get("LastModified")
        return ObjectFacts(answer["ContentLength"], answer.get("ETag", ""), modified.timestamp() if modified else 0.0)

    def _require_bucket(self, timeout_seconds: float) -> None:
        """Raise BucketMissing when the server says so. Asks until the bucket has been seen once."""
        if self._exists:
            return
        try:
            with asking("head", timeout_seconds):
                self._client.head_bucket(Bucket=self._bucket)
        except ObjectMissing:
            raise BucketMissing(f"head: {NO_BUCKET}") from None
        except StorageError:
            return
        self._exists = True

    def _whole(self, key: str, max_bytes: int, exact: bool) -> bytes:
        """Read one version of the object; its size is checked before its body is read."""
        answer = self._client.get_object(Bucket=self._bucket, Key=key)
        body = answer["Body"]
        with _closing(body):
            size = answer.get("ContentLength")
            if size is None:
                raise StorageError("get: the server does not say the object's size")
            if size > max_bytes or (exact and size != max_bytes):
                allowed = f"exactly {max_bytes}" if exact else f"at most {max_bytes}"
                raise ObjectTooLarge(f"get: the object has {size} bytes, {allowed} expected; not read", size)
            buffer = BytesIO()
            have = _copy(body, buffer.write, size)
        if have < size:
            etag = answer.get("ETag", "")
            if not etag:
                raise StorageError(f"get: the body ended after {have} of {size} bytes and there is no ETag")
            self._stream(key, buffer.write, have, size, etag)
        return buffer.getvalue()

    def _stream(self, key: str, sink: Sink, have: int, end: int, etag: str) -> None:
        """Pass bytes have .. end - 1 to `sink`."""
        breaks = 0
        while have < end:
            if breaks == _BREAKS:
                raise StorageError(f"get: the body broke {_BREAKS} times at byte {have} of {end}")
            if breaks:
                pause(breaks)
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={have}-{end - 1}", IfMatch=etag
            )
            body = answer["Body"]
            with _closing(body):
                # Some servers ignore If-Match, and some support it and still serve another version.
                if answer.get("ETag") != etag:
                    raise ObjectReplaced("get: the object is another version by now, or the server does not say which")
                served = answer.get("ContentRange", "").partition("/")[0]
                if served != f"bytes {have}-{end - 1}" or answer.get("ContentLength") != end - have:
                    raise StorageError("get: the server answered another range than it was asked for")
                came = _copy(body, sink, end - have)
            have += came
            breaks = 1 if came else breaks + 1


@contextmanager
def _closing(body: Any) -> Iterator[None]:
    """Close the body: a wholly read connection returns to the pool, any other is closed."""
    try:
        yield
    finally:
        body.close()


def _copy(body: Any, sink: Sink, num_bytes: int) -> int:
    """Pass at most `num_bytes` of the body on; return how many: fewer when it breaks or ends early."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    left = num_bytes
    while left > 0:
        try:
            block = body.read(min(left, _READ_BYTES))
        except (BotoCoreError, HTTPError, OSError):
            remaining_seconds()
            break
        if not block:
            break
        sink(block)
        left -= len(block)
    return num_bytes - left


def _kept(key: str) -> dict[str, str]:
    return {"CacheControl": _KEPT if is_final(key) else _NOT_KEPT}


def _require_public(host: str, port: int) -> None:
    """Raise ConfigError for a host that resolves to an address that is not public."""
    try:
        addresses = transport.resolve(host, port)
    except (OSError, UnicodeError):
        return
    if not all(transport.is_public(ip) for _, ip, _ in addresses):
        raise ConfigError("the pointer's endpoint leads to an address that is not public; it was not followed")


def _plain_endpoint(endpoint: str, *, local: bool) -> tuple[str, int]:
    """Return host and port of an endpoint that consists of scheme, host and port only. Raises ConfigError."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("the bucket's endpoint is not a URL") from None
    if parts.scheme not in (("https", "http") if local else ("https",)):
        also = " or http" if local else " (http: for rehearsals, with --local)"
        raise ConfigError(f"the bucket's endpoint must be an https URL{also}")
    if not host or parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError("the bucket's endpoint must be https://HOST[:PORT] and nothing else")
    return host, port or (443 if parts.scheme == "https" else 80)
