"""Back off after rounds that broke off, and say why they did.

A node never ends by itself for its bucket or its chain: a token may be renewed, a bill paid, a quota raised, a node of
the chain mended, and the node goes on with the next round.
"""

from murmur.node.own_bucket import OwnBucket
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.trouble import Trouble, Troubles, of_chain
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.ports import Time

PAUSE_SECONDS = 1.0
"""Pause after a round that broke off: a server that refuses at once must not be called in a tight loop."""
LONGEST_PAUSE = 0.05
"""Longest pause between two tries that fail one after the other, as a fraction of a round."""
_OURS = (About.WORK, About.HOTKEY)
"""What a whole round proves to be in order."""
_DELAYS = (About.CHAIN, About.CLOCK, About.BUCKET)
_CALLS = ("chain_refuses", "posts_lost", "posts_used_up", "not_registered", "no_money")
"""Refusals of the chain, which a whole round proves to be over."""


class Backoff:
    """The failures in a node's rounds. `own`: its bucket. `round_seconds`: planned length of a round."""

    def __init__(self, own: OwnBucket, round_seconds: float, troubles: Troubles, time: Time) -> None:
        self._own, self._troubles, self._time = own, troubles, time
        self._longest = max(PAUSE_SECONDS, LONGEST_PAUSE * round_seconds)
        self._pause = 0.0
        """The last pause since a round was played without a failure."""
        self._failed = False
        """Whether something has failed in this round that did not break it off."""

    def pause_after(self, round: int, fault: ChainError | StorageError) -> None:
        """Say why the round broke off, and pause before the next try: the longer, the more have failed in a row."""
        self.failed(round, fault)
        self._pause = min(max(PAUSE_SECONDS, 2 * self._pause), self._longest)
        self._time.sleep(self._pause)

    def failed(self, round: int, fault: ChainError | StorageError) -> None:
        """Say why something failed."""
        self.tell(round, self._why(fault))

    def tell(self, round: int, trouble: Trouble) -> None:
        """Say what failed in this round. Work that is late in a round in which chain, bucket or clock were in
        trouble is late because of that."""
        self._failed = True
        if trouble.cause != "too_slow" or not self._troubles.lately(*_DELAYS):
            self._troubles.tell(round, trouble)

    def passed(self, round: int) -> None:
        """Note that a round was played to its end: what was wrong is mended, unless something failed in it."""
        if not self._failed:
            self._pause = 0.0
            for about in _OURS:
                self._troubles.mended(round, about)
            self._troubles.mended(round, About.CHAIN, *_CALLS)
        self._failed = False

    def _why(self, fault: ChainError | StorageError) -> Trouble:
        """Return the cause. A StorageError may be of our own bucket or of another's."""
        if isinstance(fault, ChainError):
            return of_chain(fault)
        return self._own.trouble(fault) if fault.own else Trouble("broke_off", str(fault))
