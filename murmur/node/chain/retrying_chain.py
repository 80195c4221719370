"""A Chain that retries a failed call while its answer is still useful.

Otherwise one lost connection between the commit and the reveal deadline would cost a sole validator the round. A
refusal is final: the chain has answered. So is an error about state that the chain's node has pruned, or about a block
that we do not know to be final.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from loguru import logger

from murmur.protocol.clock import Clock
from murmur.protocol.errors import ChainError
from murmur.protocol.ports import Chain, Time
from murmur.protocol.types import Header, Peer, Subnet, Uid

PAUSE_SECONDS = 1.0
PATIENT_SECONDS = 10.0
"""A lost connection is mended by the next call. A chain that fails for longer is told."""

T = TypeVar("T")


class RetryingChain:
    """Wraps a Chain, for one run. Raises ChainError only for a refusal, or after the deadline: the planned end of the
    window in which the call was first made, counted from the newest final block seen. `genesis` and `wait` are not
    retried."""

    def __init__(
        self, chain: Chain, clock: Clock, block_seconds: float, time: Time, tell: Callable[[ChainError | None], None]
    ) -> None:
        """tell: is called with the fault while calls of one kind fail for PATIENT_SECONDS, and with None when none
        fails any more: a chain node may answer some calls and not others."""
        self._chain, self._clock, self._block_seconds, self._time = chain, clock, block_seconds, time
        self._tell = tell
        self._final, self._seen_at = -1, 0.0
        self._failing: dict[str, float] = {}
        """When the first call of each kind began that failed after the last one that did not."""

    def genesis(self) -> bytes:
        return self._chain.genesis()

    def finalized(self) -> Header:
        return self._see(self._patiently("finalized", self._chain.finalized))

    def header(self, block: int) -> Header:
        return self._patiently("header", lambda: self._chain.header(block), block)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        return self._see(self._chain.wait(block, timeout_seconds))

    def peers(self, block: int) -> tuple[Peer, ...]:
        return self._patiently("peers", lambda: self._chain.peers(block), block)

    def subnet(self, block: int) -> Subnet:
        return self._patiently("subnet", lambda: self._chain.subnet(block), block)

    def balance(self) -> int:
        return self._patiently("balance", self._chain.balance)

    def publish(self, fields: tuple[bytes, ...]) -> int:
        # Publishing the same fields again changes nothing if only the answer was lost.
        return self._patiently("publish", lambda: self._chain.publish(fields))

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        return self._patiently("set_weights", lambda: self._chain.set_weights(weights))

    def stands_from(self, set_in: int) -> int | None:
        return self._patiently("stands_from", lambda: self._chain.stands_from(set_in))

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        return self._patiently("weights", lambda: self._chain.weights(block, uid), block)

    def _patiently(self, kind: str, call: Callable[[], T], block: int = 0) -> T:
        began, until = self._time.now(), self._deadline()
        failed = False
        while True:
            try:
                found = call()
            except ChainError as fault:
                now = self._time.now()
                if fault.code is None and block <= self._final:
                    self._fails(kind, fault, began, now)
                if fault.code is not None or block > self._final or now >= until:
                    raise
                if not failed:
                    logger.debug("a call of the chain failed ({fault}); trying again", fault=str(fault))
                failed = True
            else:
                self._failing.pop(kind, None)
                if not self._failing:
                    self._tell(None)
                return found
            self._time.sleep(PAUSE_SECONDS)

    def _fails(self, kind: str, fault: ChainError, began: float, now: float) -> None:
        """Tell of a chain that has failed for long, by one call or by several: on a fast chain a window is short."""
        if now - self._failing.setdefault(kind, began) >= PATIENT_SECONDS:
            self._tell(fault)

    def _deadline(self) -> float:
        """Return when the current window ends by plan; at least a reveal window from now, since a call that timed out
        has taken blocks itself."""
        now = self._time.now()
        block = self._final + int((now - self._seen_at) / self._block_seconds)
        end = max(self._clock.window_end(block), block + self._clock.reveal - self._clock.commit)
        return now + (end - block) * self._block_seconds

    def _see(self, header: Header) -> Header:
        if header.block > self._final:
            self._final, self._seen_at = header.block, self._time.now()
        return header
