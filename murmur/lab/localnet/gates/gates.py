"""The gates of a network's nodes: for each one its own way to the chain and to the store, served by one thread.

A faults file says which node suffers what; it is read all the time, so that an operator or a test begins and mends
faults while nodes run. Clock faults are passed on to the files of the nodes' clocks (clock.py).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from websockets.asyncio.server import serve

from murmur.lab.devnet.launch import Admin
from murmur.lab.localnet.gates.chain_gate import ChainGate, Heads
from murmur.lab.localnet.gates.kinds import CLOCK_SECONDS, EVERYBODY, read_faults
from murmur.lab.localnet.gates.store_gate import HEAD_BYTES, StoreGate
from murmur.lab.localnet.ports import HOST
from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import ChainError

READ_SECONDS = 0.2
HALTED_BLOCKS = 10**6
"""A lag of finality that no block outlives."""


class Gates:
    """Gates to the chain at `url` and to `store`, for each of these nodes."""

    def __init__(self, url: str, store: StoreReady, nodes: list[str], faults: Path) -> None:
        self._url, self._store, self._file = url, store, faults
        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # it tells each connection that a fault breaks
        self._clocks = {node: faults.parent / "clocks" / node for node in nodes}
        self._faults: Mapping[str, frozenset[str]] = {}
        self._read_at = -READ_SECONDS
        self._ports: dict[str, tuple[int, int]] = {}
        ready = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(nodes, ready),), name="gates", daemon=True
        )
        self._thread.start()
        ready.wait()

    def chain(self, node: str) -> str:
        """Return the chain's URL for this node."""
        return f"ws://{HOST}:{self._ports[node][0]}"

    def store(self, node: str) -> StoreReady:
        """Return the store as this node sees it."""
        return replace(self._store, endpoint=f"http://{HOST}:{self._ports[node][1]}")

    def clock(self, node: str) -> Path:
        """Return the file with the seconds that this node's clock is off by."""
        return self._clocks[node]

    def close(self) -> None:
        """End all connections and the thread."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    def kinds(self, node: str) -> frozenset[str]:
        """Return the node's present faults."""
        now = time.monotonic()
        if now - self._read_at >= READ_SECONDS:
            self._read_at, self._faults = now, read_faults(self._file)
        return self._faults.get(node, frozenset())

    async def _serve(self, nodes: list[str], ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        heads = Heads(self._url)
        tasks = [asyncio.create_task(work) for work in (heads.follow(), self._set_clocks(), self._steer_chain())]
        parts = urlsplit(self._store.endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        for node in nodes:
            chain = ChainGate(self._url, heads, lambda node=node: self.kinds(node))  # type: ignore[misc]
            store = StoreGate(
                parts.hostname,
                parts.port,
                self._store.users[node].read_access_key,
                lambda node=node: self.kinds(node),  # type: ignore[misc]
            )
            chain_server = await serve(chain.serve, HOST, 0, max_size=None)
            store_server = await asyncio.start_server(store.serve, HOST, 0, limit=HEAD_BYTES)
            ports = [next(iter(server.sockets)).getsockname()[1] for server in (chain_server, store_server)]
            self._ports[node] = ports[0], ports[1]
        ready.set()
        await self._done.wait()
        for task in tasks:
            task.cancel()

    async def _steer_chain(self) -> None:
        """Make the whole chain as the faults say, for ever."""
        admin, before = Admin(self._url), frozenset[str]()
        while True:
            now = self.kinds(EVERYBODY)
            with suppress(ChainError):  # it restarts after a crash, and is asked again
                if "halts" in now ^ before:
                    await asyncio.to_thread(admin.finality, HALTED_BLOCKS if "halts" in now else 0)
                if "never-reveals" in now ^ before:
                    await asyncio.to_thread(admin.reveals, "never-reveals" not in now)
                before = now
            await asyncio.sleep(READ_SECONDS)

    async def _set_clocks(self) -> None:
        """Keep the files of the clocks as the faults say, for ever."""
        told: dict[str, int] = {}
        for file in self._clocks.values():
            file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            for node, file in self._clocks.items():
                off = sum(CLOCK_SECONDS[kind] for kind in self.kinds(node) & CLOCK_SECONDS.keys())
                if told.get(node) != off:
                    file.write_text(f"{off}\n")
                    told[node] = off
            await asyncio.sleep(READ_SECONDS)
