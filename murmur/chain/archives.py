"""State that a chain's own node has pruned, read from archive nodes.

An archive is asked by the block's hash, which our own node named, and has to serve our chain, so it cannot answer for
another block. It can lie about the state at that hash: there is no proof.
"""

import threading
import time
from collections.abc import Callable, Sequence

from murmur.chain.connection import Call, Connection, T
from murmur.protocol.errors import STATE_PRUNED, ChainError

REST_SECONDS = 60.0
"""Time for which a failed archive is not asked again: a reader of many old blocks must not wait for it each time."""


class Archives:
    """Archive nodes of one chain, asked in their order. Thread-safe. The first read calls `connect` with the chain's
    genesis hash."""

    def __init__(self, connect: Callable[[bytes], Sequence[Connection]]) -> None:
        self._connect = connect
        self._connections: Sequence[Connection] | None = None
        self._failed: dict[Connection, tuple[float, ChainError]] = {}
        self._lock = threading.Lock()

    def read(self, call: Call[T], block: int, genesis: bytes, pruned: ChainError) -> tuple[T, str]:
        """Return the first archive's answer, and its address. Raises `pruned`, the refusal of our own node, when there
        is no archive; STATE_PRUNED when none can answer."""
        told = []
        for archive in self._opened(genesis):
            until, fault = self._failed.get(archive, (0.0, pruned))
            if time.monotonic() >= until:
                try:
                    return archive.call(call, block=block), archive.network
                except ChainError as failure:
                    fault = failure
                    if failure.code is None:
                        self._failed[archive] = time.monotonic() + REST_SECONDS, failure
            told.append(f"{archive.network}: {fault}")
        if not told:
            raise pruned
        raise ChainError(f"{pruned}. No archive has it either: {'; '.join(told)}", STATE_PRUNED)

    def close(self) -> None:
        """Drop the sessions. The next read opens new ones."""
        for archive in self._connections or ():
            archive.close()

    def _opened(self, genesis: bytes) -> Sequence[Connection]:
        with self._lock:
            if self._connections is None:
                self._connections = self._connect(genesis)
            return self._connections


class StateReader:
    """State at any height: from a chain's own node, and from its archives where that has pruned it. Thread-safe."""

    def __init__(self, connection: Connection, archives: Archives | None) -> None:
        self.connection, self._archives = connection, archives

    def read(self, call: Call[T], block: int) -> tuple[T, str]:
        """Read state at a block whose hash is known; return the answer and its endpoint. The endpoint is an archive
        where the chain's own node has pruned the block. Every failure is a ChainError."""
        try:
            return self.connection.call(call, block=block), self.connection.network
        except ChainError as fault:
            if fault.code != STATE_PRUNED or self._archives is None:
                raise
            return self._archives.read(call, block, self.connection.genesis(), fault)

    def close(self) -> None:
        """Drop all sessions. The next call opens new ones."""
        if self._archives is not None:
            self._archives.close()
        self.connection.close()
