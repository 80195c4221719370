"""Whether the final head that a node sees is the chain's present one: it may stand still, or be old, or this machine's
clock may be wrong.

A chain node that lags shows every deadline late, and looks like one that works. The chain's own timestamps tell, by
this machine's clock; the store's clock tells which of the two is wrong. For people: no decision uses it.
"""

from collections import deque
from collections.abc import Callable

from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.errors import StorageError
from murmur.protocol.ports import Time
from murmur.protocol.types import Header

STILL_BLOCKS, STILL_SECONDS = 10, 30.0
"""A head that stands for so many blocks' time, and for so long, is told."""
OLD_BLOCKS, OLD_SECONDS = 6, 20.0
"""A final block is two or three blocks old on a chain in order. An older one, by both, is told."""
BACKENDS = 4
"""Behind one address there may be so many chain nodes, some of them a block behind: heads that come again have not
moved."""
HEADS = ("chain_halted", "chain_behind", "clock_wrong")
"""The causes that a head shows."""
CLOCK_SECONDS = 60.0
"""Clocks are set right by less."""


class HeadWatch:
    """The final heads that one node has seen. store_time: the store's clock in Unix seconds, None where it says none;
    it is asked only when a head looks old, and may raise StorageError."""

    def __init__(self, block_seconds: float, time: Time, store_time: Callable[[], float | None]) -> None:
        self._time, self._store_time = time, store_time
        self._still = max(STILL_SECONDS, STILL_BLOCKS * block_seconds)
        self._old = max(OLD_SECONDS, OLD_BLOCKS * block_seconds)
        self._highest, self._moved_at = -1, 0.0
        self._recent: deque[int] = deque(maxlen=BACKENDS)

    def look(self, head: Header) -> Trouble | None:
        """Return what is wrong with the head that was read just now, or with this machine's clock; None where nothing
        is."""
        now = self._time.now()
        if head.block not in self._recent:
            self._recent.append(head.block)
            self._moved_at = now
        self._highest = max(self._highest, head.block)
        if head.block + OLD_BLOCKS < self._highest:  # two threads may look, each a block apart
            return Trouble("chain_behind", f"it shows block {head.block} as final, after block {self._highest}")
        stands, age = now - self._moved_at, self._time.wall() - head.time
        if stands > self._still:
            return Trouble("chain_halted", f"block {head.block} has been the last one for {stands:.0f} s")
        # One that stands was not old when it came: it may be followed by the next at any moment.
        if -CLOCK_SECONDS <= age - stands <= self._old:
            return None
        off = self._off()
        if off is not None and abs(off) > CLOCK_SECONDS:
            return Trouble("clock_wrong", f"{_apart(off)} the store's")
        if age < -CLOCK_SECONDS:
            return None if off is not None else Trouble("clock_wrong", f"{_apart(age)} the chain's newest final block")
        age -= off or 0.0  # by the store's clock: ours need not be exact
        if age - stands <= self._old:
            return None
        whose = "" if off is not None else ", or this machine's clock is ahead: the store does not say"
        return Trouble("chain_behind", f"its newest final block, {head.block}, is {age:.0f} s old{whose}")

    def _off(self) -> float | None:
        """Return by how many seconds this machine's clock is ahead of the store's; None where that is not known."""
        try:
            date = self._store_time()
        except StorageError:
            return None
        return None if date is None else self._time.wall() - date


def _apart(seconds: float) -> str:
    told = f"{abs(seconds):.0f} s" if abs(seconds) < 600 else f"{abs(seconds) / 60:.0f} minutes"
    return f"it is {told} {'ahead of' if seconds > 0 else 'behind'}"
