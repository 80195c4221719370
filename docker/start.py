"""What a node's container starts: the program, and what becomes of its end (docs/decisions/0045-containers.md).

    python docker/start.py python neurons/miner.py
    python docker/start.py torchrun --standalone --nproc_per_node=gpu neurons/miner.py

A restart policy knows no exit statuses. So where another start would not help, the statuses 2 and 75, this stays, does
nothing and can be stopped; what has to be done stands above in the log. Any other end is the container's too.
"""

import signal
import subprocess
import sys
from threading import Event

FINAL = {2: "something has to be mended", 75: "the run needs a newer release"}
STOPS = (signal.SIGTERM, signal.SIGINT)


def main(words: list[str]) -> int:
    """The exit status of the program that `words` call."""
    status = on_ranks(words[1:]) if words[:1] == ["torchrun"] else alone(words)
    if status in FINAL:
        stopped = Event()
        for signum in STOPS:
            signal.signal(signum, lambda signum, _: stopped.set())
        sys.stderr.write(
            f"ended with status {status}: {FINAL[status]}, the lines above say what. Nothing is started until then. "
            "After that: docker compose up -d --force-recreate SERVICE\n"
        )
        # In turns: torch leaves threads, and a signal that one of them gets wakes nobody here.
        while not stopped.wait(1.0):
            pass
    return status


def alone(words: list[str]) -> int:
    """One process, which gets the signals that we get."""
    child = subprocess.Popen(words)
    for signum in STOPS:
        signal.signal(signum, lambda signum, _: child.send_signal(signum))
    status = child.wait()
    return status if status >= 0 else 128 - status


def on_ranks(words: list[str]) -> int:
    """torchrun's processes. By itself it would end with 1 whatever they ended with."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(words)
    except ChildFailedError as fault:
        ends = [failure.exitcode for failure in fault.failures.values()]
        return next((end for end in ends if end in FINAL), 1)
    except SignalException:  # stopped on request
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
