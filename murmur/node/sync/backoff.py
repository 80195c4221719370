"""Back off after interrupted rounds and refusals by our own bucket: first a pause and a warning, at last an end.

With a revoked or expired token a node would run for days and every round would be worthless. One refusal proves
nothing: a store may fail so for minutes.
"""

from collections.abc import Callable
from contextlib import suppress

from loguru import logger

from murmur.node.config.settings import WRITE_KEY
from murmur.node.config.settings_sources import variable_of
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, BucketMissing, ChainError, ConfigError, StorageError
from murmur.protocol.ports import Bucket, Time

PAUSE_SECONDS = 1.0
"""Pause after an interrupted round: a server that refuses at once must not be called in a tight loop."""
LONGEST_PAUSE = 0.05
"""Longest pause between two tries of a bucket that refuses, as a fraction of a round."""
ROUNDS = 3
"""After this many consecutive rounds in which our own bucket refused us, the operator has to fix it."""
_TRY_SECONDS = 10.0
_REFUSALS = (AccessDenied, BucketMissing)


class Backoff:
    """The failures in a node's rounds. `bucket`: its own. `round_seconds`: planned length of a round. `now` returns the
    chain's current round, which may be ahead of the state's; it may raise ChainError."""

    def __init__(self, bucket: Bucket, round_seconds: float, now: Callable[[], int], time: Time) -> None:
        self._bucket, self._now, self._time = bucket, now, time
        self._longest = max(PAUSE_SECONDS, LONGEST_PAUSE * round_seconds)
        self._pause = PAUSE_SECONDS
        self._refused: list[int] = []
        """Consecutive rounds in which our bucket has refused us."""

    def pause_after(self, round: int, fault: ChainError | StorageError) -> None:
        """Log the failure and pause before the next try. If our own bucket refuses us, pauses grow and it is logged
        once a round. Raises ConfigError after ROUNDS consecutive rounds of refusals."""
        before = self._refused[-1:]
        if self.refused(fault):
            same = before == self._refused[-1:]
            self._pause = min(2 * self._pause, self._longest) if same else PAUSE_SECONDS
        else:
            self._pause = PAUSE_SECONDS
            logger.warning("round {round} broke off: {fault}", round=round, fault=str(fault))
        self._time.sleep(self._pause)

    def refused(self, fault: ChainError | StorageError) -> bool:
        """Whether `fault` is a refusal by our own bucket; logged once a round. Raises ConfigError as above."""
        if not isinstance(fault, _REFUSALS) or not self._refuses_us():
            return False
        try:
            round = self._now()
        except ChainError:
            return True
        if round in self._refused[-1:]:
            return True
        self._refused = [*self._refused, round] if round - 1 in self._refused[-1:] else [round]
        if len(self._refused) >= ROUNDS:
            raise ConfigError(
                f"our own bucket has refused us for {ROUNDS} rounds in a row ({fault}): peers get nothing from "
                f"this node. The token was revoked or has expired, or the bucket is gone: check {WRITE_KEY} "
                f"and {variable_of('bucket.name')} with `murmur doctor`. The saved state stays"
            )
        logger.error(
            "round {round}: our own bucket refuses us ({fault}), so this round is lost. After {rounds} such "
            "rounds in a row this node stops. Check its token: murmur doctor",
            round=round,
            fault=str(fault),
            rounds=ROUNDS,
        )
        return True

    def _refuses_us(self) -> bool:
        """Whether our own bucket refuses a write: the refusal may have been another node's bucket's."""
        try:
            self._bucket.put(keys.trial(), bytes(32), timeout_seconds=_TRY_SECONDS)
        except _REFUSALS:
            return True
        except StorageError:
            return False
        with suppress(StorageError):
            self._bucket.delete(keys.trial(), timeout_seconds=_TRY_SECONDS)
        return False
