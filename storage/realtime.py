"""The time that real nodes live in: this machine's clock and threads (protocol/ports.py, Time)."""

import threading
import time
from collections.abc import Callable


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
