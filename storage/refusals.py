"""Translation of a server's refusals and failures into our errors, in our own words.

An error names the request and the status; it never carries text of the server or a secret. May not send requests.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cache

from murmur.protocol.errors import (
    UNKNOWN_KEY,
    WRONG_SECRET,
    AccessDenied,
    BucketMissing,
    NotSupported,
    ObjectMissing,
    ObjectReplaced,
    StorageError,
)
from storage import transport
from storage.transport import DeadlinePassed, TransportError

CLOCK_SECONDS = 300.0
"""Clock difference above which we blame the clock: servers refuse a signature that is 15 minutes off, some at 5."""

_DENIALS = {
    UNKNOWN_KEY: "the server knows no such access key",
    WRONG_SECRET: "the secret key does not belong to this access key",
}

_FULL = "the bucket or its account is full, or over its quota: free room in it, or raise the quota"
_THROTTLED = "the server asks for fewer requests: it or the account is at its limit for now"
_EXPIRED = "the token has expired: make a new one"
_SUSPENDED = "the account is suspended or unpaid: see its provider"
_CODES: dict[str, tuple[type[StorageError], str]] = {
    **dict.fromkeys(
        ("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "NotEnoughSpace"), (StorageError, _FULL)
    ),
    **dict.fromkeys(
        ("SlowDown", "TooManyRequests", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
        (StorageError, _THROTTLED),
    ),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired", "InvalidToken"), (AccessDenied, _EXPIRED)),
    **dict.fromkeys(
        ("AllAccessDisabled", "AccountProblem", "NotSignedUp", "UserSuspended"), (AccessDenied, _SUSPENDED)
    ),
}
"""What stores mean, by their code, whatever its status. The code says more than that: a quota's is 403 in Ceph, 507 in
Swift, and 400 elsewhere."""
_STATUSES: dict[int, tuple[type[StorageError], str]] = {
    402: (AccessDenied, _SUSPENDED),
    429: (StorageError, _THROTTLED),
    503: (StorageError, "the server is busy, throttles us, or is being mended"),
    507: (StorageError, _FULL),
}
"""The same, where no code says it."""

NO_BUCKET = "there is no such bucket; check its name and the endpoint"


@contextmanager
def asking(verb: str, timeout_seconds: float) -> Iterator[None]:
    """Run boto3 calls within `timeout_seconds` and translate their errors into ours.

    The original may quote the server, so it is not chained. An OSError is ours (a file to read or write): socket errors
    are TransportErrors by now.
    """
    try:
        with transport.deadline(timeout_seconds):
            yield
    except failures() as error:
        raise _translated(verb, error) from None


@cache
def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that boto3 raises for a server's failure. Its parsers expect honest answers and raise the
    built-in ones."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    parsing = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, SyntaxError)
    return (TransportError, BotoCoreError, ClientError, ResponseParserError, *parsing)


def _translated(verb: str, error: Exception) -> StorageError:
    """Return our error for one of boto3's. Only the status and codes that we know by name are taken from the answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        facts = response.get("ResponseMetadata", {})
        status = facts.get("HTTPStatusCode", 0)
        code = response.get("Error", {}).get("Code")
        code = code if isinstance(code, str) else None
        if (known := _CODES.get(code or "") or _STATUSES.get(status)) is not None:
            kind, why = known
            return kind(f"{verb}: {why} ({int(status)})")
        if status in (401, 403, 405):  # 405: from a file server that allows no changes
            why = _why_denied(status, code, facts.get("HTTPHeaders", {}).get("date"))
            return AccessDenied(f"{verb}: {why}", code if code in _DENIALS else None)
        if status == 404:
            if code == "NoSuchBucket":
                return BucketMissing(f"{verb}: {NO_BUCKET}")
            return ObjectMissing(f"{verb}: there is no such object or bucket")
        if status == 412:
            return ObjectReplaced(f"{verb}: the object is another version by now")
        if status == 416:
            return ObjectReplaced(f"{verb}: the object is shorter than announced: it was replaced meanwhile")
        kind = NotSupported if status in (400, 501) else StorageError
        return kind(f"{verb}: the server answered with status {int(status)}")
    if isinstance(error, DeadlinePassed):
        return StorageError(f"{verb}: out of time") if error.after is None else _translated(verb, error.after)
    if isinstance(error, TransportError):
        return StorageError(f"{verb}: {error}")
    return StorageError(f"{verb}: the server's answer can't be used ({type(error).__name__})")


def _why_denied(status: int, code: str | None, date: str | None) -> str:
    """Return the reason for a refusal. The answer to HEAD has no body, so the clock is always compared."""
    off = 0.0 if date is None else abs(time.time() - parsedate_to_datetime(date).timestamp())
    if off > CLOCK_SECONDS:
        return (
            f"this machine's clock is {off / 60:.0f} minutes off the server's, which therefore refuses us; set it (NTP)"
        )
    if code == "RequestTimeTooSkewed":
        return "the server says that this machine's clock is wrong; set it (NTP)"
    return _DENIALS.get(code or "", f"the credential is unknown or may not do this ({status})")
