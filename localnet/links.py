"""Slow and broken links: a TCP proxy before each peer's bucket, of which a supervisor can take speed or life.

All traffic of a bucket passes through its link, whoever reads or writes it: peers get its address with the pointer that
its owner publishes. One thread serves all links.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from urllib.parse import urlsplit

HOST = "127.0.0.1"
CHUNK_BYTES = 16 << 10
"""What is on its way at once in each direction of a connection: with latency it bounds the speed, as on real paths."""


class Links:
    """One link for each name, all to the same server. Calls return at once and hold for all bytes from then on."""

    def __init__(self, target: str, names: Iterable[str]) -> None:
        """`target`: the server's URL, http://HOST:PORT. Whether it answers does not matter yet."""
        parts = urlsplit(target)
        self._target = parts.hostname, parts.port
        self._links: dict[str, _Link] = {}
        self._ports: dict[str, int] = {}
        ready = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(list(names), ready),), name="links", daemon=True
        )
        self._thread.start()
        ready.wait()

    def endpoint(self, name: str) -> str:
        """URL under which the server is reached through this link."""
        return f"http://{HOST}:{self._ports[name]}"

    def slow(self, name: str, bytes_per_second: float, latency_seconds: float) -> None:
        """Limit the link: the speed is shared by all of its connections, the latency falls on every chunk."""
        self._set(lambda link: link.limit(bytes_per_second, latency_seconds), name)

    def stall(self, name: str) -> None:
        """From now on no byte arrives, and no connection breaks."""
        self._set(lambda link: link.open.clear(), name)

    def clear(self, name: str) -> None:
        """Make the link whole again: what waited arrives."""
        self._set(lambda link: link.limit(inf, 0.0), name)

    def close(self) -> None:
        """End all connections and the thread."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    def _set(self, change: "Callable[[_Link], None]", name: str) -> None:
        self._loop.call_soon_threadsafe(change, self._links[name])

    async def _serve(self, names: list[str], ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        for name in names:
            link = self._links[name] = _Link(self._target)
            server = await asyncio.start_server(link.serve, HOST, 0)
            self._ports[name] = server.sockets[0].getsockname()[1]
        ready.set()
        await self._done.wait()


class _Link:
    """What all connections through one link share."""

    def __init__(self, target: tuple[str | None, int | None]) -> None:
        self._target = target
        self.open = asyncio.Event()
        self.limit(inf, 0.0)
        self._free = 0.0
        """When the last byte that was let in will have passed."""

    def limit(self, bytes_per_second: float, latency_seconds: float) -> None:
        self._bytes_per_second, self._latency_seconds = bytes_per_second, latency_seconds
        self.open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            await self.open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            directions = (self._pump(reader, far_writer), self._pump(far_reader, writer))
            pumps = [asyncio.create_task(direction) for direction in directions]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            writer.close()
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._pass(len(data))
                writer.write(data)
                await writer.drain()

    async def _pass(self, num_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now) + num_bytes / self._bytes_per_second
        delay = self._latency_seconds + self._free - now
        if delay > 0:
            await asyncio.sleep(delay)
        await self.open.wait()
