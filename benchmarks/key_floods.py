"""One window of keys beside real servers that send without an end, or beside copycats: a process of its own for each,
so that its peak memory is that window's alone. Started by benchmarks/bench_keys.py.

    python benchmarks/key_floods.py KIND HOSTILE WINDOW LATENCY

The collection is a validator's own (murmur/node/fetch/payloads.py collect_keys) over its own transport. Prints a JSON
line.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from key_servers import ROUND, RUN, named, payload, verify

from murmur.node.fetch.payloads import collect_keys, collect_pinned
from murmur.node.fetch.sources import Sources
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import Digest, Peer, Pointer, Slot, Uid
from storage.s3 import open_pointer
from storage.transport import TRAFFIC

HONEST = 20
SETTLE_SECONDS = 3.0
"""Until the servers listen and each honest one's client is made."""


class Servers:
    """Those of benchmarks/key_servers.py: hostile and honest ones in a process each, so that the floods do not keep the
    honest ones from answering."""

    def __init__(self, kind: str, hostile: int, since: float, latency: float) -> None:
        self._processes = [_serve(kind, hostile, 0, since, latency), _serve(kind, 0, HONEST, since, latency)]
        self.ports = [int(port) for process in self._processes for port in _line(process).split()]

    def requests(self) -> int:
        """How many the honest ones have had."""
        honest = self._processes[1]
        assert honest.stdin is not None
        honest.stdin.write("\n")
        honest.stdin.flush()
        return int(_line(honest))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _serve(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).with_name("key_servers.py")), *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def peers(ports: list[int], copycats: int) -> list[Peer]:
    """One for each server, in order; before them copycats, which point to the first honest one's."""
    slots = [Slot(1, Pointer(f"http://127.0.0.1:{port}", "bucket", "key", "secret"), None) for port in ports]
    slots = [slots[-HONEST]] * copycats + slots
    hostile = copycats + len(ports) - HONEST
    names = [named(number) for number in (*range(HONEST, HONEST + hostile), *range(HONEST))]
    return [Peer(name, Uid(uid), 0, False, 0, slot) for uid, (name, slot) in enumerate(zip(names, slots, strict=True))]


def measured(kind: str, hostile: int, window: float, latency: float) -> dict[str, object]:
    copycats = hostile if kind == "copycats" else 0
    servers = Servers(kind, hostile - copycats, time.monotonic() + SETTLE_SECONDS + window / 5, latency)
    try:
        everybody = peers(servers.ports, copycats)
        opened = lru_cache(maxsize=512)(partial(open_pointer, local=True))
        sources = Sources(everybody, opened)
        for peer in everybody[-HONEST:]:
            sources.bucket_of(peer.id)()
        until = time.monotonic() + window
        with tempfile.TemporaryDirectory() as cache:
            found = collect_keys(
                RUN,
                ROUND,
                [peer.id for peer in everybody],
                sources,
                verify,
                seconds_left=lambda: until - time.monotonic(),
                cache=Path(cache),
            )
            asked, read = servers.requests(), payload_reads(everybody, sources, Path(cache)) if copycats else None
        return {
            "hostile": f"{hostile} {kind}",
            "read": len(found.keys() & {peer.id for peer in everybody[-HONEST:]}),
            "of": HONEST,
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
            "cpu_seconds": round(time.process_time(), 1),
            "received_mb": round(TRAFFIC.moved()[1] / 1e6, 1),
            "key_requests": asked,
            **({} if read is None else {"payload_reads": read}),
        }
    finally:
        servers.end()


def payload_reads(everybody: list[Peer], sources: Sources, cache: Path) -> float:
    """How many payloads are read where all copycats have committed to the first honest one's."""
    victim = everybody[-HONEST].id
    sealed = payload(victim).object
    envelope = Digest(sha256(sealed[:ENVELOPE_BYTES]).digest())
    spec: Any = SimpleNamespace(object_bytes=len(sealed), gauntlet=SimpleNamespace(contributors=HONEST))
    who = [(peer.id, envelope) for peer in everybody[: 1 - HONEST]]
    _, before = TRAFFIC.moved()
    pinned = collect_pinned(spec, RUN, ROUND, who, sources, verify, seconds_left=lambda: 60.0, cache=cache).outcome()
    assert pinned[victim] == sealed
    return round((TRAFFIC.moved()[1] - before) / len(sealed), 2)


def main(kind: str, hostile: int, window: float, latency: float) -> None:
    print(json.dumps(measured(kind, hostile, window, latency)))  # noqa: T201


if __name__ == "__main__":
    kind, hostile, window, latency = sys.argv[1:]
    main(kind, int(hostile), float(window), float(latency))
