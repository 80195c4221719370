"""A bucket behind the operator's proxy: the name is the proxy's to resolve, and TLS goes through it untouched."""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.types import Pointer
from storage import transport
from storage.s3 import open_bucket, open_pointer
from tests.storage.hostile import Hostile, hostile, says
from tests.storage.s3_cases import SECRET, get
from tests.storage.test_s3_addresses import tls

__all__ = ["tls"]

HELLO = says("200 OK", "Content-Length: 5", 'ETag: "e"', body=b"hello")


@contextmanager
def proxy(server: Hostile | None) -> Iterator[tuple[str, list[bytes]]]:
    """Serve an address of a proxy that leads to `server` whatever it is asked for, and refuses without one; with the
    heads of what it was asked."""
    heads = list[bytes]()
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(65536):
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    def answer(client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        heads.append(head)
        if server is None:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            client.close()
            return
        there = socket.create_connection(("127.0.0.1", urlsplit(server.endpoint).port or 0))
        if head.startswith(b"CONNECT"):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            there.sendall(head)
        threading.Thread(target=copy, args=(client, there), daemon=True).start()
        copy(there, client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_tls_goes_through_the_proxy_to_a_name_that_only_it_knows(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile(HELLO, tls=tls) as server, proxy(server) as (address, heads):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass%20word@{address}")
        assert get(open_bucket("https://store.test", "bucket", "access", SECRET, local=False)) == b"hello"
        assert heads[0].startswith(b"CONNECT store.test:443 ")
        assert base64.b64encode(b"me:pass word") in heads[0]
        assert SECRET.encode() not in heads[0]


def test_a_stranger_behind_the_proxy_is_read_and_one_on_a_private_address_is_not(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile(HELLO, tls=tls) as server, proxy(server) as (address, heads):
        monkeypatch.setenv("HTTPS_PROXY", address)
        pointer = Pointer("https://store.test", "bucket", "access", SECRET)
        assert get(open_pointer(pointer, local=False)) == b"hello"
        monkeypatch.setattr(transport, "resolve", lambda host, port: [(socket.AF_INET, "10.0.0.1", ("10.0.0.1", port))])
        with pytest.raises((StorageError, ConfigError), match="not public"):
            get(open_pointer(pointer, local=False))
        assert len(heads) == 1


def test_plain_http_goes_through_its_own_proxy_and_loopback_through_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile(HELLO) as server, proxy(server) as (address, heads):
        monkeypatch.setenv("HTTP_PROXY", address)
        assert get(open_bucket("http://store.test", "bucket", "access", SECRET, local=True)) == b"hello"
        assert heads[0].startswith(b"GET http://store.test/bucket/")
        assert get(open_bucket(server.endpoint, "bucket", "access", SECRET, local=True)) == b"hello"
        assert len(heads) == 1


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(None) as (address, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:word@{address}")
        with pytest.raises(StorageError, match=f"through the proxy http://{address}"):
            get(open_bucket("https://store.test", "bucket", "access", SECRET, local=False))
