"""One deadline for everything that a thread does with a store, and the failure that a retry was to overcome."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

READ_SECONDS = 30.0
"""Longest wait for one read where there is no deadline."""

_thread = threading.local()


class TransportError(Exception):
    """The exchange failed and would fail again: a malformed or forbidden answer. Contains no text of the server."""


class DeadlinePassed(TransportError):
    """The caller's time is over. `after` is the failure that a retry was to overcome, the true reason, if there was
    one."""

    def __init__(self, after: Exception | None) -> None:
        super().__init__("out of time")
        self.after = after


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Bound all exchanges of this thread; an outer, earlier deadline stays in force."""
    outer: float | None = getattr(_thread, "until", None)
    failure = last_failure()
    until = time.monotonic() + seconds
    set_deadline(until if outer is None else min(until, outer))
    note_failure(None)
    try:
        yield
    finally:
        set_deadline(outer)
        note_failure(failure)


def set_deadline(until: float | None) -> None:
    """Adopt another thread's deadline (`time.monotonic()` seconds): the initializer of a transfer's workers."""
    _thread.until = until


def current_deadline() -> float | None:
    until: float | None = getattr(_thread, "until", None)
    return until


def note_failure(error: Exception | None) -> None:
    """Keep the failure that this thread is about to retry: should its time end first, this is why."""
    _thread.failure = error


def last_failure() -> Exception | None:
    failure: Exception | None = getattr(_thread, "failure", None)
    return failure


def remaining_seconds() -> float:
    """Return the seconds until this thread's deadline. Raises DeadlinePassed when none are left."""
    until = current_deadline()
    left = READ_SECONDS if until is None else until - time.monotonic()
    if left <= 0:
        raise DeadlinePassed(last_failure())
    return left
