"""A process that builds: datatrove runs tasks of a step. Usage: python -m murmur.data.engine OUT STEP:FIRST:TASKS ..

Processes of their own, since datatrove takes over a process's log, and since a pool whose worker is killed waits for
ever. Each ends with whoever started it: when its standard input is closed.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from threading import Thread

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from murmur import files
from murmur.data.gather import Gather, Plan, WriteIndex
from murmur.data.job import DISK_FULL, FAULT, Job, load
from murmur.data.proof import Proof
from murmur.data.reader import Reader
from murmur.data.scatter import Scatter
from murmur.protocol.errors import ConfigError

_PR_SET_PDEATHSIG = 1


def pipeline(job: Job, step: str) -> list[PipelineStep]:
    reader = Reader(job)
    match step:
        case "proof":
            return [Proof(job, reader)]
        case "text":
            return [reader, Scatter(job, reader)]
        case "plan":
            return [Plan(job)]
        case "shards":
            return [Gather(job)]
    return [WriteIndex(job)]


def run(job: Job, parts: list[str]) -> None:
    """Run these tasks, but for those that are done. Raises ConfigError."""
    for part in parts:
        step, first, tasks = part.split(":")
        LocalPipelineExecutor(
            pipeline(job, step),
            tasks=job.steps[step],
            workers=1,
            logging_dir=str(job.work / "log" / step),
            local_tasks=int(tasks),
            local_rank_offset=int(first),
        ).run()


def end_with_parent() -> None:
    """End this process when its standard input is closed: whoever started it has ended."""

    def watch() -> None:
        # Not through sys.stdin: a process forked meanwhile would wait for its lock for ever.
        while os.read(0, 1):
            pass
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()
    # An executor starts a process of its own, which would outlive us when we are killed.
    prctl = ctypes.CDLL(None).prctl
    os.register_at_fork(after_in_child=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def main() -> int:
    job = load(Path(sys.argv[1]))
    assert job is not None
    end_with_parent()
    try:
        run(job, sys.argv[2:])
    except ConfigError as fault:
        files.write(job.work / FAULT, str(fault).encode(errors="backslashreplace"))
        return 1
    except OSError as fault:
        if files.is_full(fault):
            return DISK_FULL
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
