"""Run functions concurrently, through the node's time."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from murmur.protocol.ports import Time

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(work: Callable[[T], R], items: Sequence[T], threads: int, time: Time) -> list[R]:
    """Apply `work` to every item in at most `threads` threads. Return the results in the items' order. Raises the error
    of the first failed item in order, once all have ended."""
    done: dict[int, R] = {}
    faults: dict[int, BaseException] = {}
    following, lock = iter(range(len(items))), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                at = next(following, None)
            if at is None:
                return
            try:
                done[at] = work(items[at])
            except Exception as fault:  # noqa: BLE001 - raised where `parallel_map` was called
                faults[at] = fault

    threads = min(threads, len(items))
    if threads <= 1:
        run()
    else:
        for task in [time.start(run, f"beside-{number}") for number in range(threads)]:
            task.join()
    if faults:
        raise faults[min(faults)]
    return [done[at] for at in range(len(items))]
