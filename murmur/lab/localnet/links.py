"""Links: TCP proxies in front of the object store, one for each node, which a supervisor can slow down or stall.

A link belongs to a bucket when the pointer that the bucket's owner publishes has its address: then all traffic of that
bucket passes it, for every reader and writer. It belongs to a node when that node reaches every bucket through it
(murmur/lab/localnet/worker.py). One thread serves all links.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from urllib.parse import urlsplit

from murmur.lab.localnet.ports import HOST

CHUNK_BYTES = 16 << 10
"""Bytes in flight in each direction of a connection: with latency this bounds the speed, as on real paths."""
LATE_SECONDS = 0.1
"""Longest assumed delay of our wake-up on a busy machine; the link makes up for the bytes that it could have passed
meanwhile."""


class Links:
    """One link for each name, all to the same server. Calls return at once and apply to all later bytes."""

    def __init__(self, target: str, names: Iterable[str], host: str = HOST) -> None:
        """target: the server's URL, http://HOST:PORT. It need not answer yet. host: the address of this machine that
        the links have."""
        parts = urlsplit(target)
        self._target, self._host = (parts.hostname, parts.port), host
        self._links: dict[str, _Link] = {}
        self._ports: dict[str, int] = {}
        ready = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(list(names), ready),), name="links", daemon=True
        )
        self._thread.start()
        ready.wait()

    def endpoint(self, name: str) -> str:
        """Return the URL of the server through this link."""
        return f"http://{self._host}:{self._ports[name]}"

    def slow(self, name: str, up: float, down: float, latency_seconds: float = 0.0) -> None:
        """Limit the link to `up` bytes per second to the server and `down` from it, each shared by all of its
        connections; the latency delays every chunk."""
        self._set(lambda link: link.limit(up, down, latency_seconds), name)

    def stall(self, name: str) -> None:
        """From now on no byte arrives, and no connection breaks."""
        self._set(lambda link: link.open.clear(), name)

    def clear(self, name: str) -> None:
        """Remove all limits: delayed bytes arrive."""
        self._set(lambda link: link.limit(inf, inf, 0.0), name)

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
            server = await asyncio.start_server(link.serve, self._host, 0)
            self._ports[name] = server.sockets[0].getsockname()[1]
        ready.set()
        await self._done.wait()


class _Link:
    """State shared by all connections through one link."""

    def __init__(self, target: tuple[str | None, int | None]) -> None:
        self._target = target
        self.open = asyncio.Event()
        self._up, self._down = _Way(), _Way()
        self.limit(inf, inf, 0.0)

    def limit(self, up: float, down: float, latency_seconds: float) -> None:
        self._up.bytes_per_second, self._down.bytes_per_second = up, down
        self._latency_seconds = latency_seconds
        self.open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, until either side ends it."""
        try:
            await self.open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            ways = (self._pump(reader, far_writer, self._up), self._pump(far_reader, writer, self._down))
            pumps = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            writer.close()
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: "_Way") -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                delay = self._latency_seconds + way.take(len(data), asyncio.get_running_loop().time())
                if delay > 0:
                    await asyncio.sleep(delay)
                await self.open.wait()
                writer.write(data)
                await writer.drain()


class _Way:
    """One direction of a link."""

    def __init__(self) -> None:
        self.bytes_per_second = inf
        self._free = 0.0
        """Time at which the last accepted byte will have passed."""

    def take(self, num_bytes: int, now: float) -> float:
        """Accept bytes; return the seconds until the last of them has passed."""
        began = self._free if now - self._free < LATE_SECONDS else now
        self._free = began + num_bytes / self.bytes_per_second
        return self._free - now
