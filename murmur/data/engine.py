"""A process that builds. Usage: python -m murmur.data.engine OUT EXECUTION STEP:FIRST:TASKS ..

Processes of their own, since datatrove takes over a process's log, and since a pool whose worker is killed waits for
ever. Each ends with whoever started it: when its standard input is closed.
"""

import ctypes
import os
import signal
import sys
from threading import Thread

from murmur import files
from murmur.data import executors, place
from murmur.data.job import DISK_FULL, FAULT, Job, load
from murmur.data.recipe import Execution
from murmur.protocol.errors import ConfigError

_PR_SET_PDEATHSIG = 1


def end_with_parent(job: Job, execution: Execution) -> None:
    """End this process, and what it has set going, when its standard input is closed: whoever started it has ended."""

    def watch() -> None:
        # Not through sys.stdin: a process forked meanwhile would wait for its lock for ever.
        while os.read(0, 1):
            pass
        executors.cancel(job, execution)
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()
    # An executor starts a process of its own, which would outlive us when we are killed.
    prctl = ctypes.CDLL(None).prctl
    os.register_at_fork(after_in_child=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def main() -> int:
    job, execution = load(place.place_of(sys.argv[1])), Execution.model_validate_json(sys.argv[2])
    assert job is not None
    end_with_parent(job, execution)
    try:
        for part in sys.argv[3:]:
            step, first, tasks = part.split(":")
            executors.run(job, execution, step, int(first), int(tasks))
            if (job.work / FAULT).exists():
                return 1
    except ConfigError as fault:
        place.write(job.work / FAULT, str(fault).encode(errors="backslashreplace"))
        return 1
    except OSError as fault:
        if files.is_full(fault):
            return DISK_FULL
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
