"""What a node's container starts: the program, and what becomes of its end (docs/decisions/0045-containers.md).

    python docker/start.py python neurons/miner.py
    python docker/start.py torchrun --nproc_per_node=gpu neurons/miner.py

A restart policy knows no exit statuses. So where another start would not help, the statuses 2 and 75, this stays, does
nothing and can be stopped; what has to be done stands above in the log. Any other end is the container's too.
"""

import signal
import subprocess
import sys
from threading import Event
from types import FrameType

FINAL = {2: "something has to be mended", 75: "the run needs a newer release"}
STOPPED = Event()
"""Set by a request to stop, whenever it came."""


def main(words: list[str]) -> int:
    """The exit status of the program that `words` call."""
    status = alone([sys.executable, "-m", "murmur", *words] if words[:1] == ["torchrun"] else words)
    if status in FINAL and not STOPPED.is_set():
        sys.stderr.write(
            f"ended with status {status}: {FINAL[status]}, the lines above say what. Nothing is started until then. "
            "After that: docker compose up -d --force-recreate SERVICE\n"
        )
        # In turns: torch leaves threads, and a signal that one of them gets wakes nobody here.
        while not STOPPED.wait(1.0):
            pass
    return status


def alone(words: list[str]) -> int:
    """One process, which gets the signals that we get. `torchrun` is ours: the other one's store listens on every
    interface, and it ends with 1 whatever its programs ended with."""
    child = subprocess.Popen(words)

    def stop(signum: int, frame: FrameType | None) -> None:
        STOPPED.set()
        child.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
