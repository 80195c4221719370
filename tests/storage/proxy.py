"""An HTTP/1.1 proxy between our Bucket and a real S3 server that spoils the exchanges it is told to.

A Fault picks requests and names what becomes of them; all others pass untouched, the signed Host header included, so
the server still verifies the client's signature. Connections to the client are kept alive as the server would; each
request travels to the server on a connection of its own. One thread per connection, bodies are streamed.

An action gets the exchange and returns what the client is answered, or raises HangUp. It decides by itself whether and
when the server hears of the request (`Exchange.forward`): a fault before or after the deed.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO, Literal
from urllib.parse import parse_qs, unquote, urlsplit

BLOCK_BYTES = 64 << 10
SERVER_SECONDS = 60.0
"""How long the proxy waits for the real server: a hang of it fails the test, by its own time-out."""


class HangUp(Exception):
    """The connection to the client ends here: with a reset, or as if the server had closed it in good order."""

    def __init__(self, *, reset: bool) -> None:
        self.reset = reset


@dataclass(frozen=True, slots=True)
class Request:
    """What the client asks. Header names are lower-case; `head` holds the head's bytes as they came."""

    method: str
    target: str
    headers: Mapping[str, str]
    head: bytes

    @property
    def key(self) -> str:
        """The object's key, in path style; empty when the bucket itself is asked."""
        return unquote(urlsplit(self.target).path.lstrip("/").partition("/")[2])

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query, True).items()}

    @property
    def part(self) -> int:
        return int(self.query.get("partNumber", 0))

    @property
    def operation(self) -> str:
        """S3's name for it."""
        asked = self.query
        if self.method == "POST":
            return "CompleteMultipartUpload" if "uploadId" in asked else "CreateMultipartUpload"
        if self.method == "PUT":
            return "UploadPart" if "uploadId" in asked else "PutObject"
        if self.method == "DELETE":
            return "AbortMultipartUpload" if "uploadId" in asked else "DeleteObject"
        if self.method == "HEAD":
            return "HeadObject"
        if self.key:
            return "GetObject"
        return "ListMultipartUploads" if "uploads" in asked else "ListObjectsV2"


@dataclass(slots=True)
class Response:
    """An answer on its way to the client. A body that stalls or breaks off does so while it is iterated."""

    status: str
    headers: dict[str, str]
    body: Iterable[bytes] = ()
    after: Literal["keep", "close", "reset"] = "keep"
    """What becomes of the connection then."""
    endless_head: bool = False
    """No empty line follows the headers: the body goes on where they end."""

    def read(self) -> bytes:
        """The body as a whole, which then stands for the stream."""
        self.body = (whole := b"".join(self.body),)
        return whole


def xml(status: str, body: str, **headers: str) -> Response:
    """An answer of the server's own making."""
    sent = {"content-type": "application/xml", "content-length": str(len(body)), **headers}
    return Response(status, {name.replace("_", "-"): value for name, value in sent.items()}, (body.encode(),))


class Exchange:
    """One request, and what an action may do about it."""

    def __init__(self, request: Request, body: Iterator[bytes], fault: "Fault | None", proxy: "Proxy") -> None:
        self.request = request
        self.body = body
        """The request's body, as it comes in."""
        self.fault = fault
        self.forwarded = False
        """Whether the server heard of the request."""
        self._proxy = proxy
        self._upstream = ExitStack()

    def wait(self, seconds: float) -> None:
        """Let time pass; not beyond the end of the test."""
        if self._proxy.over.wait(seconds):
            raise HangUp(reset=True)

    def forward(self, head: bytes | None = None) -> Response:
        """Have the server do it; its answer, the body still on its way. `head`: instead of the client's own."""
        self.forwarded = True
        upstream = self._upstream.enter_context(socket.create_connection(self._proxy.server, SERVER_SECONDS))
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream.sendall(head or self.request.head)
        for block in self.body:
            with suppress(OSError):  # refused unread; the answer says why
                upstream.sendall(block)
        file = self._upstream.enter_context(upstream.makefile("rb", BLOCK_BYTES))
        status = "100"
        while status.startswith("1"):
            first, headers, _ = read_head(file)
            status = first.split(" ", 1)[1]
        if self.request.method == "HEAD":
            return Response(status, headers)
        answer = Response(status, headers, body_of(file, headers))
        if "transfer-encoding" in headers:
            del headers["transfer-encoding"]
            headers["content-length"] = str(len(answer.read()))
        return answer

    def close(self) -> None:
        """Let go of the connection to the server."""
        self._upstream.close()


Action = Callable[[Exchange], Response]


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of some requests: of each of `operations` (none named: of all) the `first` one, and so many in all.
    None: all that follow."""

    does: Action
    operations: tuple[str, ...] = ()
    first: int = 1
    times: int | None = None

    def hits(self, nth: int) -> bool:
        return nth >= self.first and (self.times is None or nth < self.first + self.times)


@dataclass
class Proxy:
    """A running proxy. The first fault that hits a request has it."""

    endpoint: str
    server: tuple[str, int]
    faults: list[Fault] = field(default_factory=list)
    seen: list[Exchange] = field(default_factory=list)
    bugs: list[BaseException] = field(default_factory=list)
    """What the proxy itself failed with: no test passes on it."""
    over: threading.Event = field(default_factory=threading.Event)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def operations(self) -> list[str]:
        return [one.request.operation for one in self.seen]

    def restart(self) -> None:
        """Count from one again."""
        with self._lock:
            self._counts.clear()

    def _fault(self, operation: str) -> Fault | None:
        with self._lock:
            for index, fault in enumerate(self.faults):
                if not fault.operations or operation in fault.operations:
                    self._counts[index, operation] = nth = self._counts.get((index, operation), 0) + 1
                    if fault.hits(nth):
                        return fault
        return None

    def serve(self, client: socket.socket) -> None:
        """Answer requests of one connection until either side ends it."""
        with client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            file = client.makefile("rb", BLOCK_BYTES)
            try:
                while self._answer(client, file):
                    pass
            except HangUp as end:
                if end.reset:
                    reset(client)
            except (EOFError, OSError):
                pass
            except Exception as bug:  # noqa: BLE001 - raised where the proxy ends
                self.bugs.append(bug)
            finally:
                file.close()

    def _answer(self, client: socket.socket, file: BinaryIO) -> bool:
        first, headers, head = read_head(file)
        method, target, _ = first.split(" ")
        request = Request(method, target, headers, head)
        fault = self._fault(request.operation)
        exchange = Exchange(request, body_of(file, headers), fault, self)
        self.seen.append(exchange)
        try:
            answer = fault.does(exchange) if fault else exchange.forward()
            client.sendall(head_of(answer))
            for block in () if method == "HEAD" and not answer.endless_head else answer.body:
                client.sendall(block)
        finally:
            exchange.close()
        if answer.after != "keep":
            raise HangUp(reset=answer.after == "reset")
        for _ in exchange.body:
            pass
        return True


@contextmanager
def proxied(endpoint: str) -> Iterator[Proxy]:
    """A proxy before the server at `endpoint` (http), on a port of its own, until the block ends."""
    where = urlsplit(endpoint)
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", (where.hostname or "", where.port or 80))
    clients: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                threading.Thread(target=proxy.serve, args=(client,), name="proxy", daemon=True).start()

    thread = threading.Thread(target=accept, name="proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        # close() alone does not wake a thread that is blocked in accept() or recv().
        for one in (listener, *clients):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
    assert not proxy.bugs, proxy.bugs


def reset(sock: socket.socket) -> None:
    """Make the coming close a reset (RST): what is still unsent is lost."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# --- HTTP/1.1, as much of it as boto3 and an S3 server speak ----------------------------------------------------------


def read_head(file: BinaryIO) -> tuple[str, dict[str, str], bytes]:
    """First line, headers and the bytes of both. EOFError at the end of the connection."""
    lines = []
    while (line := file.readline()) not in (b"\r\n", b"\n"):
        if not line:
            raise EOFError
        lines.append(line)
    first, *rest = (line.decode("latin-1").strip() for line in lines)
    pairs = (line.partition(":") for line in rest)
    return first, {name.lower(): value.strip() for name, _, value in pairs}, b"".join(lines) + b"\r\n"


def body_of(file: BinaryIO, headers: Mapping[str, str]) -> Iterator[bytes]:
    """The body that follows a head. EOFError when it breaks off."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(file)
    return _block_by_block(file, int(headers.get("content-length", 0)))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while size := int(file.readline().partition(b";")[0], 16):
        yield file.read(size)
        file.readline()
    file.readline()


def _block_by_block(file: BinaryIO, left: int) -> Iterator[bytes]:
    while left:
        block = file.read1(min(left, BLOCK_BYTES))
        if not block:
            raise EOFError
        left -= len(block)
        yield block


def head_of(answer: Response) -> bytes:
    lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {value}" for name, value in answer.headers.items())]
    return ("\r\n".join(lines) + ("" if answer.endless_head else "\r\n\r\n")).encode("latin-1")
