"""A server between a network and its store: writes down what is asked for, and can hold an object's body back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import parse_qs, urlsplit

HOLD_SECONDS = 60.0
_BLOCK = 256 << 10


@dataclass(frozen=True)
class Request:
    """One that was answered. `path`: /BUCKET/KEY. `first`: the first byte that a GET asked for. `upload`: what a
    request about an upload is about: begin, part N or complete."""

    method: str
    path: str
    first: int
    upload: str | None
    status: int


@dataclass
class Recorder:
    """`requests` in the order of their answers' beginnings."""

    endpoint: str
    requests: list[Request] = field(default_factory=list)
    _held: tuple[str, int] | None = None
    _released: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def of(self, path_end: str) -> list[Request]:
        """Everything that was asked of objects whose path ends so."""
        with self._lock:
            return [request for request in self.requests if request.path.endswith(path_end)]

    def hold(self, path: str, num_bytes: int) -> None:
        """From now on nobody gets more than so many bytes of this object in one body."""
        self._released.clear()
        self._held = path, num_bytes

    def release(self) -> None:
        """What is held goes on."""
        self._held = None
        self._released.set()

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def allowed(self, path: str) -> int | None:
        """Bytes of a body that may go at once; None: all of them."""
        held = self._held
        return None if held is None or held[0] != path else held[1]

    def await_release(self) -> None:
        self._released.wait(HOLD_SECONDS)


@contextmanager
def recorded(target: str) -> Iterator[Recorder]:
    """A recorder before the server at `target` (http://HOST:PORT), until the block ends."""
    host = urlsplit(target).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server = HTTPConnection(host, timeout=HOLD_SECONDS)
            try:
                # Host and all that is signed go on as they came.
                server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    server.putheader(name, value)
                server.endheaders(body)
                self.answer(server.getresponse())
            except (OSError, HTTPException):  # either side has gone
                self.close_connection = True
            finally:
                server.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

        def answer(self, response: HTTPResponse) -> None:
            parts = urlsplit(self.path)
            recorder.note(
                Request(self.command, parts.path, self.first(), _upload(self.command, parts.query), response.status)
            )
            size = response.getheader("Content-Length")
            whole = b"" if size is not None else response.read()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            if response.status != 204:
                self.send_header("Content-Length", size or str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)
            sent = 0
            while block := response.read(_BLOCK):
                allowed = recorder.allowed(parts.path)
                if allowed is not None and sent + len(block) > allowed:
                    recorder.await_release()
                self.wfile.write(block)
                sent += len(block)

        def first(self) -> int:
            asked = self.headers.get("Range", "")
            return int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    recorder = Recorder(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield recorder
    finally:
        recorder.release()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed breaks its connection off: that is meant."""


def _upload(method: str, query: str) -> str | None:
    fields = parse_qs(query, keep_blank_values=True)
    if method == "POST":
        return "begin" if "uploads" in fields else "complete" if "uploadId" in fields else None
    if method == "PUT" and "partNumber" in fields:
        return f"part {fields['partNumber'][0]}"
    return None
