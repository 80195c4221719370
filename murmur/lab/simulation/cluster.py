"""A simulated cluster: one store, and members that run the real program in modelled time."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.cluster.bootstrap import member_id
from murmur.cluster.group_keys import Group
from murmur.cluster.ledger import Ledger
from murmur.cluster.member import Member
from murmur.lab.simulation.clock import Killed, Life
from murmur.lab.simulation.machine import COMPRESSION, DATA, Line, Machine, Machines, Recorder, inner
from murmur.lab.simulation.modelled_replica import DEEP, MODEL, Costs, ModelledReplica, NoText
from murmur.lab.simulation.store import Call
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.protocol.cluster import Beat, ClusterOuter, ClusterSpec, ClusterTable
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import NO_ROUND
from murmur.protocol.spec import Exchange, ModelSpec
from murmur.protocol.types import Digest, PeerId
from storage.s3 import CREATE_BYTES

BUCKET = "cluster"
SECRET = "5e" * 32
STEPS = 60
INNER_SECONDS = 600.0
"""A round of ten minutes; INTELLECT-1's had 38."""

Told = Callable[["MemberMachine", str, int, dict[str, Any]], None]


@dataclass
class MemberMachine(Machine[Member]):
    """One member's machine."""

    id: PeerId
    dead_link: int = 0
    stalls: int = 0
    slow: list[float] = field(default_factory=list)


class Cluster(Machines[MemberMachine]):
    """All members of a run, on one clock. `tell` hears every event of every member, in order."""

    def __init__(self, folder: Path, seed: int, members: int, tell: Told, exchange: Exchange = "sparse") -> None:
        super().__init__("cluster", folder, seed, tell, _model(exchange))
        self.machines: list[MemberMachine] = []
        self._by_name: dict[str, MemberMachine] = {}
        self.store.log = deque(maxlen=0)
        self.store.before = self._served
        self.spec = self.found(self.store.bucket(BUCKET, reader="owner"), partial(_spec, exchange))
        self.run = self.spec.digest
        self.store_dead = 0
        self.store_slow: list[float] = []
        names = [f"member-{number}" for number in range(1, members + 1)]
        self.machines = [
            MemberMachine(name, folder / name, self.random.uniform(0.85, 1.15), member_id(self.run, name))
            for name in names
        ]
        self._by_name = {machine.name: machine for machine in self.machines}

    # --- processes ---------------------------------------------------------------------------------------------

    def everyone(self) -> Iterable[MemberMachine]:
        return self.machines

    def run_id(self) -> Digest:
        return self.run

    def begin(self) -> None:
        for machine in self.machines:
            self.start(machine)

    def leave(self, machine: MemberMachine) -> None:
        """As SIGTERM ends it: it says that it leaves, if the store hears it, and dies."""
        if machine.up and machine.program is not None and machine.life is not None:
            program, life = machine.program, machine.life

            def say() -> None:
                program.heartbeat.leave()
                life.kill()

            life.start(say, "leaving")
            self.tell(machine, "leaves", -1, {})

    def make_program(self, machine: MemberMachine, life: Life, disk: StateStore) -> Member:
        draw = random.Random(f"{self.seed} {machine.name} {machine.lives}")

        def link(key: str, num_bytes: int, *, up: bool) -> float:
            slow = max([1.0, *machine.slow, *self.store_slow])
            return Line().seconds(draw, num_bytes, large="/payload/" in key or "blob/" in key, up=up) * slow

        bucket = self.store.bucket(BUCKET, reader=machine.name, time=life, link=link)
        ledger = SerialLedger(bucket, self.run, Group(SECRET), machine.id, life)
        modelled = ModelledReplica(self.spec, self.problem, life, Costs(INNER_SECONDS * machine.pace), draw)
        events = Recorder(partial(self.told, machine))
        held = NodeState(self.spec, self.run, modelled, disk, events, life)
        process = f"{machine.lives:08x}" + sha256(machine.name.encode()).hexdigest()[:8]
        return Member(self.spec, machine.name, held, NoText(), ledger, process)

    def _served(self, call: Call) -> None:
        """Before a call is served: what lies between this member and the store."""
        machine = self._by_name.get(call.reader)
        if machine is None or machine.life is None:
            return
        if machine.life.dead:
            raise Killed
        if machine.stalls:
            machine.life.sleep(15.0)
            raise StorageError(f"{call.verb}: out of time")
        if machine.dead_link or self.store_dead:
            machine.life.sleep(0.5)
            raise StorageError(f"{call.verb}: no connection to the endpoint")


class SerialLedger(Ledger):
    """One of the ledgers of this process, which all read the same beats: each is parsed once."""

    def find_beat(self, key: str, member: PeerId) -> Beat | None:
        return self.read(key, CREATE_BYTES, lambda data: _parsed(data, self.run, member))


@lru_cache(maxsize=1024)
def _parsed(data: bytes, run: Digest, member: PeerId) -> Beat:
    return Beat.parse(data, run, NO_ROUND, member, Group(SECRET).verify)


def _spec(exchange: Exchange, genesis: Digest) -> ClusterSpec:
    return ClusterSpec(
        name="simulation",
        genesis_checkpoint=genesis.hex(),
        checkpoint_rounds=4,
        local=True,
        model=_model(exchange),
        compression=COMPRESSION,
        inner=inner(STEPS),
        data=DATA,
        outer=ClusterOuter(alpha=0.7, momentum=0.9) if exchange == "int8" else ClusterOuter(),
        cluster=ClusterTable(keep_rounds=24, exchange=exchange),
    )


def _model(exchange: Exchange) -> ModelSpec:
    return DEEP if exchange == "int8" else MODEL
