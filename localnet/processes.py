"""The processes of a local network: started with their own log file, restarted when they die, all stopped at the end.

Every process leads a group of its own and is told by the kernel to stop when the supervisor dies, so that nothing
outlives it, however it ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chain.devnet.launch import end_with_parent

STOP_SECONDS = 10.0
MAX_RESTARTS = 5


@dataclass(slots=True)
class Child:
    """One process. Both lists of arguments follow `python`; a restart leaves out what only a first start does."""

    name: str
    arguments: Sequence[str]
    restart_arguments: Sequence[str] | None
    log: Path
    process: subprocess.Popen[bytes]
    restarts: int = 0


@dataclass(slots=True)
class Processes:
    """All children of one network."""

    folder: Path
    environment: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    def start(self, name: str, arguments: Sequence[str], restart_arguments: Sequence[str] | None = None) -> Child:
        """Start `python ARGUMENTS`; its output goes to NAME.log. With `restart_arguments` a death is repaired."""
        log = self.folder / f"{name}.log"
        child = Child(name, arguments, restart_arguments, log, self._spawn(arguments, log))
        self.children[name] = child
        self._write_pids()
        return child

    def watch(self) -> list[str]:
        """Restart what died and may be restarted; names of the children that are dead for good."""
        dead = []
        for child in self.children.values():
            if child.process.poll() is None:
                continue
            if child.restart_arguments is None or child.restarts >= MAX_RESTARTS:
                dead.append(child.name)
                continue
            child.restarts += 1
            child.process = self._spawn(child.restart_arguments, child.log)
            self._write_pids()
        return dead

    def stop(self) -> None:
        """End all children: SIGTERM, and SIGKILL for those that do not listen."""
        for signum, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            alive = [child for child in self.children.values() if child.process.poll() is None]
            for child in alive:
                os.killpg(child.process.pid, signum)
            until = time.monotonic() + seconds
            while any(child.process.poll() is None for child in alive) and time.monotonic() < until:
                time.sleep(0.05)

    def last_lines(self, name: str, count: int = 15) -> str:
        """The end of a child's log, for an error message."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join("  " + line for line in lines[-count:])

    def _spawn(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def _write_pids(self) -> None:
        lines = [f"{child.name} {child.process.pid}\n" for child in self.children.values()]
        (self.folder / "pids").write_text("".join(lines))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, a second Ctrl-C does nothing: half of a network must not stay behind because somebody was impatient."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
