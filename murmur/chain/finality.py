"""The finalised chain: its head, its headers, and waiting for the next ones.

An endpoint may lag, exaggerate or stop. A higher head is accepted when its block can be read. A lower one is accepted
after enough answers in a row from an endpoint that does not know our block.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

from loguru import logger

from murmur.chain import reading
from murmur.chain.archives import StateReader
from murmur.chain.session import Session
from murmur.protocol.errors import ChainError
from murmur.protocol.types import Digest, Header

K = TypeVar("K")
V = TypeVar("V")

_HEADERS_KEPT = 1024
_RECONNECT_SECONDS = 0.25
_LAST_LOOK_SECONDS = 1.0
_CONTRADICTIONS = 8
"""Answers in a row after which a lower finalised head is accepted."""


class Finality:
    """The known finalised head, and headers up to it. Thread-safe. `forget` is called when a final block turns out not
    to be final: cached reads are then invalid."""

    def __init__(self, state: StateReader, forget: Callable[[], None]) -> None:
        self._connection, self._state = state.connection, state
        self._forget = forget
        self._final = -1
        self._contradictions = 0
        """Answers in a row that name a lower finalised head than `_final`."""
        self._headers: OrderedDict[int, Header] = OrderedDict()

    def head(self) -> Header:
        """Return the finalised head."""
        return self.header(self._refresh(self._connection.timeout_seconds))

    def header(self, block: int) -> Header:
        """Return the header of a final block. Raises ChainError for any other."""
        known = self._headers.get(block)
        if known is not None:
            return known
        if block < 0 or (block > self._final and block > self._refresh(self._connection.timeout_seconds)):
            raise ChainError(f"block {block} is not final yet: the last final block is {self._final}")
        return self._header(block)

    def hash(self, block: int) -> str:
        """Return the hash of a final block, in the SDK's form."""
        return "0x" + self.header(block).hash.hex()

    def wait(self, block: int, timeout_seconds: float) -> Header:
        """Wait until `block` is final. Raises ChainError after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        trouble: ChainError | None = None
        while True:
            remaining = deadline - time.monotonic()
            try:
                if self._final >= block or self._refresh(max(remaining, _LAST_LOOK_SECONDS)) >= block:
                    return self.header(block)
                # Blocks are followed by subscription: one message each, no latency. It can go silent without an error,
                # so it is trusted for one call time-out; then the head is read again.
                if remaining > 0:
                    self._follow(block, min(self._connection.timeout_seconds, remaining))
            except ChainError as error:
                trouble = error
                time.sleep(max(0.0, min(_RECONNECT_SECONDS, deadline - time.monotonic())))
            if remaining <= 0:
                break
        raise ChainError(
            f"block {block} was not final within {timeout_seconds:.1f} s: the last final block seen is {self._final}"
            + (f", the last fault: {trouble}" if trouble else "")
        )

    def _header(self, block: int) -> Header:
        known = self._headers.get(block)
        if known is None:
            # Our own node always names the hash; the time is part of the state, which it may have pruned.
            block_hash = self._connection.call(lambda session: reading.block_hash(session, block), block=block)
            known = self._state.read(lambda session: reading.header(session, block, block_hash), block)[0]
            remember(self._headers, block, known, _HEADERS_KEPT)
        return known

    def _refresh(self, timeout_seconds: float) -> int:
        """Read the finalised head; return the number that is accepted."""

        async def read(session: Session) -> int:
            return int(await session.substrate.finalized_block_number())

        seconds = min(timeout_seconds, self._connection.timeout_seconds)
        return self._take(self._connection.call(read, timeout_seconds=seconds))

    def _take(self, number: int) -> int:
        """Return the accepted finalised head after an answer."""
        if number > self._final:
            try:
                self._header(number)
            except ChainError as error:
                if self._final < 0:
                    raise
                logger.debug("the finalised head cannot be read: ignoring it", block=number, error=str(error))
            else:
                self._final, self._contradictions = number, 0
        elif number < self._final:
            self._contradictions += 1
            if self._contradictions >= _CONTRADICTIONS and not self._confirmed(self._final):
                logger.warning("block {old} is not final after all, but {new} is", old=self._final, new=number)
                self._final, self._contradictions = number, 0
                self._headers.clear()
                self._forget()
        else:
            self._contradictions = 0
        return self._final

    def _confirmed(self, block: int) -> bool:
        """Whether the chain's node has the block with the hash that we know."""
        known = self._headers.get(block)

        async def read(session: Session) -> bool:
            if int(await session.substrate.block_number()) < block:
                return False
            found = Digest(reading.hash_bytes(await session.substrate.block_hash(block)))
            return known is None or found == known.hash

        try:
            return self._connection.call(read)
        except ChainError:  # not evidence against the block
            return True

    def _follow(self, block: int, seconds: float) -> None:
        """Return when `block` is final or `seconds` have passed."""

        async def follow(session: Session) -> int:
            number = -1
            try:
                async with asyncio.timeout(seconds), aclosing(session.substrate.blocks(finalized=True)) as heads:
                    async for head in heads:
                        number = int(head["header"]["number"])
                        if number >= block:
                            break
            except TimeoutError:
                pass
            return number

        number = self._connection.call(follow, timeout_seconds=seconds + self._connection.timeout_seconds)
        if number > self._final:
            self._take(number)


def remember(cache: "OrderedDict[K, V]", key: K, value: V, limit: int) -> None:
    """Add an entry; keep the newest `limit` entries."""
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)
