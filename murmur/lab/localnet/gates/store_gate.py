"""A store's gate: an HTTP proxy for one node's bucket that answers in the store's place as its faults say.

Requests pass byte for byte, so signatures stay valid. Each connection carries one request.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

from murmur.lab.localnet.gates.kinds import STORE, StoreFault

CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 16
_CHANGES = (b"PUT", b"POST", b"DELETE")
_LENGTH = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)

Kinds = Callable[[], frozenset[str]]


class StoreGate:
    """The gate of one node. `kinds` returns its present faults; `read_key`: the access key that the node publishes."""

    def __init__(self, host: str, port: int, read_key: str, kinds: Kinds) -> None:
        self._target, self._read_key, self._kinds = (host, port), read_key.encode(), kinds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with suppress(OSError, EOFError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            found = _LENGTH.search(head)
            length = int(found[1]) if found else 0
            fault = self._fault(head)
            if fault is None:
                await self._pass(head, length, reader, writer)
            elif fault.status == 0:
                await self._hang()
            elif fault.status > 0:
                await _read(reader, length)
                writer.write(_answer(fault, head.startswith(b"HEAD")))
                await writer.drain()
        writer.close()

    def _fault(self, head: bytes) -> StoreFault | None:
        for kind in sorted(self._kinds() & STORE.keys()):
            fault = STORE[kind]
            if fault.of == "all" or (fault.of == "writes" and head.startswith(_CHANGES)):
                return fault
            if fault.of == "reads" and self._read_key in head:
                return fault
        return None

    async def _hang(self) -> None:
        while any(STORE[kind].status == 0 for kind in self._kinds() & STORE.keys()):
            await asyncio.sleep(0.2)

    async def _pass(self, head: bytes, length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
            far_writer.write(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n")
            sending = asyncio.create_task(_copy(reader, far_writer, length))
            while data := await far_reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
            sending.cancel()
        finally:
            far_writer.close()


def _answer(fault: StoreFault, bare: bool) -> bytes:
    """The store's answer; `bare`: to a HEAD request, which has no body."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{fault.code}</Code></Error>'.encode()
    head = f"HTTP/1.1 {fault.status} X\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return (head + "Connection: close\r\n\r\n").encode() + (b"" if bare else body)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
    with suppress(OSError):
        while length > 0 and (data := await reader.read(min(length, CHUNK_BYTES))):
            length -= len(data)
            writer.write(data)
            await writer.drain()


async def _read(reader: asyncio.StreamReader, length: int) -> None:
    while length > 0 and (data := await reader.read(min(length, CHUNK_BYTES))):
        length -= len(data)
