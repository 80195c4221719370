"""A store that lets everybody do everything, whatever a request is signed with: what a bucket's wrong policy looks like
from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

_UPLOAD = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"


@contextmanager
def permissive() -> Iterator[str]:
    """Serve on 127.0.0.1 until the block ends; the endpoint."""
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        @property
        def key(self) -> str:
            """The path's last word: the bucket's own name may stand before it or not."""
            return urlsplit(self.path).path.rsplit("/", 1)[1]

        def do_PUT(self) -> None:
            objects[self.key] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200)

        def do_GET(self) -> None:
            self.answer(200 if self.key in objects else 404, objects.get(self.key, b""))

        def do_HEAD(self) -> None:
            self.answer(200 if self.key in objects else 404)

        def do_DELETE(self) -> None:
            objects.pop(self.key, None)
            self.answer(204)

        def do_POST(self) -> None:
            self.answer(200, _UPLOAD)

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
