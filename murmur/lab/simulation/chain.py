"""The Chain port of one simulated process: the modelled time of its calls, and failures of its connection.

The chain itself is world.py; this module makes its blocks and lets nodes wait for them.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from murmur.lab.simulation.clock import Clock, Life, Work
from murmur.lab.simulation.world import World
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.types import Header, Peer, PeerId, Subnet, Uid

BLOCK_SECONDS = 12.0
LATENCY_SECONDS = (0.02, 0.3)
TIME_OUT_SECONDS = 15.0
"""Time-out of one chain call; a submission has three of them."""
_REMEMBERED = 256

T = TypeVar("T")


@dataclass
class NodeConnection:
    """A node's own connection to the chain; it outlives the process. `down` counts the faults that cut it. `stuck_at`:
    the last block that its endpoint knows, when the endpoint has stopped. `hangs`: a call over a cut connection fails
    only after its time-out."""

    down: int = 0
    hangs: bool = False
    stuck_at: int | None = None


class Blocks:
    """Makes the world's blocks, and wakes the work that waits for one."""

    def __init__(self, clock: Clock, world: World, seed: int) -> None:
        self.clock, self.world = clock, world
        self.random = random.Random(f"blocks {seed}")
        self.late_seconds = 0.0
        """Extra delay of the next block, in seconds."""
        self.has_archive = True
        """Whether a public archive answers: it has the state that nodes' own chain nodes have pruned."""
        self.on_block: Callable[[], None] = lambda: None
        self._waiting: list[tuple[int, bool, Work]] = []

    def begin(self) -> None:
        self.clock.at(self.clock.now + BLOCK_SECONDS, self._make)

    def wait(self, block: int, *, final: bool, until: float) -> bool:
        """Wait until the world has this block (`final`: finalised); False at `until`."""
        while (self.world.final if final else self.world.head) < block:
            entry = (block, final, self.clock.running())
            self._waiting.append(entry)
            try:
                if not self.clock.park(until):
                    return False
            finally:
                if entry in self._waiting:
                    self._waiting.remove(entry)
        return True

    def wake(self) -> None:
        """Wake the work whose block is there: finality may have moved."""
        head, final = self.world.head, self.world.final
        ready = [entry for entry in self._waiting if entry[0] <= (final if entry[1] else head)]
        if ready:
            self._waiting = [entry for entry in self._waiting if entry not in ready]
            for _, _, work in ready:
                self.clock.wake(work)

    def _make(self) -> None:
        self.world.step()
        seconds = BLOCK_SECONDS * self.random.uniform(0.97, 1.03) + self.late_seconds
        self.late_seconds = 0.0
        self.clock.at(self.clock.now + seconds, self._make)
        self.wake()
        self.on_block()


class NodeChain:
    """One process's view of the chain, signing as its hotkey."""

    def __init__(
        self, blocks: Blocks, connection: NodeConnection, peer: PeerId, time: Life, draw: random.Random
    ) -> None:
        self.blocks, self.world, self.connection, self.peer = blocks, blocks.world, connection, peer
        self.time, self.random = time, draw
        self._headers: dict[int, Header] = {}
        self._peers: dict[int, tuple[Peer, ...]] = {}

    def genesis(self) -> bytes:
        self._call()
        return self.world.genesis()

    def finalized(self) -> Header:
        self._call()
        return self.world.header(self._visible)

    def header(self, block: int) -> Header:
        if block not in self._headers:
            self._call()
            self._require(block)
            _remember(self._headers, block, self._read(lambda archive: self.world.header(block, archive=archive)))
        return self._headers[block]

    def peers(self, block: int) -> tuple[Peer, ...]:
        if block not in self._peers:
            self._call()
            self._require(block)
            _remember(self._peers, block, self._read(lambda archive: self.world.state(block, archive=archive).peers))
        return self._peers[block]

    def subnet(self, block: int) -> Subnet:
        self._call()
        self._require(block)
        return self.world.subnet(block)

    def balance(self) -> int:
        self._call()
        return self.world.balance(self.peer)

    def wait(self, block: int, timeout_seconds: float) -> Header:
        until = self.time.now() + timeout_seconds
        while not (self.blocks.wait(block, final=True, until=until) and self._visible >= block):
            if self.time.now() >= until:
                raise ChainError(f"block {block} was not final within {timeout_seconds:.1f} s")
            self.time.sleep(min(BLOCK_SECONDS / 2, until - self.time.now()))
        return self.header(block)

    def publish(self, fields: tuple[bytes, ...]) -> int:
        self._call()
        return self._included(self.world.publish(self.peer, fields))

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        self._call()
        return self._included(self.world.set_weights(self.peer, weights))

    def stands_from(self, set_in: int) -> int | None:
        self._call()
        block = self.world.stands_from(set_in)
        return block if block is not None and block <= self._visible else None

    def weights(self, block: int, uid: Uid) -> Mapping[Uid, int]:
        self._call()
        self._require(block)
        return dict(self.world.state(block).weights.get(uid, {}))

    def _read(self, read: Callable[[bool], T]) -> T:
        """Read from our own chain node, or from an archive where that node has pruned the state."""
        try:
            return read(False)
        except ChainError as fault:
            if fault.code != STATE_PRUNED or not self.blocks.has_archive:
                raise
            self._call()
            return read(True)

    @property
    def _visible(self) -> int:
        stuck = self.connection.stuck_at
        return self.world.final if stuck is None else min(stuck, self.world.final)

    def _call(self) -> None:
        self.time.sleep(self.random.uniform(*LATENCY_SECONDS))
        if self.connection.down:
            if self.connection.hangs:
                self.time.sleep(TIME_OUT_SECONDS)
            raise ChainError("the connection to the chain failed")

    def _require(self, block: int) -> None:
        if block > self._visible:
            raise ChainError(f"block {block} is not final yet: the last final block is {self._visible}")

    def _included(self, block: int) -> int:
        """Wait for the block of a submission, as the adapter does: a lost connection only hides it."""
        until = self.time.now() + 3 * TIME_OUT_SECONDS
        if not self.blocks.wait(block, final=False, until=until):
            raise ChainError("the chain makes no blocks")
        while self.connection.down:
            if self.time.now() >= until:
                raise ChainError("the connection to the chain failed")
            self.time.sleep(2.0)
        return block


def _remember(known: dict[int, T], block: int, value: T) -> None:
    while len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[block] = value
