"""The proof, before a node says anything on chain, that what it publishes of its bucket reads it and does no more."""

from loguru import logger

from node.config import PUBLIC_URL, READ_KEY, WRITE_KEY, variable_of
from protocol.errors import ConfigError, StorageError
from protocol.ports import Bucket, Time
from protocol.types import Pointer, PublicPointer
from storage.published import Why, try_published
from storage.realtime import REAL
from storage.s3 import open_published

TRY_SECONDS = 60.0
RETRY_SECONDS = 5.0

_NAME = variable_of("bucket.name")
_BUCKET = f"{_NAME} and {variable_of('bucket.endpoint')}"
_TO_FIX = {
    Why.NO_BUCKET: f"there is no such bucket: check {_BUCKET}",
    Why.OWNER_REFUSED: f"{WRITE_KEY} may not write, or not delete: give a token that reads and writes {_NAME}",
    Why.SWAPPED: f"{READ_KEY}, which everybody will see, may write, and {WRITE_KEY} may not: exchange the tokens",
    Why.UNREADABLE: (
        f"{READ_KEY} may not read the bucket, so nobody could: give a token that may read {_NAME}. One that was made a "
        "moment ago may need a minute"
    ),
    Why.ELSEWHERE: f"{READ_KEY} do not read what {WRITE_KEY} wrote a moment ago: check {_BUCKET}",
    Why.WRITABLE: (
        f"{READ_KEY}, which everybody will see, may also write or delete, and so could anybody: give a token that may "
        "only read"
    ),
}
_WRITABLE_BY_ALL = f"at {PUBLIC_URL} everybody may write or delete: let the bucket be public for reading only"
_TO_FIX_PUBLIC = _TO_FIX | {
    Why.SWAPPED: _WRITABLE_BY_ALL,
    Why.UNREADABLE: f"at {PUBLIC_URL} the bucket may not be read by everybody: make it public, or check the address",
    Why.ELSEWHERE: (
        f"at {PUBLIC_URL} there is not what was written to {_NAME} a moment ago: check the address; if it is right, a "
        "cache before the bucket has to heed Cache-Control and must not keep that an object is missing"
    ),
    Why.WRITABLE: _WRITABLE_BY_ALL,
}


def require_read_only(bucket: Bucket, pointer: Pointer | PublicPointer, *, local: bool, time: Time = REAL) -> None:
    """Return once `pointer` is known to read `bucket`, our own, and to do nothing else to it; a store that does not
    answer is asked again. Raises ConfigError, with the setting to change, for a pointer that must not be published."""
    reader = open_published(pointer, local=local)
    while True:
        try:
            unfit = try_published(bucket, reader, timeout_seconds=TRY_SECONDS, time=time)
        except StorageError as fault:
            logger.warning(
                "what is published of our bucket cannot be tried ({fault}): trying again every "
                "{seconds} s; nothing goes on chain before",
                fault=str(fault),
                seconds=int(RETRY_SECONDS),
            )
            time.sleep(RETRY_SECONDS)
            continue
        if unfit is None:
            return
        to_fix = _TO_FIX_PUBLIC if isinstance(pointer, PublicPointer) else _TO_FIX
        detail = f" ({unfit.detail})" if unfit.detail else ""
        raise ConfigError(
            f"what is published of the bucket was tried, and {to_fix[unfit.why]}{detail}. Nothing was put on chain"
        )
