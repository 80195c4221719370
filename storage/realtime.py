"""The Time port of real nodes: this machine's clock and threads (murmur/protocol/ports.py, Time)."""

import threading
import time
from collections.abc import Callable

from murmur.protocol.ports import Time


class RealTime:
    """Time from the operating system."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


REAL = RealTime()


def seconds_until(until: float, time: Time) -> float:
    """Return the seconds left until `until` (`time.now()`), at least 0: the time-out for the next of several calls."""
    return max(0.0, until - time.now())
