"""A raw HTTP server that misbehaves as a script tells it to: one thread per connection, plain sockets, no HTTP library
that would correct it."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Script = Callable[[socket.socket, bytes], None]
"""Answers one request: the connection and the request's head (up to the empty line). Then the connection closes."""


@dataclass
class Hostile:
    """A running server. `requests` holds the heads that came in."""

    endpoint: str
    requests: list[bytes] = field(default_factory=list)


@contextmanager
def hostile(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[Hostile]:
    """Serve `script` on 127.0.0.1 until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme, host = ("https", "localhost") if tls else ("http", "127.0.0.1")
    server = Hostile(f"{scheme}://{host}:{listener.getsockname()[1]}")

    def answer(connection: socket.socket) -> None:
        # The client hangs up on most of these: that is what is tested.
        with contextlib.suppress(OSError):
            wrapped = tls.wrap_socket(connection, server_side=True) if tls else connection
            with wrapped:
                head = b""
                while b"\r\n\r\n" not in head:
                    block = wrapped.recv(65536)
                    if not block:
                        return
                    head += block
                server.requests.append(head.partition(b"\r\n\r\n")[0])
                script(wrapped, head)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        # close() alone does not wake a thread that is blocked in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def response(status: str, *headers: str, body: bytes = b"") -> bytes:
    """The bytes of a response with exactly these headers."""
    return ("\r\n".join([f"HTTP/1.1 {status}", *headers]) + "\r\n\r\n").encode() + body


def says(status: str, *headers: str, body: bytes = b"") -> Script:
    """A script that answers every request alike."""

    def script(connection: socket.socket, head: bytes) -> None:
        connection.sendall(response(status, *headers, body=body))

    return script
