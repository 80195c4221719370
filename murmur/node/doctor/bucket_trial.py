"""The proof, before a node posts anything on chain, that its published pointer reads its bucket and does no more."""

from loguru import logger

from murmur.node.config.settings import PUBLIC_URL, READ_KEY, WRITE_KEY
from murmur.node.config.settings_sources import variable_of
from murmur.node.doctor.finding import FailedCheck
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.ports import Bucket, Time
from murmur.protocol.types import Pointer, PublicPointer
from storage.published import Why, try_published
from storage.realtime import REAL
from storage.s3 import open_published

TRY_SECONDS = 60.0
RETRY_SECONDS = 5.0

_NAME = variable_of("bucket.name")
_BUCKET = f"{_NAME} and {variable_of('bucket.endpoint')}"
_WRITE_ID, _WRITE_SECRET = WRITE_KEY.split(" and ")
_READ_ID, _READ_SECRET = READ_KEY.split(" and ")
_TO_FIX = {
    Why.NO_BUCKET: ("the bucket does not exist", f"check {_BUCKET}, or create the bucket"),
    Why.OWNER_UNKNOWN: (f"the server does not know {_WRITE_ID}", f"copy it again from your token, or check {_BUCKET}"),
    Why.OWNER_SECRET: (
        f"{_WRITE_SECRET} is not the secret of {_WRITE_ID}",
        f"copy both again from one token: {WRITE_KEY}",
    ),
    Why.OWNER_REFUSED: (
        f"{WRITE_KEY} may not write, or not delete",
        f"check {_NAME}; if it is right, give a token that reads and writes this bucket",
    ),
    Why.SWAPPED: (
        f"{READ_KEY}, which is public, may write, but {WRITE_KEY} may not",
        "exchange the tokens",
    ),
    Why.READER_UNKNOWN: (
        f"the server does not know {_READ_ID}, so peers could not read",
        "copy it again from your read-only token, or make a new one if it was revoked. A new one may need a minute",
    ),
    Why.READER_SECRET: (
        f"{_READ_SECRET} is not the secret of {_READ_ID}, so peers could not read",
        f"copy both again from one token: {READ_KEY}",
    ),
    Why.UNREADABLE: (
        f"{READ_KEY} may not read the bucket, so peers could not",
        f"give a token that may read {_NAME}. One that was made a moment ago may need a minute",
    ),
    Why.ELSEWHERE: (f"{READ_KEY} do not read what {WRITE_KEY} wrote a moment ago", f"check {_BUCKET}"),
    Why.WRITABLE: (
        f"{READ_KEY}, which is public, may also write or delete, so anyone could",
        f"give a token that may only read: {READ_KEY}",
    ),
}
_WRITABLE_BY_ALL = f"at {PUBLIC_URL} anyone may write or delete", "make the bucket public for reading only"
_UNREADABLE_BY_ALL = (
    f"at {PUBLIC_URL} the bucket is not public",
    "make it public, or check the address",
)
_TO_FIX_PUBLIC = _TO_FIX | {
    Why.SWAPPED: _WRITABLE_BY_ALL,
    Why.READER_UNKNOWN: _UNREADABLE_BY_ALL,
    Why.READER_SECRET: _UNREADABLE_BY_ALL,
    Why.UNREADABLE: _UNREADABLE_BY_ALL,
    Why.ELSEWHERE: (
        f"at {PUBLIC_URL} the object just written to {_NAME} cannot be read",
        "check the address; if it is right, a cache before the bucket has to heed Cache-Control and must not keep that "
        "an object is missing",
    ),
    Why.WRITABLE: _WRITABLE_BY_ALL,
}


def try_own(
    bucket: Bucket,
    pointer: Pointer | PublicPointer,
    *,
    local: bool,
    timeout_seconds: float = TRY_SECONDS,
    time: Time = REAL,
) -> None:
    """Check that `pointer` reads `bucket`, our own, and can do nothing else to it. Raises Fault for a pointer that must
    not be published, and StorageError for a store that does not answer."""
    reader = open_published(pointer, local=local)
    unfit = try_published(bucket, reader, timeout_seconds=timeout_seconds, time=time)
    if unfit is not None:
        what, fix = (_TO_FIX_PUBLIC if isinstance(pointer, PublicPointer) else _TO_FIX)[unfit.why]
        raise FailedCheck(f"{what} ({unfit.detail})" if unfit.detail else what, fix)


def require_read_only(bucket: Bucket, pointer: Pointer | PublicPointer, *, local: bool, time: Time = REAL) -> None:
    """Call `try_own` until the store answers. Raises ConfigError for a pointer that must not be published."""
    while True:
        try:
            return try_own(bucket, pointer, local=local, time=time)
        except FailedCheck as fault:
            raise ConfigError(
                f"the published access to the bucket does not work: {fault}. Nothing was put on chain. To fix "
                f"it: {fault.fix}"
            ) from None
        except StorageError as fault:
            logger.warning(
                "cannot test the published access to our bucket ({fault}): trying again every {seconds} s; "
                "nothing goes on chain before",
                fault=str(fault),
                seconds=int(RETRY_SECONDS),
            )
            time.sleep(RETRY_SECONDS)
