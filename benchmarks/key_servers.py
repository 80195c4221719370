"""Real servers for benchmarks/bench_keys.py, in a process of their own, so that the validator's memory is its own.

    python benchmarks/key_servers.py KIND HOSTILE HONEST SINCE LATENCY

Prints the ports, the honest ones last. Each line on its standard input is answered with the requests that the honest
ones had. Hostile ones send without an end, as fast as they are read:

heads     90 headers of 60 KB, again and again, in one head
informs   answers of status 100 and 103, which only announce another
chunks    a body in chunks: of 16 KiB, of one byte, of an error, and a chunk's first line that does not end
"""

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import repeat

from murmur.protocol.messages import REVEAL_BYTES, Reveal
from murmur.protocol.types import Digest, PeerId
from storage.seal import Sealed, seal

RUN, ROUND = Digest(bytes(32)), 3
PAYLOAD_BYTES = 8 << 20
_MISSING = b"<Error><Code>NoSuchKey</Code></Error>"
_CHUNKED = b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "a"\r\nTransfer-Encoding: chunked\r\n\r\n'


def _heads() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from repeat(b"X-Header: " + b"a" * 60_000 + b"\r\n")


def _informs() -> Iterator[bytes]:
    yield from repeat(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 200)


def _chunks(number: int) -> Iterator[bytes]:
    status, piece = [
        (b"200 OK", b"4000\r\n" + bytes(16 << 10) + b"\r\n"),
        (b"200 OK", b"1\r\na\r\n" * 1000),
        (b"404 Not Found", b"4000\r\n" + bytes(16 << 10) + b"\r\n"),
        (b"200 OK", b"1" + b";" * (16 << 10)),
    ][number % 4]
    yield _CHUNKED % (status, REVEAL_BYTES)
    yield from repeat(piece)


def _endless(kind: str, number: int) -> Iterator[bytes]:
    return {"heads": _heads, "informs": _informs}[kind]() if kind != "chunks" else _chunks(number)


def named(number: int) -> PeerId:
    return PeerId(sha256(number.to_bytes(4, "little")).digest())


class Signer:
    """Signs as the first honest hotkey; `verify` knows it."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer

    def sign(self, message: bytes) -> bytes:
        return sha256(self.peer + message).digest() * 2


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return Signer(peer).sign(message) == signature


@cache
def payload(peer: PeerId) -> Sealed:
    """What the victim of copycats has committed to."""
    return seal(bytes(PAYLOAD_BYTES), key=bytes(32), run=RUN, round=ROUND, signer=Signer(peer))


def _reveal(peer: PeerId) -> bytes:
    shown = Reveal(RUN, ROUND, peer, bytes(32), RUN)
    return Reveal(RUN, ROUND, peer, bytes(32), RUN, Signer(peer).sign(shown.signed_part)).encode()


def _whole(status: bytes, body: bytes, head: bytes = b"", *, silent: bool = False) -> bytes:
    """An answer; `silent`: without its body, as to HEAD."""
    first = b'HTTP/1.1 %s\r\nETag: "a"\r\nContent-Length: %d\r\n%s\r\n' % (status, len(body), head)
    return first if silent else first + body


def _part(request: bytes, peer: PeerId) -> bytes:
    """The answer to HEAD, or to GET of a range."""
    data = payload(peer).object
    asked = re.search(rb"(?i)range: bytes=(\d+)-(\d+)", request)
    if asked is None:
        return _whole(b"200 OK", data, silent=request.startswith(b"HEAD"))
    first, last = int(asked[1]), int(asked[2])
    where = b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, len(data))
    return _whole(b"206 Partial Content", data[first : last + 1], where)


class Servers:
    """All of them. `asked`: requests of the honest ones."""

    def __init__(self, since: float, latency: float) -> None:
        self.since, self.latency, self.asked = since, latency, 0

    async def open(self, kind: str, number: int) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                if kind == "honest":
                    await self._honest(reader, writer, named(number))
                else:
                    await reader.readuntil(b"\r\n\r\n")
                    for piece in _endless(kind, number):
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _honest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: PeerId) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if b"/payload/" in request:
                writer.write(_part(request, peer))
                continue
            self.asked += 1
            there = time.monotonic() >= self.since
            await asyncio.sleep(self.latency)
            writer.write(_whole(b"200 OK", _reveal(peer)) if there else _whole(b"404 Not Found", _MISSING))
            await writer.drain()


async def main(kind: str, hostile: int, honest: int, since: float, latency: float) -> None:
    servers = Servers(since, latency)
    kinds = [kind] * hostile + ["honest"] * honest
    ports = [await servers.open(kind, number) for number, kind in enumerate(kinds)]
    print(*ports, flush=True)  # noqa: T201
    while await asyncio.to_thread(sys.stdin.readline):
        print(servers.asked, flush=True)  # noqa: T201


if __name__ == "__main__":
    kind, hostile, honest, since, latency = sys.argv[1:]
    asyncio.run(main(kind, int(hostile), int(honest), float(since), float(latency)))
