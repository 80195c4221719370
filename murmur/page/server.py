"""The page and its JSON over HTTP: GET only, served from memory, by default to this machine only.

    GET /                          the page
    GET /api/rounds?since=VERSION  rounds that have changed after this version (default 0: all), and the run's health
    GET /api/rounds/NUMBER         one round in full: each validator's report on each hotkey, phases by node
    GET /api/page?since=V&peers=N  as /api/rounds, in the page's own short form (murmur/page/short.py)

An answer never waits for the run: a thread reads new data once a second, and a round is encoded as JSON once per
change. docs/dashboard.md has the fields.
"""

import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import uvicorn
from loguru import logger
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from murmur.page import cluster
from murmur.page.health import health, planned_seconds
from murmur.page.schedule import schedule
from murmur.page.source import PageSource
from murmur.page.tables import as_csv, members, peer_rounds
from murmur.page.validators import validators
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec, TrainingSpec

LOOPBACK = "127.0.0.1"
ANY = ("0.0.0.0", "::")
"""Listens at all addresses of this machine."""
FP32_BYTES = 4
READ_SECONDS = 1.0
PORTION_SECONDS = 0.01
"""Pause between portions of a long run, in which requests are served."""
ANSWER_BYTES = 1 << 20
"""Approximate size of the rounds in one answer; the page requests the rest."""
STATIC = Path(__file__).parent / "static"
SCRIPTS = (
    "page.js",
    "store.js",
    "peers.js",
    "members.js",
    "round.js",
    "matrix.js",
    "charts.js",
    "uPlot.iife.min.js",
)
FILES = (*SCRIPTS, "page.css", "uPlot.min.css")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Watched:
    """A run that its own thread keeps up to date. `answer` and `detail` may be called from any thread."""

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._told: dict[str, Any] = {}
        self._session = str(time.time_ns())
        self._more = self.read()

    def read(self) -> bool:
        """Read new data, or a portion of it; return whether there is more."""
        with self._lock:
            more = self.source.read()
            if not more:  # of a long run's past, requested rounds are enough
                self.source.rounds.encode()
            for member in (self.source.cluster() or cluster.ClusterNow()).members:
                self.source.rounds.peers.of(member.member)  # also one that has contributed to no round yet
            self._told = _facts(self.source)
            if more:
                known = len(self.source.rounds)
                self._told |= {"state": "waiting", "sentence": f"Reading the run so far: {known} rounds."}
            return more

    def follow(self) -> None:
        """Keep up to date until `close`."""
        threading.Thread(target=self._run, name="dashboard reader", daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        self.source.close()

    def answer(self, since: int) -> bytes:
        """Return the JSON of /api/rounds."""
        with self._lock:
            told, version, more = self.source.rounds.since(since, ANSWER_BYTES)
            return _answer(self._told | {"version": version, "more": more}, told)

    def short(self, since: int, peers: int) -> bytes:
        """Return the JSON of /api/page, with all peers but the first `peers`. Their places are valid for one
        `session`."""
        with self._lock:
            told, version, more = self.source.rounds.since(since, ANSWER_BYTES, short=True)
            new = self.source.rounds.peers.since(peers)
            return _answer(
                self._told | {"version": version, "more": more, "peers": new, "session": self._session}, told
            )

    def peer(self, asked: str) -> bytes | None:
        """Return the JSON of /api/peers/NAME, for a hotkey or a member's name; None when no round has that peer."""
        with self._lock:
            hotkeys = {name: hotkey for hotkey, name in self.source.names.items()}
            peer = hotkeys.get(asked, asked)
            rounds = peer_rounds(self.source.rounds, peer)
            found = {"hotkey": peer, "name": self.source.names.get(peer), "rounds": rounds}
        return json.dumps(found, allow_nan=False).encode() if rounds else None

    def table(self) -> bytes:
        """Return /api/rounds.csv."""
        with self._lock:
            return as_csv(self.source.rounds)

    def detail(self, number: int) -> dict[str, Any] | None:
        """Return the JSON of /api/rounds/NUMBER."""
        with self._lock:
            found = self.source.detail(number)
            rounds = self.source.rounds
            more = {"validators": validators(rounds, number), "members": members(rounds, number)}
            return found and {**found, **more}

    def _run(self) -> None:
        while not self._ending.wait(PORTION_SECONDS if self._more else READ_SECONDS):
            try:
                self._more = self.read()
            except OSError as fault:  # a file that is just being replaced, or a removed folder
                logger.debug("the page reads on later: {fault}", fault=str(fault))


def application(watched: Watched, host: str = LOOPBACK) -> ASGIApp:
    """Return the application that serves the page over one run, listening at `host`."""

    def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    def file(request: Request) -> Response:
        return FileResponse(STATIC / request.url.path.rpartition("/")[2])

    def rounds(request: Request) -> Response:
        since = _count(request, "since")
        if since is None:
            return _refused("since: expected the version of an earlier answer, or 0 for all rounds")
        return Response(watched.answer(since), media_type="application/json")

    def short(request: Request) -> Response:
        since, peers = _count(request, "since"), _count(request, "peers")
        if since is None or peers is None:
            return _refused("since, peers: expected the version of an earlier answer, and how many peers are known")
        return Response(watched.short(since, peers), media_type="application/json")

    def one(request: Request) -> Response:
        found = watched.detail(request.path_params["number"])
        if found is None:
            return _refused("this round is not known", 404)
        try:
            return Response(json.dumps(found, allow_nan=False), media_type="application/json")
        except ValueError:
            return _refused("the nodes' events of this round hold numbers that are none", 404)

    def peer(request: Request) -> Response:
        found = watched.peer(request.path_params["name"])
        if found is None:
            return _refused("no round tells of this hotkey or name", 404)
        return Response(found, media_type="application/json")

    def table(request: Request) -> Response:
        return Response(watched.table(), media_type="text/csv", headers=_as_file("rounds.csv"))

    routes = [
        Route("/", page),
        *(Route(f"/{name}", file) for name in FILES),
        Route("/api/page", short),
        Route("/api/rounds", rounds),
        Route("/api/rounds.csv", table),
        Route("/api/peers/{name}", peer),
        Route("/api/rounds/{number:int}", one),
    ]
    # Reject other host names: a stranger's page may make its name resolve to this machine.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost", "[::1]", host, f"[{host}]"])
    return _Sealed(Starlette(routes=routes, middleware=[hosts]))


class _Sealed:
    """Adds the same headers to every answer: only our own scripts, styles and addresses are allowed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, sealed)


class Page:
    """The page over a run, served by its own threads from `begin` until `close`; earlier requests wait.

    `port` 0: any that is free. `host`: the address to listen at; requests have to name it, 127.0.0.1 or localhost (as
    for a container's port on its host). Raises ConfigError for a port that is taken, or an address that is not this
    machine's.
    """

    def __init__(self, source: PageSource, port: int = 0, host: str = LOOPBACK) -> None:
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            both = host == ANY[1] and socket.has_dualstack_ipv6()
            self._socket = socket.create_server(where[:2], family=family, dualstack_ipv6=both)
        except (OSError, UnicodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is no host"
            raise ConfigError(
                f"--host {host} --port {port} cannot be used ({why}): choose others, or leave them out"
            ) from None
        shown = LOOPBACK if host in ANY else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
        self._watched = Watched(source)
        config = uvicorn.Config(
            application(self._watched, host),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="dashboard", daemon=True
        )

    def begin(self) -> Self:
        """Start to serve. Its threads import modules. A caller that imports large modules at the same time may deadlock
        with them where modules import each other in a circle."""
        self._watched.follow()
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait until interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        self._watched.close()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(5.0)
        self._socket.close()


def _facts(source: PageSource) -> dict[str, Any]:
    """Return the facts that belong to no single round."""
    spec, now = source.spec, source.cluster()
    run = spec if isinstance(spec, RunSpec) else None
    state, sentence = health(source)
    decided = [one for one in source.rounds if one.decided]
    void = sum(one.void[one.agreed() or ""] for one in decided)
    done = decided[-1].number + 1 - void if decided else 0
    return {
        "run": spec.name if spec is not None else None,
        "state": state,
        "sentence": sentence,
        "ended": source.stage().ended,
        "names": dict(source.names),
        "model_bytes": FP32_BYTES * spec.layout.num_parameters if spec is not None else None,
        "object_bytes": spec.object_bytes if spec is not None else None,
        "round_blocks": run.clock.round_blocks if run is not None else None,
        "first_deadline": run.rounds_clock.commit_deadline(0) if run is not None else None,
        "round_seconds": planned_seconds(source),
        "schedule": schedule(spec.inner, done) if spec is not None else None,
        "num_rounds": len(source.rounds),
        "round_tokens": _round_tokens(spec) if spec is not None else None,
        "steps": spec.inner.steps if spec is not None else None,
        "cluster": cluster.facts(now, source.rounds) if now is not None else None,
    }


def _answer(facts: Mapping[str, Any], rounds: Sequence[bytes]) -> bytes:
    return json.dumps(facts, allow_nan=False).encode()[:-1] + b', "rounds": [' + b",\n".join(rounds) + b"]}"


def _round_tokens(spec: TrainingSpec) -> int:
    """Return the tokens that one contributor trains on in a round, by the run's first constants."""
    return spec.inner.steps * spec.inner.sequences * spec.model.context


def _count(request: Request, name: str) -> int | None:
    """Return a count of the query, 0 where it is left out; None for an invalid one."""
    asked = request.query_params.get(name, "0")
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 16 else None


def _as_file(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _refused(why: str, status: int = 400) -> Response:
    return Response(json.dumps({"error": why}), status, media_type="application/json")
