"""What strangers' bytes cost the threads beside the one that reads them: a training loop's speed, and memory.

    python benchmarks/bench_strangers.py

Four cases, each in a process of its own: 256 wanted lists, 256 new pointers, five reports of 8 MiB, 64 documents of
states. The documents are signed by real keys, and read by the node's own functions from buckets in memory. `nested`:
brackets all the way. `longest`: the most of what is well formed. `repeated`: one field again and again. `whole`: a
report without a fault that names as much as one can.

Beside each runs a loop: `torch` multiplies matrices of 256 rows on one thread, `python` only counts. Its speed before
is compared with its speed while the documents are read, and with that over a window of --window seconds of which the
reading is a part. One JSON line per case: the seconds that it took, both shares, seconds of the loop lost, and MB that
the peak rose by.
"""

import argparse
import json
import os
import platform
import resource
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, os.getcwd())

from murmur.chain.keys import verify
from murmur.node.config.adapters import opener
from murmur.node.fetch.reports import Reports
from murmur.node.fetch.sources import Sources
from murmur.node.sync import checkpoints, repair_requests
from murmur.protocol.errors import ObjectTooLarge
from murmur.protocol.messages import NO_ROUND, canonical_json
from murmur.protocol.types import Digest, Peer, PeerId, Pointer, Slot, Uid
from storage.realtime import REAL
from tests.specs import toy_spec

RUN = Digest(b"r" * 32)
ROUND = 3
SECONDS = 120.0
"""Time limit of a reading."""
REPORT_BYTES = 8 << 20

Work = Callable[[], object]


class Signer:
    """A real key, drawn from a number."""

    def __init__(self, number: int) -> None:
        kind = import_module("bittensor_core").Keypair
        self._key = kind.create_from_uri(f"//stranger{number}", 1)
        self.peer = PeerId(bytes(self._key.public_key))

    def sign(self, message: bytes) -> bytes:
        return bytes(self._key.sign(message))


class Held:
    """A bucket that holds one object under every key."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str, *, max_bytes: int, timeout_seconds: float, exact: bool = False) -> bytes:
        if len(self._data) > max_bytes:
            raise ObjectTooLarge(f"{len(self._data)} bytes", len(self._data))
        return self._data


def signed(kind: str, round: int, text: bytes, signer: Signer) -> bytes:
    head = struct.pack("<4sI8s32sI32s", b"MURD", 1, kind.encode(), RUN, round, signer.peer)
    return head + signer.sign(head + text) + text


def filled(before: bytes, unit: bytes, after: bytes, num_bytes: int) -> bytes:
    """Repeat `unit` between commas."""
    count = (num_bytes - len(before) - len(after)) // (len(unit) + 1)
    return before + b",".join([unit] * count) + after


def nested(name: bytes, num_bytes: int) -> bytes:
    return filled(b'{"' + name + b'":[', b"[" * 20 + b"]" * 20, b"]}", num_bytes)


def sources(documents: Sequence[bytes], signers: Sequence[Signer]) -> Sources:
    """Return sources in which each signer's bucket holds its document."""
    buckets = {f"bucket-{number}": Held(document) for number, document in enumerate(documents)}
    peers = [
        Peer(
            signer.peer,
            Uid(number),
            stake=1,
            validates=True,
            slot=Slot(1, Pointer("https://a.example", f"bucket-{number}", "a", "b"), None, None),
        )
        for number, signer in enumerate(signers)
    ]
    opened: Any = lambda pointer: buckets[pointer.bucket]  # noqa: E731
    return Sources(peers, opened, [signer.peer for signer in signers])


# --- the cases -----------------------------------------------------------------------------------------------


def lists(how: str) -> Work:
    """256 wanted lists."""
    signers = [Signer(number) for number in range(256)]
    longest = [(2**32 - 1 - number, signers[number].peer) for number in range(256)]
    documents = [
        signed("wanted", NO_ROUND, nested(b"payloads", (1 << 15) - 200), signer)
        if how == "nested"
        else repair_requests.encode_wanted(longest, RUN, signer)
        for signer in signers
    ]
    there, peers = sources(documents, signers), [signer.peer for signer in signers]
    return lambda: repair_requests.hear_wanted(RUN, peers, there, verify, SECONDS, REAL)


def pointers(how: str) -> Work:
    """256 pointers that nobody has opened."""
    opened = opener(local=True)
    opened(Pointer("http://127.0.0.1:9", "bucket", "key", "secret"))  # imports are no stranger's doing
    new = [Pointer(f"https://127.0.0.1:{1000 + number}", "bucket", "key", "secret") for number in range(256)]

    def work() -> None:
        with ThreadPoolExecutor(64) as pool:
            list(pool.map(opened, new))

    return work


def reports(how: str) -> Work:
    """Five reports of 8 MiB, or as long as readers take."""
    from murmur.node.fetch import reports as reading

    signers = [Signer(number) for number in range(5)]
    size = min(REPORT_BYTES, getattr(reading, "REPORT_MAX_BYTES", REPORT_BYTES)) - 200
    texts = {
        "nested": nested(b"after", size),
        "longest": filled(b'{"after":{"peers":{', b'"' + b"0" * 64 + b'":' + record(), b"}}}", size),
        "repeated": filled(b"{", b'"gone":1', b"}", size),
        "whole": whole(),
    }
    documents = [signed("report", ROUND, texts[how], signer) for signer in signers]
    there, run = sources(documents, signers), SimpleNamespace(id=RUN)
    found = Reports(run, SimpleNamespace(verify=verify, time=REAL), there)  # type: ignore[arg-type]
    return lambda: found.look(ROUND, [signer.peer for signer in signers], SECONDS)


def whole() -> bytes:
    """Return a report that names as much as one can: 256 hotkeys, all twins, and 8,192 payloads of earlier rounds."""
    from gauntlet.book import PeerRecord, ScoreBook
    from gauntlet.remembered import Remembered
    from gauntlet.report import Paid, Report, ReportRow

    peers = sorted(Signer(number).peer for number in range(256))
    rows = {
        peer: ReportRow(Uid(number), twins=tuple(one for one in peers if one != peer), reveal=bytes(204))
        for number, peer in enumerate(peers)
    }
    books = [
        ScoreBook(round=round, peers=dict.fromkeys(peers, PeerRecord(first_seen=1))) for round in (ROUND - 1, ROUND)
    ]
    history = tuple(
        Remembered(ROUND - 1, PeerId(number.to_bytes(32, "big")), Digest(bytes(32))) for number in range(8192)
    )
    report = Report(ROUND, rows, *books, 0, history, Paid(1, None, {}))
    return canonical_json(report.to_body(toy_spec().gauntlet))


def record() -> bytes:
    """Return a hotkey's record as a book writes it."""
    from gauntlet.book import PeerRecord, ScoreBook, to_json

    text = to_json(ScoreBook(peers={PeerId(bytes(32)): PeerRecord(first_seen=1)}))
    return b"{" + text.partition(b"0" * 64 + b'":{')[2].partition(b"}")[0] + b"}"


def states(how: str) -> Work:
    """64 documents of states."""
    signers = [Signer(number) for number in range(64)]
    files = tuple(Digest(number.to_bytes(32, "big")) for number in range(600))
    shown = checkpoints.Shown(
        tuple(checkpoints.Checkpoint(n, files[n], files[n], files) for n in range(checkpoints.CHECKPOINTS_KEPT)),
        tuple((files[n], files[n]) for n in range(checkpoints.STATES_TOLD)),
    )
    documents = [
        signed("states", NO_ROUND, nested(b"states", checkpoints.DOCUMENT_MAX_BYTES - 200), signer)
        if how == "nested"
        else checkpoints.encode_shown(shown, RUN, signer)
        for signer in signers
    ]
    there = sources(documents, signers)
    follower = SimpleNamespace(run=SimpleNamespace(id=RUN), ports=SimpleNamespace(verify=verify), time=REAL)
    return lambda: checkpoints.shown_by_all(follower, there, SECONDS)  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[str], Work], tuple[str, ...]]] = {
    "lists": (lists, ("nested", "longest")),
    "pointers": (pointers, ("new",)),
    "reports": (reports, ("nested", "longest", "repeated", "whole")),
    "states": (states, ("nested", "longest")),
}


# --- the loop beside -----------------------------------------------------------------------------------------


def torch_step() -> Callable[[], object]:
    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    return lambda: (matrix @ matrix).sum().item()


def python_step() -> Callable[[], object]:
    def step() -> None:
        for _ in range(1000):
            pass

    return step


LOOPS = {"torch": torch_step, "python": python_step}


def beside(step: Callable[[], object], work: Work) -> tuple[float, float, float]:
    """Return the loop's steps a second alone, those while `work` runs in another thread, and the seconds of that."""

    def rate(until: Callable[[], bool]) -> tuple[float, float]:
        began, steps = time.monotonic(), 0
        while not until():
            step()
            steps += 1
        return steps / (time.monotonic() - began), time.monotonic() - began

    end = time.monotonic() + 2.0
    alone, _ = rate(lambda: time.monotonic() > end)
    ended: list[float] = []

    def run() -> None:
        work()
        ended.append(time.monotonic())

    thread, began = threading.Thread(target=run), time.monotonic()
    thread.start()
    slowed, _ = rate(lambda: bool(ended))
    thread.join()
    return alone, slowed, ended[0] - began


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(case: str, how: str, loop: str, window: float) -> dict[str, Any]:
    work, step = CASES[case][0](how), LOOPS[loop]()
    before = peak_mb()
    alone, slowed, took = beside(step, work)
    share = slowed / alone
    lost = max(0.0, took * (1 - share))
    return {
        "case": case,
        "how": how,
        "loop": loop,
        "seconds": round(took, 3),
        "share_meanwhile": round(share, 2),
        "seconds_lost": round(lost, 2),
        "share_of_window": round(1 - lost / max(window, took), 3),
        "peak_mb": round(peak_mb() - before),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="only this one, in this process")
    parser.add_argument("--how")
    parser.add_argument("--loop", choices=LOOPS)
    parser.add_argument("--window", type=float, default=24.0, help="seconds (default %(default)s: two blocks)")
    options = parser.parse_args()
    if options.how is not None:
        row = measure(options.case, options.how, options.loop, options.window)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    hardware = f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    sys.stdout.write(json.dumps({"hardware": hardware, "torch": torch.__version__, "window": options.window}) + "\n")
    for case in [options.case] if options.case else CASES:
        for how in CASES[case][1]:
            for loop in LOOPS:
                command = [sys.executable, str(Path(__file__).resolve())]
                command += ["--case", case, "--how", how, "--loop", loop, "--window", str(options.window)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                sys.stdout.write(done.stdout)
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
