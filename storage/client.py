"""The boto3 client of all buckets: its settings (docs/decisions/0006-storage-settings.md), its requests through our
transport, and the retry rule.

The only module that imports boto3, and only when a bucket is opened. May not know which operation is requested.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer, PublicPointer
from storage import transport
from storage.deadline import READ_SECONDS, current_deadline, note_failure, remaining_seconds
from storage.transport import Interrupted, Transport

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
    from botocore.session import Session

REGION = "auto"
PUBLIC = "public"
"""Placeholder for the bucket's name in the URLs that boto3 builds for a public bucket; removed before sending."""

_ATTEMPTS = 6
_BACKOFF_SECONDS = 0.25
_BACKOFF_MAX_SECONDS = 10.0
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_ASKED_ABOUT_FIRST = "CompleteMultipartUpload"
"""The one operation that is not retried blindly: the caller first checks whether it already took effect."""

_PLACEHOLDER = "https://bucket.invalid"
"""Endpoint of the shared client. Each request leaves for its bucket's own."""


@dataclass(frozen=True, slots=True)
class _Destination:
    """Where the requests of one bucket go, and how they are signed: an S3SigV4Auth, None for a public bucket."""

    endpoint: str
    exchange: Transport
    auth: Any


class _Current(threading.local):
    """The destination of the request that this thread makes."""

    destination: _Destination | None = None


_current = _Current()
_client_lock = threading.Lock()
_shared_client: Any = None


class Client:
    """boto3's operations on one bucket, as methods of the same names and arguments. Thread-safe.

    All buckets share one boto3 client, which takes 28 ms and 1 MB to make: strangers may publish a new pointer each in
    every round. boto3 builds requests for a placeholder; endpoint and signature are this bucket's.
    """

    def __init__(self, pointer: Pointer | PublicPointer, exchange: Transport) -> None:
        """Raises ConfigError where boto3 refuses its own configuration."""
        from botocore.auth import S3SigV4Auth
        from botocore.credentials import Credentials

        self._client = _the_client()
        auth = None
        if isinstance(pointer, Pointer):
            auth = S3SigV4Auth(Credentials(pointer.access_key, pointer.secret_key), "s3", REGION)
        self._destination = _Destination(pointer.endpoint.rstrip("/"), exchange, auth)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        call = getattr(self._client, operation)

        def ask(**arguments: Any) -> Any:
            _current.destination = self._destination
            try:
                return call(**arguments)
            finally:
                _current.destination = None

        return ask


def _the_client() -> Any:
    """Return the one boto3 client of this process. Raises ConfigError."""
    global _shared_client
    with _client_lock:
        if _shared_client is None:
            _shared_client = _open_client()
        return _shared_client


def _open_client() -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    config = Config(
        region_name=REGION,
        signature_version=UNSIGNED,  # _address signs
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # boto3's own retries sleep past a deadline; _retry_delay below replaces them.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=transport.CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        s3={"addressing_style": "path", "us_east_1_regional_endpoint": "regional"},
    )
    try:
        # Keys of nobody: without any, boto3 would look for some, in files and at a cloud's addresses.
        client = boto3.session.Session("unused", "unused", botocore_session=own_session()).client(
            "s3", endpoint_url=_PLACEHOLDER, config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"boto3 refuses its own configuration ({type(error).__name__})") from None
    events = client.meta.events
    # R2 does not answer Expect: 100-continue; boto3 waits a second for it before every upload.
    events.unregister("before-call.s3", add_expect_header)
    events.register_last("before-call.s3", _stay)
    events.register_last("request-created.s3", _address)
    events.register_last("before-send.s3", _send)
    events.register_first("needs-retry.s3", _retry_delay)
    return client


def own_session() -> "Session":
    """Return a session that reads nothing of the machine's own settings for AWS, neither files nor variables: a node
    uses none of them, and a profile that is unknown or a file that is damaged would end it."""
    from botocore.session import Session

    session = Session()
    files = ("config_file", "credentials_file")
    for name, (_, _, default, _) in list(session.session_var_map.items()):
        session.session_var_map[name] = (None, None, os.devnull if name in files else default, None)
    return session


def may_pass(error: Exception) -> bool:
    """Whether a retry of a request that failed with this error may succeed."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _RETRIED_STATUS
    return isinstance(error, Interrupted)


def pause(attempt: int, after: Exception | None = None) -> None:
    """Sleep before the next attempt, never past the deadline. Raises DeadlinePassed."""
    note_failure(after)
    time.sleep(min(_delay(attempt), remaining_seconds()))


def _stay(context: dict[str, Any], **_: Any) -> None:
    """Let no answer name another region: boto3 would keep it for all buckets of that name, on whichever server."""
    context["s3_redirect"]["redirected"] = True


def _address(request: "AWSRequest", **_: Any) -> None:
    """Turn a request for the placeholder into one for this thread's bucket, and sign it. boto3 builds each retry
    anew."""
    destination = _destination()
    path = str(request.url).removeprefix(_PLACEHOLDER)
    if destination.auth is None:
        path = path.removeprefix(f"/{PUBLIC}")
        path = path if path.startswith("/") else "/" + path
    request.url = destination.endpoint + path
    if destination.auth is not None:
        destination.auth.add_auth(request)


def _send(request: "AWSPreparedRequest", **_: Any) -> "AWSResponse":
    """Send boto3's request through our transport."""
    from botocore.awsrequest import AWSResponse

    answer = _destination().exchange.send(
        request.method, request.url, request.headers, request.body, stream=bool(request.stream_output)
    )
    raw: Any = answer.stream if answer.stream is not None else _Held(answer.body)
    headers: Any = answer.headers
    return AWSResponse(request.url, answer.status, headers, raw)


def _destination() -> _Destination:
    assert _current.destination is not None
    return _current.destination


class _Held(BytesIO):
    """A body already in memory, with the method that botocore reads it by."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _retry_delay(
    attempts: int, operation: Any = None, response: Any = None, caught_exception: Any = None, **_: Any
) -> float | None:
    """Answer botocore's retry question: seconds to sleep first, or None for no retry. Never past the deadline."""
    from botocore.exceptions import ClientError

    note_failure(None)
    if attempts >= _ATTEMPTS or operation.name == _ASKED_ABOUT_FIRST:
        return None
    if caught_exception is not None:
        if not may_pass(caught_exception):
            return None
    elif response is None or response[0].status_code not in _RETRIED_STATUS:
        return None
    delay = _delay(attempts)
    until = current_deadline()
    if until is not None and time.monotonic() + delay >= until:
        return None
    note_failure(caught_exception or ClientError(response[1], operation.name))
    return delay


def _delay(attempt: int) -> float:
    """Return the exponential back-off with jitter, in seconds."""
    ceiling = min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2.0**attempt)
    return ceiling * (0.5 + secrets.randbelow(1 << 20) / (1 << 21))
