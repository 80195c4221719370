"""How much faster several threads seal one payload, and open several, than one thread does.

    python benchmarks/bench_seal.py --megabytes 512 --threads 1 2

Sealing: the sections of one payload (storage/seal.py Sealing), encrypted and hashed. Opening: as many payloads as
there are threads at most, deciphered (unseal). Each figure is the median of `--runs`; all numbers of threads take turns
in one process. One JSON line.
"""

import argparse
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from murmur.protocol.messages import parse_envelope
from murmur.protocol.types import Digest, PeerId
from storage.seal import Sealing, seal, unseal

RUN = Digest(bytes(32))


class Unsigned:
    """A signer whose signatures cost nothing and say nothing."""

    peer = PeerId(bytes(32))

    def sign(self, message: bytes) -> bytes:
        return bytes(64)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="of the payload (default %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="(default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="(default %(default)s)")
    options = parser.parse_args()
    num_bytes = options.megabytes << 20
    payload = secrets.token_bytes(num_bytes)
    sealed = seal(payload, run=RUN, round=0, signer=Unsigned())
    envelope = parse_envelope(sealed.envelope)
    found: dict[str, dict[int, list[float]]] = {"seal": {}, "open": {}}
    for _ in range(options.runs):
        for threads in options.threads:
            with ThreadPoolExecutor(threads) as pool:

                def sealing(pool: ThreadPoolExecutor = pool) -> None:
                    made = Sealing(payload, run=RUN, round=0, signer=Unsigned())
                    list(pool.map(made.add, made.sections))
                    made.finish()

                def opening(pool: ThreadPoolExecutor = pool) -> None:
                    count = max(options.threads)
                    list(pool.map(lambda _: unseal(envelope, sealed.key, sealed.ciphertext), range(count)))

                found["seal"].setdefault(threads, []).append(num_bytes / seconds(sealing))
                found["open"].setdefault(threads, []).append(max(options.threads) * num_bytes / seconds(opening))
    result = {
        "hardware": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}",
        "megabytes": options.megabytes,
        "gigabytes_per_second": {
            name: {threads: round(median(rates) / 1e9, 2) for threads, rates in by.items()}
            for name, by in found.items()
        },
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
