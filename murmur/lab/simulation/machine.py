"""The machines of a simulated run: a node's process, what stays of it when the process dies, and how it begins again.

Networks on a chain (network.py) and clusters over one bucket (cluster.py) are made of them.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from math import prod
from pathlib import Path
from shutil import rmtree
from typing import Any, Generic, Protocol, TypeVar

from murmur.lab.simulation.clock import Clock, Life
from murmur.lab.simulation.modelled_replica import (
    MODEL,
    NUM_PAGES,
    PAGE_SEQUENCES,
    PAGE_TOKENS,
    Costs,
    ModelledReplica,
    Problem,
)
from murmur.lab.simulation.store import Store
from murmur.node.state.saved import Saved
from murmur.node.state.store import StateStore
from murmur.node.telemetry.events import Events
from murmur.protocol import keys
from murmur.protocol.errors import DiskFull, MurmurError
from murmur.protocol.ports import Bucket
from murmur.protocol.spec import CompressionSpec, DataSpec, InnerSpec, ModelSpec, TrainingSpec
from murmur.protocol.types import Digest
from murmur.training import checkpoint

STORE_SECONDS = (0.02, 0.2)
RESTART_SECONDS = (5.0, 20.0)
"""What a service manager and the program's start take together."""
COMPRESSION = CompressionSpec(k=1024)
DATA = DataSpec(
    index=bytes(32).hex(),
    num_tokens=NUM_PAGES * PAGE_TOKENS + 1,
    page_sequences=PAGE_SEQUENCES,
    held_out_sequences=2,
)


class Program(Protocol):
    """What a machine runs."""

    def run(self) -> None: ...


P = TypeVar("P", bound=Program)
S = TypeVar("S", bound=TrainingSpec)


@dataclass
class Machine(Generic[P]):
    """One machine: what stays when its process dies, and the process. pace: what its inner steps take, as a share of
    what was planned."""

    name: str
    home: Path
    pace: float
    _: KW_ONLY
    lives: int = 0
    life: Life | None = None
    program: P | None = None
    failures: int = 0
    """How often its program ended by itself, one time after the other, before it stood anywhere."""
    down: int = 0
    """Faults that keep it from being started."""
    disk_full: int = 0
    wall_offset: float = 0.0

    @property
    def up(self) -> bool:
        return self.life is not None and not self.life.dead


M = TypeVar("M", bound=Machine[Any])


class Recorder(Events):
    """A node's events, told to the simulation and written nowhere."""

    def __init__(self, tell: Callable[[str, int, dict[str, Any]], None]) -> None:
        self._tell = tell

    def emit(self, event: str, round: int, **fields: Any) -> None:
        self._tell(event, round, fields)


class Disk(StateStore):
    """A state folder on a disk that may be full."""

    def __init__(self, machine: Machine[Any], run: Digest) -> None:
        self._machine = machine
        super().__init__(machine.home, run)

    def commit(self, saved: Saved) -> None:
        self._require_room()
        super().commit(saved)

    def write(self, data: bytes | bytearray) -> Digest:
        self._require_room()
        return super().write(data)

    def _require_room(self) -> None:
        if self._machine.disk_full:
            raise DiskFull("the state cannot be written (database or disk is full): make room and start again")


class Machines(ABC, Generic[M]):
    """All machines of a run, on one clock. `tell` hears every event of every machine, in order."""

    def __init__(
        self,
        what: str,
        folder: Path,
        seed: int,
        tell: Callable[[M, str, int, dict[str, Any]], None],
        model: ModelSpec = MODEL,
    ) -> None:
        self.folder, self.seed, self.tell = folder, seed, tell
        self.random = random.Random(f"{what} {seed}")
        self.clock = Clock(seed)
        self.outside = self.clock.life("world")
        self.store = Store()
        self.problem = Problem(seed, sum(prod(shape) for shape in model.shapes().values()))

    @abstractmethod
    def everyone(self) -> Iterable[M]:
        """Every machine, also one that is down."""

    @abstractmethod
    def run_id(self) -> Digest:
        """The run that they take part in."""

    @abstractmethod
    def make_program(self, machine: M, life: Life, disk: StateStore) -> Program:
        """What the machine runs, on what is on its disk."""

    def told(self, machine: M, event: str, round: int, fields: dict[str, Any]) -> None:
        """By way of `tell` as it is at the moment."""
        self.tell(machine, event, round, fields)

    def found(self, bucket: Bucket, draft: Callable[[Digest], S]) -> S:
        """Make theta_0 and put it into the bucket; the spec that names it."""
        provisional = draft(Digest(bytes(32)))
        state = ModelledReplica(provisional, self.problem, self.outside, Costs(0.0), self.random).consensus_state()
        genesis = checkpoint.save(self.folder / "genesis", state)
        for digest, path in checkpoint.blobs(self.folder / "genesis", genesis):
            bucket.put(keys.blob(digest), path, timeout_seconds=1)
        return draft(genesis)

    def start(self, machine: M) -> None:
        """Start its program on what is in its home, unless it runs."""
        if machine.up or machine.down:
            return
        machine.lives += 1
        machine.life = life = self.clock.life(machine.name)
        life.wall_offset = machine.wall_offset
        machine.program = None
        life.start(partial(self._live, machine, life), "main")
        self.tell(machine, "started", -1, {})

    def kill(self, machine: M) -> None:
        """kill -9, unless it is dead."""
        if machine.life is not None and machine.up:
            machine.life.kill()
            self.tell(machine, "killed", -1, {})

    def wipe(self, machine: M) -> None:
        """Its home is gone. The process must be dead."""
        rmtree(machine.home, ignore_errors=True)

    def start_later(self, machine: M) -> None:
        """As a service manager does, which waits longer and longer for what does not start."""
        seconds = self.random.uniform(*RESTART_SECONDS) * min(2 ** max(0, machine.failures - 1), 64)
        self.clock.at(self.clock.now + seconds, lambda: self.start(machine))

    def close(self) -> None:
        """kill -9 for all, and the end of their threads."""
        for machine in self.everyone():
            self.kill(machine)
        self.clock.run(self.clock.now)
        self.clock.close()

    def _live(self, machine: M, life: Life) -> None:
        disk: StateStore | None = None
        try:
            disk = Disk(machine, self.run_id())
            machine.program = program = self.make_program(machine, life, disk)
            program.run()
        except (MurmurError, OSError) as fault:
            machine.failures = 1 if machine.program is not None else machine.failures + 1
            text = str(fault).replace(str(self.folder), "")
            self.tell(machine, "ended", -1, {"fault": f"{type(fault).__name__}: {text}", "times": machine.failures})
            self.start_later(machine)
        finally:
            life.dead = True
            if disk is not None:
                disk.close()


def inner(steps: int) -> InnerSpec:
    """Inner steps of the learner, which knows no schedule."""
    return InnerSpec(steps=steps, sequences=PAGE_SEQUENCES, peak_lr=1.0, final_lr=1.0, warmup_steps=0, decay_steps=1)


@dataclass(frozen=True)
class Line:
    """A machine's line: bytes a second, and what one byte of a payload or of the model's state stands for. By default
    a payload has some 200 MB. Transfers beside one another do not slow each other down."""

    up_bytes: float = 110e6 / 8
    down_bytes: float = 500e6 / 8
    large: float = 100_000

    def seconds(self, draw: random.Random, num_bytes: int, *, large: bool, up: bool) -> float:
        """What an object takes. large: a payload, or a part of the model's state."""
        size = num_bytes * self.large if large else num_bytes
        return draw.uniform(*STORE_SECONDS) + size / (self.up_bytes if up else self.down_bytes)
