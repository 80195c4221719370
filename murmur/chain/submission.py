"""Submission by blocks: send, look in the state, send again, give up.

A connection or a pool may lose a submission, and a subscription may go silent. So the head is watched in parallel: a
submission that is in no block `UNSEEN_BLOCKS` after it was sent is looked for in the chain's state and then sent again.
A refusal by name is final. A refused signature is accepted as final only the second time, over a new session: the
runtime may have been upgraded during the first. Clocks only bound a chain that does not answer or makes no blocks.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from loguru import logger

from murmur.chain.connection import Connection
from murmur.chain.extrinsics import included
from murmur.chain.session import Session, result
from murmur.protocol.errors import ChainError

if TYPE_CHECKING:
    from bittensor.result import ExtrinsicResult

Send = Callable[[Session, bool], "Coroutine[Any, Any, ExtrinsicResult]"]
"""Sends once and waits for the block. The flag: a copy that was sent before may still be in flight."""
Written = Callable[[], int | None]
"""Reads at the head in which block the submission took effect; None when it has not."""

UNSEEN_BLOCKS = 4
GIVE_UP_BLOCKS = 12
"""Counted from the first attempt."""

_OTHER_RUNTIME = "BadProof"
"""The pool's answer to a signature for another runtime version. An open session keeps its runtime's version."""

_POLL_SECONDS = 0.5
_BACK_OFF_SECONDS = 4.0
_MUTE_TIMEOUTS = 4
"""Call time-outs after which a chain that does not answer is given up."""
_STILL_SECONDS = 60.0
"""Longest time without a new block: five blocks of a real chain."""


class Submissions:
    """Submissions over one connection, one at a time. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def submit(self, send: Send, written: Written) -> int:
        """Send until it is in a block; return the block's number. Raises ChainError with the chain's error name in
        `code` for a refusal, and without one when the outcome stays unknown."""
        with self._lock:
            watch = _Watch(self._connection)
            lost: ChainError | None = None
            renewed = False
            while (head := watch.look()) is not None:
                try:
                    return self._attempt(send, lost is not None, head, watch)
                except ChainError as error:
                    if error.code == _OTHER_RUNTIME and not renewed:
                        logger.warning("the chain refused our signature, maybe for a new runtime: signing it anew")
                        renewed = True
                        self._connection.close()
                        continue
                    block = _found(written) if lost is not None or error.code is None else None
                    if block is not None:
                        return block
                    if error.code is not None:
                        raise
                    logger.warning("cannot find our submission: reading recent blocks again", error=str(error))
                    lost = error
                while (now := watch.look()) is not None and now < head + UNSEEN_BLOCKS:
                    block = _found(written)
                    if block is not None:
                        return block
                    time.sleep(watch.pause_seconds())
            # A last check: the last copy may be on chain by now.
            block = _found(written)
            if block is not None:
                return block
            fault = ChainError(f"{watch.why}{f'; the last fault: {lost}' if lost else ''}")
            fault.cause = watch.cause
            raise fault

    def _attempt(self, send: Send, again: bool, head: int, watch: "_Watch") -> int:
        """Send at `head` and return the block that includes it. ChainError without a code when none does in time."""

        async def once(session: Session) -> "ExtrinsicResult":
            return await send(session, again)

        with self._connection.session(self._connection.timeout_seconds) as session:
            future = session.start(once)
            try:
                while True:
                    try:
                        return included(result(future, watch.pause_seconds()))
                    except TimeoutError:
                        if future.done():
                            raise
                    now = watch.look()
                    if now is None or now >= head + UNSEEN_BLOCKS:
                        raise ChainError(f"it was in no block up to {now or watch.head}, sent at {head}")
            finally:
                future.cancel()


class _Watch:
    """The head during a submission."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pause_seconds = _POLL_SECONDS
        self._first: int | None = None
        self._moved_at = self._answered_at = time.monotonic()
        self.head = -1
        self.why = ""
        """Why the submission was given up."""
        self.cause: str | None = None
        """See ChainError."""

    def look(self) -> int | None:
        """Poll the number of the best block until there is an answer; None when it is time to give up."""
        while not self.why:
            try:
                head = self._connection.head()
            except ChainError as error:
                seconds = _MUTE_TIMEOUTS * self._connection.timeout_seconds
                if time.monotonic() - self._answered_at >= seconds:
                    self.why = f"the submission was given up: {error}"
                else:
                    time.sleep(self.pause_seconds())
                continue
            now = time.monotonic()
            self._answered_at = now
            if head > self.head:
                self.head, self._moved_at, self._pause_seconds = head, now, _POLL_SECONDS
            self._first = head if self._first is None else self._first
            if head >= self._first + GIVE_UP_BLOCKS:
                self.why = f"the submission is in no block {head - self._first} blocks after it was first sent"
                self.cause = "posts_lost"
            elif now - self._moved_at >= max(_STILL_SECONDS, _MUTE_TIMEOUTS * self._connection.timeout_seconds):
                self.why = f"the chain makes no blocks: block {head} is the last one"
                self.cause = "chain_halted"
            else:
                return head
        return None

    def pause_seconds(self) -> float:
        """Return the seconds before the next poll, which grow as long as no block comes."""
        seconds, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, _BACK_OFF_SECONDS)
        return seconds


def _found(written: Written) -> int | None:
    try:
        return written()
    except ChainError:
        return None
