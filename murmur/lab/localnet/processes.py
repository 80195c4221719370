"""The processes of a local network: started with their own log file, restarted when they die, all stopped at the end.

A process that dies repeatedly is restarted after growing pauses, and never given up. Only an exit that requires an
operator ends it for good.

Every process leads its own process group, and the kernel signals it when the supervisor dies, so no process outlives
the supervisor, however that ends.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from murmur.lab.devnet.launch import end_with_parent
from murmur.node.program.process import EXIT_CONFIG, EXIT_UPDATE

STOP_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
LIVED_WELL_SECONDS = 60.0
"""A process that ran this long is restarted at once when it dies: its cause is new."""
FINAL_STATUSES = (EXIT_CONFIG, EXIT_UPDATE)
"""Exit statuses after which a restart would end the same way."""


@dataclass(slots=True)
class Child:
    """One process. Both lists of arguments follow `python`; a restart omits arguments that only the first start
    needs."""

    name: str
    arguments: Sequence[str]
    restart_arguments: Sequence[str] | None
    log: Path
    process: subprocess.Popen[Any]
    restarts: int = 0
    began: float = field(default_factory=time.monotonic)
    pause: float = 0.0
    """Seconds from its last death to its next start."""
    due: float | None = None
    """Time of the next start; None while it runs."""
    away_until: float = 0.0
    """It is not started before this time."""

    @property
    def ended_for_good(self) -> bool:
        """It is dead, and a restart is not allowed, or would end the same way."""
        status = self.process.poll()
        return status is not None and (self.restart_arguments is None or status in FINAL_STATUSES)

    def is_due(self) -> bool:
        """Whether it is dead and due to be restarted."""
        if self.process.poll() is None or self.ended_for_good:
            return False
        now = time.monotonic()
        if self.due is None:
            if now - self.began > LIVED_WELL_SECONDS:
                self.pause = 0.0
            self.due = now + self.pause
            self.pause = min(max(2 * self.pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        return now >= max(self.due, self.away_until)

    def started(self, process: subprocess.Popen[Any]) -> None:
        """Record that it runs again."""
        self.process, self.began, self.due = process, time.monotonic(), None
        self.restarts += 1


@dataclass(slots=True)
class Processes:
    """All children of one network."""

    folder: Path
    environment: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    def start(self, name: str, arguments: Sequence[str], restart_arguments: Sequence[str] | None = None) -> Child:
        """Start `python ARGUMENTS`; its output goes to NAME.log. With `restart_arguments` it is restarted when it
        dies."""
        log = self.folder / f"{name}.log"
        child = Child(name, arguments, restart_arguments, log, self._spawn(arguments, log))
        self.children[name] = child
        self._write_pids()
        return child

    def adopt(self, name: str, process: subprocess.Popen[Any], restart_arguments: Sequence[str]) -> Child:
        """Supervise a process that was started elsewhere as leader of its group."""
        child = Child(name, (), restart_arguments, self.folder / f"{name}.log", process)
        self.children[name] = child
        self._write_pids()
        return child

    def watch(self) -> list[str]:
        """Restart dead children that are due; return the names of those that have ended for good."""
        for child in self.children.values():
            if child.is_due():
                assert child.restart_arguments is not None
                child.started(self._spawn(child.restart_arguments, child.log))
                self._write_pids()
        return [child.name for child in self.children.values() if child.ended_for_good]

    def kill(self, name: str, away_seconds: float = 0.0) -> None:
        """Send kill -9 to the child's group. It is restarted after `away_seconds` at the earliest."""
        child = self.children[name]
        child.away_until = time.monotonic() + away_seconds
        if child.process.poll() is None:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()

    def freeze(self, name: str, seconds: float) -> None:
        """Send SIGSTOP to the child's group, and SIGCONT later. A detached process sends the SIGCONT: a frozen child
        cannot react to a stop signal, and would outlive a killed supervisor."""
        child = self.children[name]
        if child.process.poll() is None:
            group = child.process.pid
            os.killpg(group, signal.SIGSTOP)
            thaw = f"(sleep {seconds:.3f}; kill -s CONT -- -{group}) >/dev/null 2>&1 &"
            subprocess.run(["sh", "-c", thaw], stdin=subprocess.DEVNULL, start_new_session=True, check=True)

    def stop(self, spared: Collection[str] = ()) -> None:
        """End all children except `spared`: SIGTERM, a second one in the middle of the time for those that wait for a
        reveal, then SIGKILL."""
        began = time.monotonic()
        for signum, until in (
            (signal.SIGTERM, began + STOP_SECONDS / 2),
            (signal.SIGTERM, began + STOP_SECONDS),
            (signal.SIGKILL, began + 2 * STOP_SECONDS),
        ):
            alive = [c for c in self.children.values() if c.process.poll() is None and c.name not in spared]
            for child in alive:
                os.killpg(child.process.pid, signum)
                os.killpg(child.process.pid, signal.SIGCONT)
            while any(child.process.poll() is None for child in alive) and time.monotonic() < until:
                time.sleep(0.05)

    def last_lines(self, name: str, count: int = 15) -> str:
        """Return the end of a child's log, for an error message."""
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
    """Ignore a second Ctrl-C inside: an impatient operator must not leave half of a network running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
