"""Deletion of what old rounds have left in a cluster's bucket."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.protocol import keys
from murmur.protocol.errors import StorageError
from storage.s3 import RangedBucket

_ROUND_DIGITS = 8
_LISTED = 256
_CALLS = 16


def delete_payloads(ledger: Ledger, before: int) -> None:
    """Delete all payloads and claims of rounds before this one, and abort those rounds' unfinished uploads: no member
    needs them any more. Raises StorageError."""
    _delete_before(ledger.bucket, keys.all_claims(ledger.run), before, None, timeout_seconds=CALL_SECONDS)
    uploads = partial(keys.payload, ledger.run)
    _delete_before(ledger.bucket, keys.payloads(ledger.run), before, uploads, timeout_seconds=CALL_SECONDS)


def delete_states(ledger: Ledger, before: int) -> None:
    """Delete the files of the checkpoints of rounds before this one, whoever sent them, and abort their unfinished
    uploads. Raises StorageError."""
    uploads = partial(keys.states, ledger.run)
    _delete_before(ledger.bucket, keys.all_states(ledger.run), before, uploads, timeout_seconds=CALL_SECONDS)


def _delete_before(
    bucket: RangedBucket, prefix: str, round: int, uploads: Callable[[int], str] | None, *, timeout_seconds: float
) -> None:
    """Delete the objects under the prefix whose keys go on with a round before this one: at most 4,096, since there may
    be more after an outage of all members, and a checkpoint of 72 B parameters has 322. uploads: of a round, the prefix
    whose unfinished uploads are aborted. timeout_seconds: of each call. Raises StorageError."""
    for _ in range(_CALLS):
        if _delete_listed(bucket, prefix, round, uploads, timeout_seconds) < _LISTED:
            return


def _delete_listed(
    bucket: RangedBucket, prefix: str, before: int, uploads: Callable[[int], str] | None, timeout_seconds: float
) -> int:
    rounds, deleted = set[int](), 0
    for key in bucket.list(prefix, max_keys=_LISTED, timeout_seconds=timeout_seconds):
        number = key.removeprefix(prefix)[:_ROUND_DIGITS]
        if not number.isdecimal():  # a stranger's object, which sorts before ours
            continue
        if int(number) >= before:
            break
        if uploads is not None and int(number) not in rounds:
            with suppress(StorageError):  # a key that may not list uploads deletes all the same
                bucket.abort_unfinished(uploads(int(number)), timeout_seconds=timeout_seconds)
        rounds.add(int(number))
        bucket.delete(key, timeout_seconds=timeout_seconds)
        deleted += 1
    return deleted
