"""Execution of a chaos plan on a running network, by the progress of its chain, with a record of the injected
faults."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from murmur.lab.localnet.chaos import Injection, done
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.processes import Processes
from murmur.node.doctor.start import ANSWERED

SLOW_BYTES_PER_SECOND = 64 << 10
SLOW_LATENCY_SECONDS = 0.25
KEPT = frozenset({"node.toml", "events.jsonl", "measured.json", ANSWERED})
"""Files that survive a wiped home: the operator's configuration, the note of the servers that have answered before, and
the record from which the report is made. Without the note, a server that is down at the same time would look like a
wrong address."""


@dataclass(slots=True)
class Injected:
    """An executed injection. `began` and `ended`: rounds since the start of round 0 by the chain. `ended` is None until
    the process runs again, or its link works again. `over`: the same moment in Unix seconds."""

    kind: str
    node: str
    seconds: float
    began: float
    ended: float | None = None
    over: float | None = None
    _due: float = 0.0
    _restarts: int = -1
    """Number of the process's restarts before; -1 when it was not killed."""


@dataclass(slots=True)
class Injector:
    """Executes a plan. The supervisor calls `step` several times per second."""

    plan: Sequence[Injection]
    round_seconds: float
    processes: Processes
    links: Links
    homes: Mapping[str, Path]
    join: Callable[[], object]
    done: list[Injected] = field(default_factory=list)

    def frozen(self, name: str) -> bool:
        """Whether the process is still stopped by us."""
        return any(injected.node == name and injected.kind == "freeze" for injected in self._lasting())

    def step(self, progress: float) -> list[str]:
        """Begin the injections due at `progress` rounds and end those that are over; return one line for each that
        began."""
        for injected in self._lasting():
            if self._is_over(injected):
                self._end(injected, progress)
        due = [injection for injection in self.plan[len(self.done) :] if injection.at <= progress]
        return [self._begin(injection, progress) for injection in due]

    def _lasting(self) -> list[Injected]:
        return [injected for injected in self.done if injected.ended is None]

    def _begin(self, injection: Injection, progress: float) -> str:
        kind, node, seconds = injection.kind, injection.node, injection.rounds * self.round_seconds
        injected = Injected(kind, node, round(seconds, 3), progress, _due=time.monotonic() + seconds)
        if kind in ("kill", "absent", "wipe"):
            injected._restarts = self.processes.children[node].restarts
            self.processes.kill(node, away_seconds=seconds)
            if kind == "wipe":
                wipe(self.homes[node])
        elif kind in ("freeze", "late"):
            self.processes.freeze(node, seconds)
        elif kind == "slow":
            self.links.slow(node, SLOW_BYTES_PER_SECOND, SLOW_BYTES_PER_SECOND, SLOW_LATENCY_SECONDS)
        elif kind == "stall":
            self.links.stall(node)
        else:
            self.join()
        self.done.append(injected)
        return done(kind, node, seconds)

    def _is_over(self, injected: Injected) -> bool:
        if injected._restarts >= 0:
            child = self.processes.children[injected.node]
            return child.restarts > injected._restarts and child.process.poll() is None
        return time.monotonic() >= injected._due

    def _end(self, injected: Injected, progress: float) -> None:
        if injected.kind in ("slow", "stall"):
            self.links.clear(injected.node)
        injected.ended, injected.over = progress, time.time()


def wipe(home: Path) -> None:
    """Delete a node's home, as if its disk was lost."""
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
