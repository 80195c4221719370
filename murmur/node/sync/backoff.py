"""Back off after rounds that broke off, and say why they did.

A node never ends by itself for its bucket or its chain: a token may be renewed, a bill paid, a quota raised, a node of
the chain mended, and the node goes on with the next round.
"""

from contextlib import suppress

from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble, Troubles, of_chain, of_own_bucket
from murmur.protocol import keys
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.ports import Bucket, Time

PAUSE_SECONDS = 1.0
"""Pause after a round that broke off: a server that refuses at once must not be called in a tight loop."""
LONGEST_PAUSE = 0.05
"""Longest pause between two tries that fail for one cause, as a fraction of a round."""
_TRY_SECONDS = 10.0
_OURS = (About.BUCKET, About.WORK, About.HOTKEY)
"""What a whole round proves to be in order."""
_DELAYS = (About.CHAIN, About.CLOCK, About.BUCKET)
_CALLS = ("chain_refuses", "posts_lost", "posts_used_up", "not_registered", "no_money")
"""Refusals of the chain, which a whole round proves to be over."""


class Backoff:
    """The failures in a node's rounds. `bucket`: its own, `where`: in words. `round_seconds`: planned length of a
    round."""

    def __init__(self, bucket: Bucket, where: str, round_seconds: float, troubles: Troubles, time: Time) -> None:
        self._bucket, self._where, self._troubles, self._time = bucket, where, troubles, time
        self._longest = max(PAUSE_SECONDS, LONGEST_PAUSE * round_seconds)
        self._try_seconds = min(_TRY_SECONDS, self._longest)  # a store that hangs must not cost the round's deadlines
        self._pause, self._last = PAUSE_SECONDS, ""
        """The last pause, and the cause before it."""
        self._failed = False
        """Whether something has failed in this round that did not break it off."""

    def pause_after(self, round: int, fault: ChainError | StorageError) -> None:
        """Say why the round broke off, and pause before the next try: the longer, the oftener one cause has come."""
        cause = self.failed(round, fault)
        self._pause = min(2 * self._pause, self._longest) if cause == self._last else PAUSE_SECONDS
        self._last = cause
        self._time.sleep(self._pause)

    def failed(self, round: int, fault: ChainError | StorageError) -> str:
        """Say why something failed; return the cause."""
        trouble = self._why(fault)
        self.tell(round, trouble)
        return trouble.cause

    def tell(self, round: int, trouble: Trouble) -> None:
        """Say what failed in this round. Work that is late in a round in which chain, bucket or clock were in
        trouble is late because of that."""
        self._failed = True
        if trouble.cause != "too_slow" or not self._troubles.lately(*_DELAYS):
            self._troubles.tell(round, trouble)

    def passed(self, round: int) -> None:
        """Note that a round was played to its end: what was wrong is mended, unless something failed in it."""
        if not self._failed:
            self._last = ""
            for about in _OURS:
                self._troubles.mended(round, about)
            self._troubles.mended(round, About.CHAIN, *_CALLS)
        self._failed = False

    def _why(self, fault: ChainError | StorageError) -> Trouble:
        """Return the cause. A StorageError may be of our own bucket or of another's: ours shows by a trial write."""
        if isinstance(fault, ChainError):
            return of_chain(fault)
        try:
            self._bucket.put(keys.trial(), bytes(32), timeout_seconds=self._try_seconds)
        except StorageError as own:
            return of_own_bucket(own, self._where)
        with suppress(StorageError):
            self._bucket.delete(keys.trial(), timeout_seconds=self._try_seconds)
        return Trouble("broke_off", str(fault))
