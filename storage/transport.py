"""One HTTP exchange with a server that may be hostile: checked addresses, one deadline, bounded memory.

botocore hands every signed request to `Transport.send` instead of its own HTTP session (storage/s3.py). It adds to the
default session:

- addresses are checked when the socket connects, on the very address used, so a name that resolves to a public address
  first and to a private one later (DNS rebinding) gains nothing;
- every send and receive is cut off at the caller's deadline, also inside headers, TLS records and error bodies;
- the head of an answer is bounded as a whole, interim (1xx) answers included;
- no redirects, no content decoding; a proxy only by the operator's variables (murmur/proxies.py);
- only well-formed values of the few response headers that we use are passed on; bodies that have to be held whole are
  capped.

May not: retry, sign, parse XML, or put text of the server into an error.
"""

import ipaddress
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, ProxyError

from murmur.proxies import proxy_for, way_to
from storage.deadline import READ_SECONDS, TransportError, current_deadline, remaining_seconds
from storage.realtime import REAL, seconds_until

CONNECT_SECONDS = 5.0
RESOLVE_SECONDS = 10.0
MAX_POOL_CONNECTIONS = 32
WHOLE_BODY_BYTES = 1 << 20
"""Cap on a body that is parsed as a whole. 1000 of our keys take about 400 KB; a hostile 4 MiB took 3 s to parse."""
HEAD_BYTES = 48 << 10
"""Cap on all bytes before a body, interim answers included. An honest head has 2 KiB; http.client alone would take a
hundred headers of 64 KiB each and hold them."""
ERROR_BODY_BYTES = 16 << 10
"""Longer error bodies are dropped: the status is enough."""
BLOCK_BYTES = 128 << 10
"""urllib3's default of 16 KiB costs throughput on large bodies (measured by botocore's authors)."""

_KEEPALIVE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
# urllib3 quotes malformed headers in a warning: text of the server, which must not enter our logs.
logging.getLogger("urllib3.connection").setLevel(logging.ERROR)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
_PLAIN = re.compile(r"(identity|aws-chunked)?")
"""Content encodings that do not change the bytes: some servers return the encoding that the object was uploaded
with."""
_DATE = re.compile(r"[A-Za-z0-9,: +-]{1,64}")
_WELL_FORMED = {
    "content-length": re.compile(r"[0-9]{1,15}"),
    "content-range": re.compile(r"bytes ([0-9]{1,15}-[0-9]{1,15}|\*)/([0-9]{1,15}|\*)"),
    "content-type": re.compile(r"[!-~ ]{1,200}"),
    "etag": re.compile(r"[!-~]{1,200}"),
    "last-modified": _DATE,
}


class Interrupted(TransportError):
    """No connection, or it broke. The same exchange may succeed later."""


class AddressRefused(TransportError):
    """The name resolves to an address that a stranger's pointer may not lead to."""


_thread = threading.local()


def _bound(sock: socket.socket) -> None:
    """Set the time-out of the next call on this socket to the thread's remaining time. Raises TimeoutError, as sockets
    do: urllib3 and ssl end an exchange on it."""
    until = current_deadline()
    left = READ_SECONDS if until is None else until - time.monotonic()
    if left <= 0:
        raise TimeoutError("out of time")
    sock.settimeout(min(left, READ_SECONDS))


@contextmanager
def _reading_a_head() -> Iterator[None]:
    """Limit this thread to HEAD_BYTES until the body begins."""
    _thread.head = HEAD_BYTES
    try:
        yield
    finally:
        _thread.head = None


def _received(num_bytes: int) -> None:
    """Count received bytes. Raises OSError, as for a broken connection, for a head without an end."""
    TRAFFIC.add(received=num_bytes)
    left: int | None = getattr(_thread, "head", None)
    if left is not None:
        _thread.head = left - num_bytes
        if left < num_bytes:
            raise OSError("the answer's head is too long")


class _Traffic:
    """Bytes sent and received over all connections of this process, without TLS overhead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = self._received = 0

    def add(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self._sent += sent
            self._received += received

    def moved(self) -> tuple[int, int]:
        """Return the bytes sent and received."""
        with self._lock:
            return self._sent, self._received


TRAFFIC = _Traffic()


class _Socket(socket.socket):
    """A socket whose every call gets only the remaining time: a slow server cannot outlast the deadline byte by
    byte."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        _bound(self)
        received = super().recv_into(*args, **kwargs)
        _received(received)
        return received

    def sendall(self, data: Any, *args: Any) -> None:
        _bound(self)
        super().sendall(data, *args)
        TRAFFIC.add(sent=len(data))


class _TlsSocket(ssl.SSLSocket):
    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        _bound(self)
        received = super().recv_into(*args, **kwargs)
        _received(received)
        return received

    def send(self, *args: Any, **kwargs: Any) -> int:
        _bound(self)
        sent = super().send(*args, **kwargs)
        TRAFFIC.add(sent=sent)
        return sent

    def do_handshake(self, *args: Any, **kwargs: Any) -> None:
        _bound(self)
        super().do_handshake(*args, **kwargs)


# --- addresses -------------------------------------------------------------------------------------------------


def is_public(address: str) -> bool:
    """Whether a stranger's pointer may lead to this IP address: globally routable unicast.

    For IPv6 only 2000::/3, so no site-local address. IPv6 forms that wrap an IPv4 address are refused, except NAT64, by
    which IPv6-only networks reach public IPv4 servers.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.scope_id is not None or ip.sixtofour is not None or ip.teredo is not None or ip not in _UNICAST:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


_lookups: "dict[tuple[str, int], Future[list[Any]]]" = {}
_lookups_lock = threading.Lock()


def resolve(host: str, port: int) -> list[tuple[int, str, tuple[Any, ...]]]:
    """Return (family, IP address, socket address) of every address of a host name. Raises OSError, or UnicodeError for
    a bad name.

    getaddrinfo has no time-out, and a stranger's name server may let it hang. So it runs in its own thread. Concurrent
    callers with the same name and port wait for the same lookup, so one name blocks at most one thread.
    """
    name = host, port
    with _lookups_lock:
        lookup = _lookups.get(name)
        if lookup is None:
            lookup = _lookups[name] = Future()
            threading.Thread(target=_look_up, args=(name, lookup), name="resolve", daemon=True).start()
    until = current_deadline()
    left = RESOLVE_SECONDS if until is None else min(RESOLVE_SECONDS, seconds_until(until, REAL))
    return [(int(family), str(where[0]), tuple(where)) for family, _, _, _, where in lookup.result(left)]


def _look_up(name: tuple[str, int], lookup: "Future[list[Any]]") -> None:
    try:
        found = socket.getaddrinfo(*name, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _done(name)
        lookup.set_exception(error)
    else:
        _done(name)
        lookup.set_result(found)


def _done(name: tuple[str, int]) -> None:
    with _lookups_lock:
        del _lookups[name]


def _connect(host: str, port: int, public_only: bool) -> _Socket:
    """Connect to the first address that answers. With `public_only`, one private address among them refuses the name:
    an honest name has none."""
    try:
        addresses = resolve(host, port)
    except (OSError, UnicodeError):
        raise Interrupted("the host name does not resolve") from None
    if public_only and not all(is_public(ip) for _, ip, _ in addresses):
        raise AddressRefused("the endpoint leads to an address that is not public")
    for family, _, where in addresses:
        sock = _Socket(family, socket.SOCK_STREAM)
        try:
            for option in _KEEPALIVE:
                sock.setsockopt(*option)
            sock.settimeout(min(CONNECT_SECONDS, remaining_seconds()))
            sock.connect(where)
        except OSError:
            sock.close()
            continue
        except TransportError:
            sock.close()
            raise
        return sock
    raise Interrupted("no connection to the endpoint")


class _Connection(HTTPConnection):
    public_only = False

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 80, self.public_only)


class _TlsConnection(HTTPSConnection):
    public_only = False

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 443, self.public_only)


class _PublicConnection(_Connection):
    public_only = True


class _PublicTlsConnection(_TlsConnection):
    public_only = True


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _through(proxy: str, **options: Any) -> urllib3.ProxyManager:
    """Return what sends requests through an operator's proxy, by CONNECT for https. Its address may be private."""
    auth = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=unquote(auth)) if auth else None
    manager = urllib3.ProxyManager(proxy, proxy_headers=headers, ssl_context=_tls_context(), **options)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager


def _require_public(host: str, port: int) -> None:
    """Refuse a name behind a proxy that leads to an address that is not public. Behind most proxies names are not known
    here: then the proxy's own rules guard its network."""
    try:
        addresses = resolve(host, port)
    except (OSError, UnicodeError):
        return
    if not all(is_public(ip) for _, ip, _ in addresses):
        raise AddressRefused("the endpoint leads to an address that is not public")


# --- exchanges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `body` holds it whole; for a stream it is empty, and the caller reads and closes `stream`."""

    status: int
    headers: dict[str, str]
    body: bytes
    stream: urllib3.BaseHTTPResponse | None


_context_lock = threading.Lock()
_shared_context: ssl.SSLContext | None = None


def _tls_context() -> ssl.SSLContext:
    """Return the one context of this process: reading the authorities takes milliseconds and a megabyte, and any
    stranger may name a new endpoint."""
    global _shared_context
    with _context_lock:
        if _shared_context is None:
            _shared_context = ssl.create_default_context()
            _shared_context.sslsocket_class = _TlsSocket
        return _shared_context


class Transport:
    """A pool of connections to one endpoint (scheme, host, port). Thread-safe."""

    def __init__(self, endpoint: str, *, public_only: bool) -> None:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._checked: tuple[str, int] | None = None
        """The host and port that have to be public, where a proxy connects to them."""
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        options: dict[str, Any] = {
            "timeout": timeout,
            "maxsize": MAX_POOL_CONNECTIONS,
            "blocksize": BLOCK_BYTES,
            "retries": False,
        }
        self._pool: HTTPConnectionPool | urllib3.ProxyManager
        proxy = proxy_for(endpoint)
        if proxy is not None:
            self._pool = _through(proxy, **options)
            self._checked = (host, parts.port or 443) if public_only else None
        elif parts.scheme == "https":
            self._pool = HTTPSConnectionPool(host, parts.port or 443, ssl_context=_tls_context(), **options)
            self._pool.ConnectionCls = _PublicTlsConnection if public_only else _TlsConnection
        else:
            self._pool = HTTPConnectionPool(host, parts.port or 80, **options)
            self._pool.ConnectionCls = _PublicConnection if public_only else _Connection

    def send(self, method: str, url: str, headers: Any, body: Any, *, stream: bool) -> Answer:
        """Make one exchange within this thread's deadline. With `stream`, the body of a success is left for the caller
        to read.

        Raises TransportError.
        """
        parts = urlsplit(url)
        target = parts.path + ("?" + parts.query if parts.query else "")
        remaining_seconds()
        if self._checked is not None:
            _require_public(*self._checked)
        try:
            with _reading_a_head():
                response = self._pool.urlopen(
                    method,
                    self._origin + target if isinstance(self._pool, urllib3.ProxyManager) else target,
                    body=body,
                    headers=headers,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    decode_content=False,
                    enforce_content_length=False,
                )
            return self._answer(response, method, stream)
        except ProxyError:
            remaining_seconds()
            raise Interrupted(
                f"the endpoint is not reached{way_to(self._origin)}: it refuses or does not answer"
            ) from None
        except (HTTPError, OSError, ValueError):
            # ValueError: http.client on some malformed heads. All three may quote the server: not chained.
            remaining_seconds()
            raise Interrupted("the connection broke or the answer is not HTTP") from None

    def _answer(self, response: urllib3.BaseHTTPResponse, method: str, stream: bool) -> Answer:
        headers: dict[str, str] = {}
        keep = False
        try:
            headers = _checked(response)
            if 300 <= response.status < 400:
                raise TransportError(f"the server answered {response.status}: redirects are not followed")
            if response.status < 300 and not _PLAIN.fullmatch(response.headers.get("content-encoding", "")):
                raise TransportError("the answer is compressed, although we did not ask for that")
            if stream and 200 <= response.status < 300:
                keep = True
                return Answer(response.status, headers, b"", response)
            cap = WHOLE_BODY_BYTES if response.status < 300 else ERROR_BODY_BYTES
            body = b"" if method == "HEAD" else response.read(cap + 1)
            if len(body) > cap:
                if response.status < 300:
                    raise TransportError(f"the answer is longer than {cap} bytes")
                return Answer(response.status, headers, b"", None)
            if response.length_remaining and response.status < 300:
                raise Interrupted("the connection broke in the answer's body")
            if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
                if response.status >= 400:  # a page for people, or worse
                    return Answer(response.status, headers, b"", None)
                raise TransportError("the answer declares XML entities")
            keep = True
            response.release_conn()
            return Answer(response.status, headers, body, None)
        finally:
            if not keep:
                response.close()


def _checked(response: urllib3.BaseHTTPResponse) -> dict[str, str]:
    """Return the headers that we use; each may occur once and must be well formed."""
    headers: dict[str, str] = {}
    for name, form in _WELL_FORMED.items():
        values = response.headers.getlist(name)
        if not values:
            continue
        if len(values) > 1 or not form.fullmatch(values[0]):
            raise TransportError(f"the answer's {name} is malformed")
        headers[name] = values[0]
    if "last-modified" in headers and not _is_date(headers["last-modified"]):
        raise TransportError("the answer's last-modified is malformed")
    # Only a refusal uses the date, so a wrong one, or a second one from a proxy, is ignored.
    dates = response.headers.getlist("date")
    if len(dates) == 1 and _DATE.fullmatch(dates[0]) and _is_date(dates[0]):
        headers["date"] = dates[0]
    return headers


def _is_date(text: str) -> bool:
    try:
        parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return False
    return True
