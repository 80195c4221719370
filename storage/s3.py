"""The Bucket port over S3 (boto3): Cloudflare R2, AWS, MinIO, Swift, Ceph, or moto on a local network.

The only module that imports boto3, and only when a bucket is opened. boto3 signs and parses; the exchange itself goes
through storage/transport.py, because the server may be a stranger's. An error says what we asked and which status
came back; it never carries text of the server or a secret. Settings: docs/decisions on storage, each with its
measured reason.
"""

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from protocol import keys
from protocol.errors import AccessDenied, ConfigError, ObjectMissing, ObjectTooLarge, StorageError
from protocol.ports import Bucket, Multipart, ObjectFacts
from protocol.types import Pointer, PublicPointer
from storage import transport
from storage.transport import DeadlinePassed, Interrupted, Transport, TransportError

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse

PART_BYTES = 16 << 20
"""Unit of multipart uploads and of ranged downloads."""
UPLOAD_THREADS = 3
"""Parts of one object that travel at once: more only share the uplink."""
REGION = "auto"

_ATTEMPTS = 6
_BACKOFF_SECONDS = 0.25
_BACKOFF_MAX_SECONDS = 10.0
_BREAKS = 10
"""Times that a body may break without another part of it having arrived."""
_VERSIONS = 3
"""Times that an object may be replaced while it is read."""
_READ_BYTES = 256 << 10
_PAGE_KEYS = 1000
_PAGES_OF_UPLOADS = 10
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})

_KEPT, _NOT_KEPT = "public, max-age=31536000, immutable", "no-store"
"""What a cache before a public bucket may do with an object (Cache-Control)."""
_PUBLIC = "public"
"""Stands for the bucket's name in the URLs that boto3 makes for a public bucket, and is taken out again."""

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RESERVED_ENDINGS = ("--x-s3", "--ol-s3", "-s3alias", ".mrap", "--table-s3")
"""Names with which boto3 talks to other AWS services than the endpoint's bucket."""


class ObjectReplaced(StorageError):
    """The object is no longer the version whose ETag was given (412)."""


class RangedBucket(Bucket, Protocol):
    """A Bucket that also reads parts of one version of an object: what resuming and sampling need."""

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        """Bytes first .. first + num_bytes - 1 of the version with this ETag.

        Raises ObjectReplaced when the object is another version by now, and what `get` raises.
        """
        ...


def open_bucket(endpoint: str, bucket: str, access_key: str, secret_key: str, *, local: bool) -> "S3Bucket":
    """A bucket that the operator configured, with its own credential; its address may be private.

    Raises ConfigError for an endpoint that is not plain https (http only with `local`) or an unusable bucket name.
    """
    return S3Bucket(Pointer(endpoint, bucket, access_key, secret_key), local=local, public_only=False)


def open_pointer(pointer: Pointer | PublicPointer, *, local: bool) -> "S3Bucket":
    """A bucket that a stranger points to. Unless the run is `local`: https only, and public addresses only, checked
    again at every connection.

    Raises ConfigError for a pointer that may not be followed. A host name that does not resolve is no error here;
    the first call raises StorageError.
    """
    if not local:
        # Before the client: making one costs tens of milliseconds under a lock, and a stranger may point anywhere.
        _require_public(*_plain_endpoint(pointer.endpoint, local=False))
    return S3Bucket(pointer, local=local, public_only=not local)


def open_published(pointer: Pointer | PublicPointer, *, local: bool) -> "S3Bucket":
    """Our own bucket as our pointer leads to it; unlike a stranger's, its address may be private as seen from here.

    Raises ConfigError for a pointer that nobody could follow.
    """
    return S3Bucket(pointer, local=local, public_only=False)


class S3Bucket:
    """One bucket with one credential, or a public one with none (RangedBucket). Thread-safe; keeps up to 32
    connections."""

    def __init__(self, pointer: Pointer | PublicPointer, *, local: bool, public_only: bool) -> None:
        _plain_endpoint(pointer.endpoint, local=local)
        self._bucket = _PUBLIC if isinstance(pointer, PublicPointer) else pointer.bucket
        if not _BUCKET_NAME.fullmatch(self._bucket) or self._bucket.endswith(_RESERVED_ENDINGS):
            raise ConfigError(
                "a bucket name must be 3 to 63 of a-z, 0-9, '.' and '-', and none of the names that S3 reserves"
            )
        self._endpoint = pointer.endpoint
        self._public_only = public_only
        self._transport = Transport(pointer.endpoint, public_only=public_only)
        self._client = _client(pointer, self._transport)

    def __repr__(self) -> str:
        return f"S3Bucket({self._endpoint!r}, {self._bucket!r})"

    # --- the port ----------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes | Path, *, timeout_seconds: float) -> None:
        """See Bucket. More than 16 MiB goes up in parts, which the last request makes visible at once."""
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        with self._call("put", timeout_seconds):
            if size <= PART_BYTES:
                body = data.read_bytes() if isinstance(data, Path) else data
                self._client.put_object(Bucket=self._bucket, Key=key, Body=body, CacheControl=_cache_control(key))
            elif isinstance(data, Path):
                with data.open("rb") as file:
                    self._upload(key, file)
            else:
                self._upload(key, BytesIO(data))

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        """See Bucket. A broken body goes on where it broke, under the same ETag."""
        with transport.deadline(timeout_seconds):
            for _ in range(_VERSIONS):
                try:
                    with self._call("get", timeout_seconds):
                        return self._whole(key, max_bytes, exact)
                except ObjectReplaced:
                    continue
        raise StorageError(f"get: the object was replaced {_VERSIONS} times while it was read")

    def get_range(self, key: str, *, first: int, num_bytes: int, etag: str, timeout_seconds: float) -> bytes:
        """See RangedBucket."""
        with self._call("get", timeout_seconds):
            buffer = BytesIO()
            self._fill(key, buffer, first, first + num_bytes, etag)
            return buffer.getvalue()

    def head(self, key: str, *, timeout_seconds: float) -> ObjectFacts | None:
        """See Bucket."""
        try:
            with self._call("head", timeout_seconds):
                answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except ObjectMissing:
            return None
        if "ContentLength" not in answer:
            raise StorageError("head: the server does not say the object's size")
        modified = answer.get("LastModified")
        return ObjectFacts(answer["ContentLength"], answer.get("ETag", ""), modified.timestamp() if modified else 0.0)

    def list(self, prefix: str, *, max_keys: int, timeout_seconds: float) -> tuple[str, ...]:
        """See Bucket. Keys that do not begin with `prefix` are not passed on, whatever the server sends."""
        keys: set[str] = set()
        options: dict[str, Any] = {}
        with self._call("list", timeout_seconds):
            while len(keys) < max_keys:
                page = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=min(_PAGE_KEYS, max_keys - len(keys)), **options
                )
                before = len(keys)
                keys.update(item["Key"] for item in page.get("Contents", ()) if item["Key"].startswith(prefix))
                # A page that brings nothing new ends the listing: a server could send such pages for ever.
                if not page.get("IsTruncated") or len(keys) == before:
                    break
                options = {"ContinuationToken": page["NextContinuationToken"]}
        return tuple(sorted(keys)[:max_keys])

    def delete(self, key: str, *, timeout_seconds: float) -> None:
        """See Bucket."""
        try:
            with self._call("delete", timeout_seconds):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        except ObjectMissing:
            return

    def begin(self, key: str, *, timeout_seconds: float) -> Multipart:
        """See Bucket."""
        with self._call("upload", timeout_seconds):
            answer = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, CacheControl=_cache_control(key)
            )
            return _Parts(self, key, answer["UploadId"])

    def abort_unfinished(self, prefix: str, *, timeout_seconds: float) -> int:
        """See Bucket."""
        aborted = 0
        with self._call("abort", timeout_seconds):
            for _ in range(_PAGES_OF_UPLOADS):
                # What was aborted is no longer listed, so every page is the first one.
                page = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix)
                found = [item for item in page.get("Uploads", ()) if item["Key"].startswith(prefix)]
                for item in found:
                    self._client.abort_multipart_upload(Bucket=self._bucket, Key=item["Key"], UploadId=item["UploadId"])
                aborted += len(found)
                if not page.get("IsTruncated") or not found:
                    break
        return aborted

    # --- reading -----------------------------------------------------------------------------------------------

    def _whole(self, key: str, max_bytes: int, exact: bool) -> bytes:
        """One version of the object, its size checked before its body is touched."""
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
            _copy(body, buffer, size)
        if buffer.tell() < size:
            etag = answer.get("ETag", "")
            if not etag:
                raise StorageError(f"get: the body ended after {buffer.tell()} of {size} bytes and there is no ETag")
            self._fill(key, buffer, 0, size, etag)
        return buffer.getvalue()

    def _fill(self, key: str, buffer: BytesIO, first: int, end: int, etag: str) -> None:
        """Append to `buffer`, which holds the object's bytes from `first` on, until it reaches byte `end`."""
        breaks, part = 0, 0
        while (have := first + buffer.tell()) < end:
            if (have - first) // PART_BYTES > part:
                breaks, part = 0, (have - first) // PART_BYTES
            if breaks == _BREAKS:
                raise StorageError(f"get: the body broke {_BREAKS} times at byte {have} of {end}")
            if breaks:
                _pause(breaks)
            breaks += 1
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={have}-{end - 1}", IfMatch=etag
            )
            body = answer["Body"]
            with _closing(body):
                served = answer.get("ContentRange", "").partition("/")[0]
                if served != f"bytes {have}-{end - 1}" or answer.get("ContentLength") != end - have:
                    raise StorageError("get: the server answered another range than it was asked for")
                _copy(body, buffer, end - have)

    def _upload(self, key: str, file: Any) -> None:
        from boto3.s3.transfer import TransferConfig
        from s3transfer.manager import TransferManager

        config = TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_concurrency=UPLOAD_THREADS,
            num_download_attempts=_BREAKS,
            preferred_transfer_client="classic",
        )
        # The manager's threads live as long as this upload and inherit its deadline.
        workers: Any = partial(
            ThreadPoolExecutor, initializer=transport.set_deadline, initargs=(transport.current_deadline(),)
        )
        with TransferManager(self._client, config, executor_cls=workers) as manager:
            manager.upload(file, self._bucket, key, {"CacheControl": _cache_control(key)}).result()

    # --- errors ------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self, verb: str, timeout_seconds: float) -> Iterator[None]:
        """Run boto3 calls within `timeout_seconds` and turn whatever comes out into our errors.

        The original may quote the server, so it is not chained. An OSError is ours (a file to upload): those of
        sockets are TransportErrors by now.
        """
        try:
            with transport.deadline(timeout_seconds):
                yield
        except _failures() as error:
            raise _translated(verb, error) from None


class _Parts:
    """A multipart upload of an S3Bucket (Multipart)."""

    def __init__(self, bucket: S3Bucket, key: str, upload: str) -> None:
        self._bucket = bucket
        self._names = {"Bucket": bucket._bucket, "Key": key, "UploadId": upload}
        self._etags: dict[int, str] = {}
        """What the server calls each part, by number: the completion has to name them."""

    def put(self, number: int, data: bytes, *, timeout_seconds: float) -> None:
        with self._bucket._call("upload", timeout_seconds):
            answer = self._bucket._client.upload_part(**self._names, PartNumber=number, Body=data)
            self._etags[number] = answer["ETag"]

    def complete(self, *, timeout_seconds: float) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())]
        with self._bucket._call("upload", timeout_seconds):
            self._bucket._client.complete_multipart_upload(**self._names, MultipartUpload={"Parts": parts})

    def abort(self, *, timeout_seconds: float) -> None:
        try:
            with self._bucket._call("abort", timeout_seconds):
                self._bucket._client.abort_multipart_upload(**self._names)
        except ObjectMissing:
            return


@contextmanager
def _closing(body: Any) -> Iterator[None]:
    """Hand a wholly read connection back to the pool, close any other."""
    try:
        yield
    finally:
        body.close()


def _copy(body: Any, buffer: BytesIO, num_bytes: int) -> None:
    """Append at most `num_bytes` of the body; fewer when it breaks or ends early."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    while num_bytes > 0:
        try:
            block = body.read(min(num_bytes, _READ_BYTES))
        except (BotoCoreError, HTTPError, OSError):
            transport.remaining_seconds()
            return
        if not block:
            return
        buffer.write(block)
        num_bytes -= len(block)


@cache
def _failures() -> tuple[type[Exception], ...]:
    """What boto3 raises when a server fails it. The built-in ones are from its parsers, which expect honest answers."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    parsing = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, SyntaxError)
    return (TransportError, BotoCoreError, ClientError, ResponseParserError, *parsing)


def _translated(verb: str, error: Exception) -> StorageError:
    """Our error for one of boto3's. Only the status and codes that we know by name are taken from the answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = response.get("Error", {}).get("Code")
        if code == "RequestTimeTooSkewed":
            return AccessDenied(f"{verb}: the server says that this machine's clock is wrong; set it (NTP)")
        if status in (401, 403, 405):  # 405: a server of files, which takes no changes from anybody
            return AccessDenied(f"{verb}: the credential is unknown or may not do this ({status})")
        if status == 404:
            return ObjectMissing(f"{verb}: there is no such object or bucket")
        if status == 412:
            return ObjectReplaced(f"{verb}: the object is another version by now")
        return StorageError(f"{verb}: the server answered with status {int(status)}")
    if isinstance(error, DeadlinePassed):
        return StorageError(f"{verb}: out of time")
    if isinstance(error, TransportError):
        return StorageError(f"{verb}: {error}")
    return StorageError(f"{verb}: the server's answer can't be used ({type(error).__name__})")


def _cache_control(key: str) -> str:
    return _KEPT if keys.is_final(key) else _NOT_KEPT


# --- the boto3 client ------------------------------------------------------------------------------------------

_session_lock = threading.Lock()
_shared_session: "Session | None" = None


def _session() -> "Session":
    """One session for all clients: it caches S3's service model. Making clients from it is not thread-safe."""
    global _shared_session
    if _shared_session is None:
        import boto3

        _shared_session = boto3.session.Session()
    return _shared_session


def _client(pointer: Pointer | PublicPointer, exchange: Transport) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    signed = pointer if isinstance(pointer, Pointer) else None
    config = Config(
        region_name=REGION,
        signature_version=UNSIGNED if signed is None else "s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # boto3's own retries sleep past a deadline; _retry_delay below replaces them.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=transport.CONNECT_SECONDS,
        read_timeout=transport.READ_SECONDS,
        tcp_keepalive=True,
        max_pool_connections=transport.MAX_POOL_CONNECTIONS,
        s3={"addressing_style": "path"},
    )
    try:
        with _session_lock:
            client = _session().client(
                "s3",
                endpoint_url=pointer.endpoint,
                aws_access_key_id=None if signed is None else signed.access_key,
                aws_secret_access_key=None if signed is None else signed.secret_key,
                config=config,
            )
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"boto3 refuses the endpoint or its own configuration ({type(error).__name__})") from None
    events = client.meta.events
    # R2 does not answer Expect: 100-continue; boto3 waits a second for it before every upload.
    events.unregister("before-call.s3", add_expect_header)
    events.register_last("before-send.s3", _sender(exchange, f"/{_PUBLIC}" if signed is None else ""))
    events.register_first("needs-retry.s3", _retry_delay)
    return client


def _sender(exchange: Transport, prefix: str) -> "Callable[..., AWSResponse]":
    """The event handler that answers boto3's requests through our transport. `prefix` is left out of their paths, which
    nothing signs where it is not empty."""
    from botocore.awsrequest import AWSResponse

    def send(request: "AWSPreparedRequest", **_: Any) -> "AWSResponse":
        parts = urlsplit(request.url)
        url = parts._replace(path=parts.path.removeprefix(prefix) or "/").geturl() if prefix else request.url
        answer = exchange.send(request.method, url, request.headers, request.body, stream=bool(request.stream_output))
        raw: Any = answer.stream if answer.stream is not None else _Held(answer.body)
        headers: Any = answer.headers
        return AWSResponse(request.url, answer.status, headers, raw)

    return send


class _Held(BytesIO):
    """A body that is already here, with the method by which botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _retry_delay(attempts: int, response: Any = None, caught_exception: Any = None, **_: Any) -> float | None:
    """botocore's question whether to repeat a request: seconds to sleep first, or None. Never past the deadline."""
    if attempts >= _ATTEMPTS:
        return None
    if caught_exception is not None:
        if not isinstance(caught_exception, Interrupted):
            return None
    elif response is None or response[0].status_code not in _RETRIED_STATUS:
        return None
    delay = _delay(attempts)
    until = transport.current_deadline()
    return delay if until is None or time.monotonic() + delay < until else None


def _delay(attempt: int) -> float:
    """Exponential back-off with jitter, in seconds."""
    ceiling = min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2.0**attempt)
    return ceiling * (0.5 + secrets.randbelow(1 << 20) / (1 << 21))


def _pause(attempt: int) -> None:
    time.sleep(min(_delay(attempt), transport.remaining_seconds()))


def _require_public(host: str, port: int) -> None:
    """Refuse (ConfigError) a host that resolves to an address that is not public."""
    try:
        addresses = transport.resolve(host, port)
    except (OSError, UnicodeError):
        return
    if not all(transport.is_public(ip) for _, ip, _ in addresses):
        raise ConfigError("the pointer's endpoint leads to an address that is not public; it was not followed")


def _plain_endpoint(endpoint: str, *, local: bool) -> tuple[str, int]:
    """Host and port of an endpoint that is nothing but scheme, host and port."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("the bucket's endpoint is not a URL") from None
    if parts.scheme not in (("https", "http") if local else ("https",)):
        raise ConfigError("the bucket's endpoint must be an https URL" + (" (or http: local run)" if local else ""))
    if not host or parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError("the bucket's endpoint must be https://HOST[:PORT] and nothing else")
    return host, port or (443 if parts.scheme == "https" else 80)
