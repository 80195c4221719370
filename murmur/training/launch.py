"""`murmur torchrun`, which starts a node's ranks: torchrun's part for one machine, with its options and variables.

torchrun itself listens on every interface of the machine, and its rendezvous unpickles what is written to it. It also
ends with 1 whatever its programs ended with, and kills 30 s after a request to stop: a node that has committed needs
longer. Here the store is on loopback, the status is the program's, and it stops in its own time.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

FINAL = (2, 75)
"""Exit statuses of a program after which another start would not help."""
_POLL_SECONDS = 0.1
_END_SECONDS = 30.0
"""Time to end for the ranks that are left when one has failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, named as torchrun's."""
    parser.add_argument(
        *("--nproc_per_node", "--nproc-per-node"),
        default="gpu",
        metavar="N",
        help="processes (default: one a GPU)",
    )
    parser.add_argument("--standalone", action="store_true", help="changes nothing: all are on this machine")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a module, not a file")
    parser.add_argument("program", metavar="PROGRAM", help="such as neurons/miner.py")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments")


def run(options: argparse.Namespace) -> int:
    """Start the ranks and wait for their end. Return the status of one that asks for something, 1 for another
    failure, else 0."""
    from murmur.training.meeting import LOOPBACK, keep_store  # torch, which help should not wait for

    size = _size(options.nproc_per_node)
    listener = socket.create_server((LOOPBACK, 0))
    shared = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(listener.getsockname()[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # Each of many processes would take every core; the first rank takes them back.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    store = keep_store(listener)
    command = [sys.executable, "-u", *["-m"] * options.module, options.program, *options.words]
    ranks = list[subprocess.Popen[bytes]]()

    asked = list[int]()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        asked.append(-signum)
        for rank in ranks:
            rank.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, pass_on)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a terminal that closes; `nohup` leaves it ignored
        signal.signal(signal.SIGHUP, pass_on)
    for index in range(size):
        mine = {"RANK": str(index), "LOCAL_RANK": str(index)}
        # A session of its own: Ctrl-C would reach it twice, which is a request to end at once.
        ranks.append(subprocess.Popen(command, env=os.environ | shared | mine, start_new_session=True))
    status = _await(ranks, asked)
    del store
    return status


def _size(words: str) -> int:
    """Return the number of ranks. Exits with status 2 for words that are none."""
    import torch

    size = torch.cuda.device_count() if words == "gpu" else int(words) if words.isdecimal() else 0
    if size < 1:
        found = "torch finds no GPU here" if words == "gpu" else f"{words!r} is no number of processes"
        sys.stderr.write(f"--nproc_per_node: {found}; without several GPUs, start the program itself\n")
        sys.exit(2)
    return size


def _await(ranks: list[subprocess.Popen[bytes]], asked: list[int]) -> int:
    """Wait until all have ended; one that fails ends the others. They have some time to follow the first one, which may
    have left them inside an operation of the GPUs. Return the status as `run` does."""
    last: float | None = None
    late = set[int]()
    while any(rank.poll() is None for rank in ranks):
        if last is None and (ranks[0].poll() is not None or any(rank.returncode for rank in ranks)):
            last = time.monotonic() + _END_SECONDS
            if any(rank.returncode for rank in ranks):
                for rank in ranks:
                    rank.terminate()
        if last is not None and time.monotonic() > last:
            for index, rank in enumerate(ranks):
                if rank.poll() is None:
                    late.add(index)
                    rank.kill()
        time.sleep(_POLL_SECONDS)
    # A signal that was passed on ends a rank that was only starting.
    ends = {index: rank.returncode for index, rank in enumerate(ranks) if index not in late}
    failed = {index: status for index, status in ends.items() if status and status not in asked}
    for index, status in failed.items():
        sys.stderr.write(f"rank {index} of {len(ranks)}: exit status {status}\n")
    return next((status for status in failed.values() if status in FINAL), int(bool(failed)))
