"""A public bucket behind a domain, as a content network serves it: GET and HEAD of /KEY, ranges and If-Match, nothing
signed, pages for people where something is missing, no other method."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from murmur.protocol.errors import ObjectMissing
from storage.s3 import RangedBucket

PAGE = b"<!DOCTYPE html><html><body>There is nothing here.</body></html>"
MOST = 64 << 20


@dataclass
class Public:
    """A running server. `requests`: method, path and lower-case names of the headers of each request."""

    endpoint: str
    requests: list[tuple[str, str, frozenset[str]]] = field(default_factory=list)


@contextmanager
def public(bucket: RangedBucket) -> Iterator[Public]:
    """Serve `bucket`, opened as its owner, to everybody on 127.0.0.1 until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            served.requests.append((self.command, self.path, frozenset(name.lower() for name in self.headers)))
            if self.command not in ("GET", "HEAD"):
                return self.answer(405, PAGE)
            try:
                data, facts = bucket.get(self.path[1:], max_bytes=MOST, timeout_seconds=20), None
                facts = bucket.head(self.path[1:], timeout_seconds=20)
            except ObjectMissing:
                return self.answer(404, PAGE)
            assert facts is not None
            if self.headers.get("If-Match", facts.etag) != facts.etag:
                return self.answer(412, PAGE)
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked is None:
                return self.answer(200, data, ETag=facts.etag)
            first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            self.answer(206, data[first : last + 1], ETag=facts.etag, **where)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Public(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
