"""Back off after interrupted rounds, and while our own bucket takes no writes.

A node never ends by itself for its bucket: a token may be renewed, a bill paid, a quota raised at the store, and the
node goes on with the next round. Until then it says once a round what is wrong.
"""

from collections.abc import Callable
from contextlib import suppress

from loguru import logger

from murmur.protocol import keys
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.ports import Bucket, Time

PAUSE_SECONDS = 1.0
"""Pause after an interrupted round: a server that refuses at once must not be called in a tight loop."""
LONGEST_PAUSE = 0.05
"""Longest pause between two tries of a bucket that takes no writes, as a fraction of a round."""
_TRY_SECONDS = 10.0


class Backoff:
    """The failures in a node's rounds. `bucket`: its own. `round_seconds`: planned length of a round. `now` returns the
    chain's current round, which may be ahead of the state's; it may raise ChainError."""

    def __init__(self, bucket: Bucket, round_seconds: float, now: Callable[[], int], time: Time) -> None:
        self._bucket, self._now, self._time = bucket, now, time
        self._longest = max(PAUSE_SECONDS, LONGEST_PAUSE * round_seconds)
        self._try_seconds = min(_TRY_SECONDS, self._longest)  # a store that hangs must not cost the round's deadlines
        self._pause = PAUSE_SECONDS
        self._told = self._since = -1
        """The last round in which we said that our bucket takes no writes; the first one of these without a break."""

    def pause_after(self, round: int, fault: ChainError | StorageError) -> None:
        """Log the failure and pause before the next try. While our own bucket takes no writes, pauses grow, and it is
        logged once a round."""
        before = self._told
        if self.refused(fault):
            same = before == self._told
            self._pause = min(2 * self._pause, self._longest) if same else PAUSE_SECONDS
        else:
            self._pause = PAUSE_SECONDS
            logger.warning("round {round} broke off: {fault}", round=round, fault=str(fault))
        self._time.sleep(self._pause)

    def refused(self, fault: ChainError | StorageError) -> bool:
        """Whether our own bucket takes no writes, after this fault; logged once a round."""
        why = self._why_not() if isinstance(fault, StorageError) else None
        if why is None:
            return False
        try:
            round = self._now()
        except ChainError:
            return True
        if round == self._told:
            return True
        self._since = self._since if self._told == round - 1 else round
        self._told = round
        logger.error(
            "round {round}: our own bucket takes no writes ({fault}), so this round is lost, as are all since round "
            "{since}. Peers get nothing from this node, and nothing is paid. What to mend: murmur doctor. The node "
            "goes on by itself once it is",
            round=round,
            fault=str(why),
            since=self._since,
        )
        return True

    def _why_not(self) -> StorageError | None:
        """Return why our own bucket takes no write; None when it does: the fault may have been another's bucket's."""
        try:
            self._bucket.put(keys.trial(), bytes(32), timeout_seconds=self._try_seconds)
        except StorageError as fault:
            return fault
        with suppress(StorageError):
            self._bucket.delete(keys.trial(), timeout_seconds=self._try_seconds)
        return None
