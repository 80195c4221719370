"""A local network's public objects, copied into its run folder while it runs: `objects/BUCKET/`.

Owners delete objects that joiners no longer need, and the store ends with the network. With these files and the chain's
database any round can still be inspected, explained and audited (murmur/lab/localnet/run_folder.py;
docs/decisions/0041-recorded-runs.md). It reads with the published keys alone, so it holds only public data.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import StorageError
from storage.recorded import record
from storage.s3 import RangedBucket, open_pointer

FOLDER = "objects"
PAUSE_SECONDS = 2.0
PASS_SECONDS = 15.0
LAST_SECONDS = 10.0
"""Time-out of the last pass, after the last round."""
THREADS = 4


class Recorder:
    """Copies in its own thread until `close`. `max_bytes`: larger objects are not from honest nodes."""

    def __init__(self, store: StoreReady, folder: Path, max_bytes: int) -> None:
        self._store, self._folder, self._max_bytes = store, folder / FOLDER, max_bytes
        self._log = folder / "logs" / "record.log"
        self._buckets: dict[str, RangedBucket] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what has arrived since, and end."""
        self._ending.set()
        self._thread.join(2 * LAST_SECONDS)

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_SECONDS):
            self._pass(PASS_SECONDS)
        self._pass(LAST_SECONDS)

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds

        def take(name: str) -> None:
            try:
                if name not in self._buckets:
                    self._buckets[name] = open_pointer(self._store.pointer(name), local=True)
                bucket = self._folder / self._store.users[name].bucket
                record(self._buckets[name], bucket, self._max_bytes, lambda: max(0.1, until - time.monotonic()))
            except (StorageError, OSError) as fault:
                # A store that chaos has stopped recovers; a full disk does not.
                with self._log.open("a") as log:
                    log.write(f"{name} is not recorded yet: {fault}\n")

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(take, self._store.users))
