"""Links before a real server: whole bytes at the speed that was set, nothing while they stall, no lasting harm."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localnet.links import Links

BODY = bytes(range(256)) * 400  # 100 KB


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up waiting is no news."""


def serve(port: int = 0) -> ThreadingHTTPServer:
    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    started = serve()
    yield started
    started.shutdown()
    started.server_close()


@pytest.fixture
def links(server: ThreadingHTTPServer) -> Iterator[Links]:
    opened = Links(f"http://127.0.0.1:{server.server_port}", ("one", "two"))
    yield opened
    opened.close()


def fetch(links: Links, name: str, timeout: float = 20.0) -> float:
    """Seconds that the body took."""
    began = time.monotonic()
    with urllib.request.urlopen(links.endpoint(name), timeout=timeout) as answer:
        assert answer.read() == BODY
    return time.monotonic() - began


def test_a_link_passes_everything_on(links: Links) -> None:
    assert fetch(links, "one") < 1.0


def test_a_slow_link_takes_as_long_as_its_speed_says_and_leaves_the_others_alone(links: Links) -> None:
    links.slow("one", len(BODY), 0.0)
    assert 0.9 < fetch(links, "one") < 3.0
    assert fetch(links, "two") < 0.5
    links.clear("one")
    assert fetch(links, "one") < 0.5


def test_the_connections_of_a_slow_link_share_its_speed(links: Links) -> None:
    links.slow("one", len(BODY), 0.0)
    began = time.monotonic()
    threads = [threading.Thread(target=fetch, args=(links, "one")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began > 1.9


def test_latency_falls_on_every_answer(links: Links) -> None:
    links.slow("one", 1e9, 0.2)
    assert fetch(links, "one") > 0.4  # there and back


def test_nothing_passes_a_stalled_link_until_it_is_cleared(links: Links) -> None:
    links.stall("one")
    with pytest.raises(TimeoutError):
        fetch(links, "one", timeout=0.5)
    threading.Timer(0.5, links.clear, ("one",)).start()
    assert fetch(links, "one") > 0.4


def test_a_link_outlives_its_server(links: Links, server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        fetch(links, "one", timeout=5.0)
    again = serve(server.server_port)
    assert fetch(links, "one") < 1.0
    again.shutdown()
    again.server_close()
