"""Translation of a server's refusals and failures into our errors, in our own words.

An error names the request and the status; it never carries text of the server or a secret. May not send requests.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TypeVar

from murmur.protocol.errors import (
    UNKNOWN_KEY,
    WRONG_SECRET,
    AccessDenied,
    BucketMissing,
    NotSupported,
    ObjectMissing,
    ObjectReplaced,
    StorageCause,
    StorageError,
)
from storage.deadline import DeadlinePassed, TransportError, deadline
from storage.transport import Interrupted

CLOCK_SECONDS = 300.0
"""Clock difference above which we blame the clock: servers refuse a signature that is 15 minutes off, some at 5."""

_DENIALS = {
    UNKNOWN_KEY: (StorageCause.UNKNOWN_KEY, "the server knows no such access key"),
    WRONG_SECRET: (StorageCause.WRONG_SECRET, "the secret key does not belong to this access key"),
}

_SKEWED = "RequestTimeTooSkewed"

_MEANINGS: dict[StorageCause, tuple[type[StorageError], str]] = {
    StorageCause.FULL: (
        StorageError,
        "the bucket or its account is full, or over its quota: free room in it, or raise the quota",
    ),
    StorageCause.THROTTLED: (
        StorageError,
        "the server asks for fewer requests: it or the account is at its limit for now",
    ),
    StorageCause.EXPIRED: (AccessDenied, "the token has expired: make a new one"),
    StorageCause.SUSPENDED: (AccessDenied, "the account is suspended or unpaid: see its provider"),
}
_CODES: dict[str, StorageCause] = {
    **dict.fromkeys(
        (
            "QuotaExceeded",
            "XMinioAdminBucketQuotaExceeded",
            "InsufficientStorage",
            "XMinioStorageFull",
            "NotEnoughSpace",
        ),
        StorageCause.FULL,
    ),
    **dict.fromkeys(
        ("SlowDown", "TooManyRequests", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
        StorageCause.THROTTLED,
    ),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired", "InvalidToken"), StorageCause.EXPIRED),
    **dict.fromkeys(("AllAccessDisabled", "AccountProblem", "NotSignedUp", "UserSuspended"), StorageCause.SUSPENDED),
}
"""What stores mean, by their code, whatever its status. The code says more than that: a quota's is 403 in Ceph, 507 in
Swift, and 400 elsewhere."""
_STATUSES = {
    402: StorageCause.SUSPENDED,
    429: StorageCause.THROTTLED,
    503: StorageCause.THROTTLED,
    507: StorageCause.FULL,
}
"""The same, where no code says it."""
_BUSY = "the server is busy, throttles us, or is being mended"
"""What a 503 without a code means."""

_REGIONS = ("AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "IllegalLocationConstraintException")
_OF_A_REGION = (
    "the store takes signatures for a region of its own only, and nodes sign for `auto`, since a pointer names no "
    "region: use a store that takes any (R2, MinIO, SeaweedFS, Ceph)"
)

NO_BUCKET = "there is no such bucket"


@contextmanager
def asking(verb: str, timeout_seconds: float) -> Iterator[None]:
    """Run boto3 calls within `timeout_seconds` and translate their errors into ours.

    The original may quote the server, so it is not chained. An OSError is ours (a file to read or write): socket errors
    are TransportErrors by now.
    """
    try:
        with deadline(timeout_seconds):
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
        code = response.get("Error", {}).get("Code")
        date = facts.get("HTTPHeaders", {}).get("date")
        return _answered(verb, int(facts.get("HTTPStatusCode", 0)), code if isinstance(code, str) else "", date)
    if isinstance(error, DeadlinePassed):
        if error.after is not None:
            return _translated(verb, error.after)
        return _because(StorageCause.SILENT, StorageError(f"{verb}: out of time"))
    if isinstance(error, TransportError):
        told = StorageError(f"{verb}: {error}")
        return _because(StorageCause.UNREACHABLE, told) if isinstance(error, Interrupted) else told
    return StorageError(f"{verb}: the server's answer can't be used ({type(error).__name__})")


def _answered(verb: str, status: int, code: str, date: str | None) -> StorageError:
    """Return our error for an answer of this status and code, at the server's date."""
    if (cause := _CODES.get(code) or _STATUSES.get(status)) is not None:
        kind, why = _MEANINGS[cause]
        why = _BUSY if status == 503 and code not in _CODES else why
        return _because(cause, kind(f"{verb}: {why} ({status})"), f"{verb}: {status}")
    if status in (401, 403, 405) or code in (*_DENIALS, _SKEWED):  # 405: from a file server that allows no changes
        cause, why = _why_denied(status, code, date)
        seen = "" if cause is StorageCause.CLOCK else f"{verb}: {status}"
        return _because(cause, AccessDenied(f"{verb}: {why}", code if code in _DENIALS else None), seen)
    if code in _REGIONS:
        return NotSupported(f"{verb}: {_OF_A_REGION} ({status})")
    if status == 404:
        if code == "NoSuchBucket":
            return BucketMissing(f"{verb}: {NO_BUCKET}")
        return ObjectMissing(f"{verb}: there is no such object or bucket")
    if status == 412:
        return ObjectReplaced(f"{verb}: the object is another version by now")
    if status == 416:
        return ObjectReplaced(f"{verb}: the object is shorter than announced: it was replaced meanwhile")
    kind = NotSupported if status in (400, 501) else StorageError
    return kind(f"{verb}: the server answered with status {status}")


E = TypeVar("E", bound=StorageError)


def _because(cause: StorageCause, error: E, seen: str = "") -> E:
    error.cause, error.seen = cause, seen
    return error


def _why_denied(status: int, code: str, date: str | None) -> tuple[StorageCause, str]:
    """Return the reason for a refusal. The answer to HEAD has no body, so the clock is always compared."""
    off = 0.0 if date is None else abs(time.time() - parsedate_to_datetime(date).timestamp())
    if off > CLOCK_SECONDS:
        why = f"this machine's clock is {off / 60:.0f} minutes off the server's, which therefore refuses us; "
        return StorageCause.CLOCK, why + "set it (NTP)"
    if code == _SKEWED:
        return StorageCause.CLOCK, "the server says that this machine's clock is wrong; set it (NTP)"
    denied = StorageCause.DENIED, f"the credential is unknown or may not do this ({status})"
    return _DENIALS.get(code, denied)
