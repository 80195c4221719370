"""The boto3 client of one bucket: its settings (docs/decisions/0006-storage-settings.md), its requests through our
transport, and the retry rule.

The only module that imports boto3, and only when a bucket is opened. May not know which operation is requested.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer, PublicPointer
from storage import transport
from storage.transport import Interrupted, Transport

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse

REGION = "auto"
PUBLIC = "public"
"""Placeholder for the bucket's name in the URLs that boto3 builds for a public bucket; removed before sending."""

_ATTEMPTS = 6
_BACKOFF_SECONDS = 0.25
_BACKOFF_MAX_SECONDS = 10.0
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_ASKED_ABOUT_FIRST = "CompleteMultipartUpload"
"""The one operation that is not retried blindly: the caller first checks whether it already took effect."""

_session_lock = threading.Lock()
_shared_session: "Session | None" = None


def open_client(pointer: Pointer | PublicPointer, exchange: Transport) -> Any:
    """Return a client for the pointer's endpoint and credential (if any) that sends its requests through `exchange`.
    Raises ConfigError."""
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
    events.register_last("before-send.s3", _sender(exchange, f"/{PUBLIC}" if signed is None else ""))
    events.register_first("needs-retry.s3", _retry_delay)
    return client


def may_pass(error: Exception) -> bool:
    """Whether a retry of a request that failed with this error may succeed."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _RETRIED_STATUS
    return isinstance(error, Interrupted)


def pause(attempt: int) -> None:
    """Sleep before the next attempt, never past the deadline. Raises DeadlinePassed."""
    time.sleep(min(_delay(attempt), transport.remaining_seconds()))


def _session() -> "Session":
    """Return the one session that all clients share: it caches S3's service model. Making clients from it is not
    thread-safe."""
    global _shared_session
    if _shared_session is None:
        import boto3

        _shared_session = boto3.session.Session()
    return _shared_session


def _sender(exchange: Transport, prefix: str) -> "Callable[..., AWSResponse]":
    """Return the event handler that sends boto3's requests through our transport. It removes `prefix` from their paths;
    a prefix is used only for unsigned requests."""
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
    """A body already in memory, with the method that botocore reads it by."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _retry_delay(
    attempts: int, operation: Any = None, response: Any = None, caught_exception: Any = None, **_: Any
) -> float | None:
    """Answer botocore's retry question: seconds to sleep first, or None for no retry. Never past the deadline."""
    if attempts >= _ATTEMPTS or operation.name == _ASKED_ABOUT_FIRST:
        return None
    if caught_exception is not None:
        if not may_pass(caught_exception):
            return None
    elif response is None or response[0].status_code not in _RETRIED_STATUS:
        return None
    delay = _delay(attempts)
    until = transport.current_deadline()
    return delay if until is None or time.monotonic() + delay < until else None


def _delay(attempt: int) -> float:
    """Return the exponential back-off with jitter, in seconds."""
    ceiling = min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2.0**attempt)
    return ceiling * (0.5 + secrets.randbelow(1 << 20) / (1 << 21))
