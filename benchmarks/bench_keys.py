"""How many honest keys a validator reads beside hostile hotkeys: by one lasting collection (storage/collect.py), and by
the polls that it replaced.

    python benchmarks/bench_keys.py [--hostile 200] [--window 20] [--latency 0.4]

20 honest hotkeys stand behind the hostile ones in the order, publish their keys a fifth of the window after block D,
and answer after `latency`. Hostile ones stall, have nothing (and answer as fast), or point to a private address.
Servers are modelled, in real time; clients of refused pointers are boto3's own. Prints one JSON line.

`floods`: the same window beside real servers that send without an end, and beside copycats of one hotkey, each in a
process of its own (benchmarks/key_floods.py): honest keys, the validator's peak memory, requests for keys.

Polls, as they were: 16 threads, 5 s each, a quarter of a second apart, in order of uid, of the peer's bucket and of
the validators' mirrors, which have nothing before V; a client was made before its pointer was refused.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from commit import commit

from murmur.protocol.errors import ConfigError, ObjectMissing, StorageError
from murmur.protocol.messages import REVEAL_BYTES
from murmur.protocol.types import PeerId, Pointer
from storage.collect import Collection, gather
from storage.exchange import Source, Wanted
from storage.s3 import RangedBucket, open_bucket, open_pointer

HONEST = 20
MIRRORS = 10
KEY = bytes(REVEAL_BYTES)


@dataclass
class Server:
    """A bucket whose server answers after `latency` seconds and has the key from `since` on."""

    latency: float
    since: float = 0.0

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        there = time.monotonic() >= self.since
        time.sleep(max(0.0, min(self.latency, timeout_seconds)))
        if timeout_seconds < self.latency:
            raise StorageError("get: out of time")
        if not there:
            raise ObjectMissing("get: there is no such object or bucket")
        return KEY


def opener(server: Server) -> Callable[[], RangedBucket]:
    return lambda: server  # type: ignore[return-value]


def refused(number: int, client_first: bool) -> Callable[[], RangedBucket]:
    endpoint = f"https://10.{number // 250}.0.{number % 250 + 1}"

    def made_and_refused() -> RangedBucket:
        open_bucket(endpoint, "bucket", "key", "secret", local=False)
        raise ConfigError("the pointer's endpoint leads to an address that is not public; it was not followed")

    pointer = Pointer(endpoint, "bucket", "key", "secret")
    return made_and_refused if client_first else partial(open_pointer, pointer, local=False)


def hostile(kind: str, number: int, options: argparse.Namespace, client_first: bool) -> Callable[[], RangedBucket]:
    match ("stalling", "absent", "refused")[number % 3] if kind == "mixed" else kind:
        case "stalling":
            return opener(Server(latency=1e9))
        case "absent":
            return opener(Server(options.latency, since=1e18))
        case _:
            return refused(number, client_first)


def peers(kind: str, options: argparse.Namespace, *, before: bool) -> list[Wanted]:
    since = time.monotonic() + options.window / 5
    openers = [hostile(kind, number, options, before) for number in range(options.hostile)]
    openers += [opener(Server(options.latency, since)) for _ in range(HONEST)]
    mirrors = [Source(opener(Server(0.05, since=1e18)), "k")] * (MIRRORS if before else 0)
    return [
        Wanted(
            PeerId(sha256(number.to_bytes(4, "little")).digest()), (Source(own, "k"), *mirrors), len(KEY), KEY.__eq__
        )
        for number, own in enumerate(openers)
    ]


def by_polls(wanted: list[Wanted], seconds_left: Callable[[], float]) -> int:
    found: set[PeerId] = set()
    while len(found) < len(wanted) and (left := seconds_left()) > 0:
        missing = [item for item in wanted if item.peer not in found]
        got = gather(missing, timeout_seconds=min(5.0, left / 4), max_threads=16)
        found |= {peer for peer, data in got.items() if isinstance(data, bytes)}
        time.sleep(0.25)
    return len(found)


def by_collection(wanted: list[Wanted], seconds_left: Callable[[], float]) -> int:
    found = Collection(wanted, seconds_left=seconds_left, max_threads=128, lasting=True).run()
    return sum(isinstance(data, bytes) for data in found.values())


def measured(kind: str, options: argparse.Namespace, *, before: bool) -> dict[str, object]:
    wanted = peers(kind, options, before=before)
    began, cpu = time.monotonic(), time.process_time()
    read = (by_polls if before else by_collection)(wanted, lambda: began + options.window - time.monotonic())
    return {
        "way": "polls" if before else "collection",
        "hostile": f"{options.hostile} {kind}",
        "read": read,
        "of": HONEST,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def flooded(kind: str, options: argparse.Namespace) -> dict[str, object]:
    """A window of its own. `quiet` has honest hotkeys alone."""
    script = Path(__file__).with_name("key_floods.py")
    hostile = 0 if kind == "quiet" else options.hostile
    words = [kind, str(hostile), str(options.window), str(options.latency)]
    done = subprocess.run([sys.executable, str(script), *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--window", type=float, default=20.0, help="seconds from block D to V")
    parser.add_argument("--latency", type=float, default=0.4, help="seconds to an honest answer")
    parser.add_argument("--floods", action="store_true", help="the floods alone")
    options = parser.parse_args()
    refusal = refused(0, client_first=True)
    with suppress(ConfigError):
        refusal()  # boto3 is imported and its service model read outside of what is measured
    rows = [
        measured(kind, options, before=before)
        for kind in ("stalling", "absent", "refused", "mixed")
        for before in (True, False)
        if not options.floods
    ]
    floods = [flooded(kind, options) for kind in ("quiet", "copycats", "heads", "informs", "chunks")]
    found = {
        "commit": commit(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "window_seconds": options.window,
        "latency_seconds": options.latency,
        "unit": "honest keys",
        "rows": rows,
        "floods": floods,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
