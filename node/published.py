"""The proof, before a node says anything on chain, that the key which it publishes only reads its bucket."""

from loguru import logger

from node.config import variable_of
from protocol.errors import ConfigError, StorageError
from protocol.ports import Bucket, Time
from protocol.types import Pointer
from storage.published import Unfit, try_published
from storage.realtime import REAL
from storage.s3 import open_published

TRY_SECONDS = 60.0
RETRY_SECONDS = 5.0

_BUCKET = f"{variable_of('bucket.name')} and {variable_of('bucket.endpoint')}"
_OURS = f"{variable_of('bucket.access_key')} and {variable_of('bucket.secret_key')}"
_THEIRS = f"{variable_of('bucket.read_access_key')} and {variable_of('bucket.read_secret_key')}"
_TO_FIX = {
    Unfit.NO_BUCKET: f"there is no such bucket: check {_BUCKET}",
    Unfit.OWNER_REFUSED: (
        f"{_OURS} may not write to the bucket, or not delete: they have to be a token that reads and writes objects "
        f"of this bucket ({variable_of('bucket.name')})"
    ),
    Unfit.SWAPPED: (
        f"the tokens are swapped: {_THEIRS}, which everybody will see, may write, and {_OURS} may not. Exchange them"
    ),
    Unfit.UNREADABLE: (
        f"{_THEIRS} may not read the bucket, so nobody could: give a token that may read objects of this bucket "
        f"({variable_of('bucket.name')}). One that was made a moment ago may need a minute"
    ),
    Unfit.ELSEWHERE: (
        f"{_THEIRS} read something else than {_OURS} wrote a moment ago: check {_BUCKET}, "
        "and that nothing between keeps old answers"
    ),
    Unfit.WRITABLE: (
        f"{_THEIRS}, which everybody will see, may also write or delete, and so could anybody: give a token that may "
        "only read"
    ),
}


def require_read_only(bucket: Bucket, pointer: Pointer, *, local: bool, time: Time = REAL) -> None:
    """Return once `pointer` is known to read `bucket`, our own, and to do nothing else to it; a store that does not
    answer is asked again. Raises ConfigError, with the setting to change, for a pointer that must not be published."""
    reader = open_published(pointer, local=local)
    while True:
        try:
            unfit = try_published(bucket, reader, timeout_seconds=TRY_SECONDS, time=time)
        except StorageError as fault:
            logger.warning(
                "whether the published key only reads our bucket cannot be tried ({fault}): trying again every "
                "{seconds} s; nothing goes on chain before",
                fault=str(fault),
                seconds=int(RETRY_SECONDS),
            )
            time.sleep(RETRY_SECONDS)
            continue
        if unfit is None:
            return
        raise ConfigError(f"the bucket's published key was tried, and {_TO_FIX[unfit]}. Nothing was put on chain")
