"""What a node's container starts: the program, and what becomes of its end (docs/decisions/0045-containers.md).

    python docker/start.py python neurons/miner.py
    python docker/start.py torchrun --nproc_per_node=gpu neurons/miner.py

A restart policy knows no exit statuses. So where another start would not help, the statuses 2 and 75, or undo what was
asked for, a cluster member's 0, this stays, does nothing and can be stopped; why stands above in the log. Any other end
is the container's too, and a process that was killed, which could say nothing itself, is told of.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import FrameType

MENDED_BY_HAND = 2
KILLED = 128 + signal.SIGKILL
FINAL = {MENDED_BY_HAND: "something has to be mended", 75: "the run needs a newer release"}
LEFT = {0: "it was told to leave, or its run is over"}
"""How a cluster's member alone ends by itself."""
STOPPED = Event()
"""Set by a request to stop, whenever it came."""
COUNTERS = ("memory.events", "memory/memory.oom_control")
"""Where the kernel counts, for this container, whom it killed for memory: of its second and its first version."""


def main(words: list[str], environment: Mapping[str, str], groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The exit status of the program that `words` call."""
    if (refusal := other_nodes_file(environment)) is not None:
        sys.stderr.write(refusal)
        at_a_stop(lambda signum: None)
        status = MENDED_BY_HAND
    else:
        before = killed_for_memory(groups)
        status = alone([sys.executable, "-m", "murmur", *words] if words[:1] == ["torchrun"] else words)
        if not STOPPED.is_set():
            sys.stderr.write(last_words(status, killed_for_memory(groups) - before))
    final = FINAL | LEFT if "neurons/member.py" in words else FINAL
    if status in final and not STOPPED.is_set():
        sys.stderr.write(
            f"ended with status {status}: {final[status]}, the lines above say more. Nothing is started until "
            "you do: docker compose up -d --force-recreate SERVICE\n"
        )
        # In turns: torch leaves threads, and a signal that one of them gets wakes nobody here.
        while not STOPPED.wait(1.0):
            pass
    return status


def other_nodes_file(environment: Mapping[str, str]) -> str | None:
    """Why this is not the node that was meant: two nodes with one hotkey spoil each other's work."""
    read = environment.get("COMPOSE_READ_WALLET")
    given = "/".join(environment.get(f"MURMUR_WALLET__{name}", "") for name in ("NAME", "HOTKEY"))
    if read in (None, given):
        return None
    return (
        f"Docker Compose has read a file that names the wallet {read!r}, and this node's file names {given!r}. Do not "
        "use --env-file: export COMPOSE_ENV_FILES=FILE. Unset MURMUR_WALLET__NAME and MURMUR_WALLET__HOTKEY in your "
        "shell\n"
    )


def killed_for_memory(groups: Path) -> int:
    """How many processes of this container the kernel has killed; 0 where it does not say."""
    for name in COUNTERS:
        try:
            found = re.search(r"^oom_kill (\d+)$", (groups / name).read_text(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0


def last_words(status: int, killed: int) -> str:
    """What a killed process would have said. Of several ranks it may be one, and the status another's."""
    if not status or not (killed or status == KILLED):
        return ""
    why = "The container reached MEMORY_LIMIT" if killed else "The host may be out of memory"
    return (
        f"ended with status {status}: the kernel killed a process. {why}: `murmur plan` names the peak; raise "
        "MEMORY_LIMIT in the env file to a quarter more. The node is started again\n"
    )


def alone(words: list[str]) -> int:
    """One process, which gets the signals that we get. `torchrun` is ours: the other one's store listens on every
    interface, and it ends with 1 whatever its programs ended with."""
    running = list[subprocess.Popen[bytes]]()
    at_a_stop(lambda signum: [child.send_signal(signum) for child in running])
    # A session of its own: a terminal's Ctrl-C would reach it twice, which is a request to end at once.
    child = subprocess.Popen(words, start_new_session=True)
    running.append(child)
    if STOPPED.is_set():
        child.terminate()
    status = child.wait()
    return status if status >= 0 else 128 - status


def at_a_stop(act: Callable[[int], object]) -> None:
    def stop(signum: int, frame: FrameType | None) -> None:
        STOPPED.set()
        act(signum)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
