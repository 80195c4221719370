"""The time that real nodes live in: this machine's clock and threads (protocol/ports.py, Time)."""

import threading
import time
from collections.abc import Callable

from protocol.ports import Time


class RealTime:
    """Time, as the operating system has it."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    condition = staticmethod(threading.Condition)

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


REAL = RealTime()


def seconds_until(until: float, time: Time) -> float:
    """Seconds left until `until` (`time.now()`), not below 0: the time-out for the next of several calls."""
    return max(0.0, until - time.now())
