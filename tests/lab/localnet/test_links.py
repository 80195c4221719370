"""Links before a real server: whole bytes at the speed that was set, nothing while they stall, no lasting harm."""

import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from murmur.lab.localnet.links import LATE_SECONDS, Links, _Way

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


def fetch(links: Links, name: str, timeout: float = 120.0) -> float:
    """Seconds that the body took."""
    began = time.monotonic()
    with urllib.request.urlopen(links.endpoint(name), timeout=timeout) as answer:
        assert answer.read() == BODY
    return time.monotonic() - began


def test_a_link_passes_everything_on(links: Links) -> None:
    fetch(links, "one")


def test_a_slow_link_takes_as_long_as_its_speed_says(links: Links) -> None:
    links.slow("one", math.inf, 4 * len(BODY))
    assert fetch(links, "one") > 0.24
    links.clear("one")
    fetch(links, "one")


def test_a_slow_link_leaves_the_others_alone_and_is_whole_when_it_is_cleared(links: Links) -> None:
    links.slow("one", math.inf, len(BODY) / 1e6)
    fetch(links, "two")
    links.clear("one")
    fetch(links, "one")


def test_the_connections_of_a_slow_link_share_its_speed(links: Links) -> None:
    links.slow("one", math.inf, 4 * len(BODY))
    began = time.monotonic()
    threads = [threading.Thread(target=fetch, args=(links, "one")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began > 0.49


def test_each_direction_has_its_own_speed(links: Links) -> None:
    """A request is short, its answer is not: an uplink for which the body would take minutes does not hold it up."""
    links.slow("one", len(BODY) / 100, math.inf)
    assert 0.02 < fetch(links, "one") < 50
    links.slow("one", math.inf, 4 * len(BODY))
    assert fetch(links, "one") > 0.24


def test_a_way_makes_up_for_being_woken_late_and_saves_nothing_up_while_it_is_idle() -> None:
    way = _Way()
    way.bytes_per_second = 1000.0
    now = 50.0
    for _ in range(100):
        now += way.take(10, now) + 0.004  # 4 ms late each time
    assert now == pytest.approx(50.0 + 100 * 0.01, abs=0.0041)
    assert way.take(10, now + LATE_SECONDS + 1.0) == pytest.approx(0.01)


def test_latency_falls_on_every_answer(links: Links) -> None:
    links.slow("one", math.inf, math.inf, 0.1)
    assert fetch(links, "one") >= 0.2  # there and back


def test_nothing_passes_a_stalled_link_until_it_is_cleared(links: Links) -> None:
    links.stall("one")
    with pytest.raises(TimeoutError):
        fetch(links, "one", timeout=0.2)
    began = time.monotonic()
    threading.Timer(0.2, links.clear, ("one",)).start()
    fetch(links, "one")
    assert time.monotonic() - began >= 0.2


def test_a_link_outlives_its_server(links: Links, server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        fetch(links, "one")
    again = serve(server.server_port)
    fetch(links, "one")
    again.shutdown()
    again.server_close()
