"""A simulated cluster: one store, and members that run the real program in modelled time; its faults, and what must
hold."""

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import exp, log
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import IO, Any

from node.cluster.group_keys import Group
from node.cluster.ledger import Ledger
from node.state.node_state import NodeState
from node.state.store import Saved, StateStore
from protocol import keys
from protocol.cluster import ClusterSpec, ClusterTable, parse_record
from protocol.errors import ConfigError, MurmurError, StorageError
from protocol.spec import CompressionSpec, DataSpec, InnerSpec
from protocol.types import Digest, PeerId
from rounds.member import Member
from simulation.clock import Clock, Killed, Life
from simulation.learner import MODEL, NUM_PAGES, PAGE_SEQUENCES, PAGE_TOKENS, Costs, Learner, NoText, Problem
from simulation.network import (
    DOWN_BYTES,
    LARGE_BYTES,
    RESTART_SECONDS,
    STORE_SECONDS,
    UP_BYTES,
    Recorder,
)
from simulation.store import Call, Store
from training import checkpoint

BUCKET = "cluster"
SECRET = "5e" * 32
STEPS = 60
INNER_SECONDS = 600.0
"""A round of ten minutes; INTELLECT-1's had 38."""
CALM_ROUNDS = 12
"""Of a run in which nothing goes wrong: what the stormy one is compared with."""
FIRST_ROUNDS = 2
"""Left in peace: a run begins when everybody is there."""
USUAL_WAIT = 60.0
"""From a member's claim to the record, beyond the slowest one's training: looks, grace, and a payload on its way."""
AFTERMATH_SECONDS = 60.0
"""What a fault costs the others after it has ended: silence, time-outs, a payload that is sent again."""

KINDS = {
    # name: (how often among all, shortest and longest seconds)
    "killed": (20, 0.1, 60),
    "leaves": (6, 5, 120),
    "stopped": (15, 2, 90),
    "link dead": (12, 5, 120),
    "link slow": (10, 30, 300),
    "link stalls": (8, 10, 120),
    "store dead": (4, 5, 120),
    "store slow": (4, 30, 200),
    "clock jumps": (5, 1, 1),
    "disk full": (3, 20, 200),
    "away": (2, 900, 7200),
    "home lost": (1.5, 1, 120),
    "page damaged": (1, 1, 60),
}
EVERYBODY = {"store dead", "store slow"}

Told = Callable[["Machine", str, int, dict[str, Any]], None]


@dataclass
class Machine:
    """One member: what stays when its process dies, and the process. pace: what its steps take, as a share of what was
    planned."""

    name: str
    home: Path
    pace: float
    id: PeerId
    homes: int = 0
    lives: int = 0
    life: Life | None = None
    program: Member | None = None
    failures: int = 0
    down: int = 0
    disk_full: int = 0
    dead_link: int = 0
    stalls: int = 0
    slow: list[float] = field(default_factory=list)
    wall_offset: float = 0.0

    @property
    def up(self) -> bool:
        return self.life is not None and not self.life.dead


class _Disk(StateStore):
    """A state folder on a disk that may be full."""

    def __init__(self, machine: Machine, run: Digest) -> None:
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
            raise ConfigError("the state cannot be written (database or disk is full): make room and start again")


class Cluster:
    """All members of a run, on one clock. `tell` hears every event of every member, in order."""

    def __init__(self, folder: Path, seed: int, members: int, tell: Told) -> None:
        self.folder, self.seed, self.tell = folder, seed, tell
        self.random = random.Random(f"cluster {seed}")
        self.clock = Clock(seed)
        self.machines: list[Machine] = []
        self._by_name: dict[str, Machine] = {}
        self.store = Store()
        self.store.log = deque(maxlen=0)
        self.store.before = self._served
        shared = self.store.bucket(BUCKET, reader="owner")
        self.problem = Problem(seed, sum(_numel(shape) for shape in MODEL.shapes().values()))
        outside = self.clock.life("world")
        provisional = _spec(Digest(bytes(32)))
        state = Learner(provisional, self.problem, outside, Costs(0.0), self.random).consensus_state()
        genesis = checkpoint.save(folder / "genesis", state)
        for digest, path in checkpoint.blobs(folder / "genesis", genesis):
            shared.put(keys.blob(digest), path, timeout_seconds=1)
        self.spec = _spec(genesis)
        self.run = self.spec.digest
        self.store_dead = 0
        self.store_slow: list[float] = []
        self.machines = [
            Machine(
                f"member-{n}", folder / f"member-{n}", self.random.uniform(0.85, 1.15), _member_id(f"member-{n}", 0)
            )
            for n in range(1, members + 1)
        ]
        self._by_name = {machine.name: machine for machine in self.machines}

    # --- processes ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for machine in self.machines:
            self.start(machine)

    def start(self, machine: Machine) -> None:
        """Start its program on what is in its home, unless it runs."""
        if machine.up or machine.down:
            return
        machine.lives += 1
        machine.life = life = self.clock.life(machine.name)
        life.wall_offset = machine.wall_offset
        machine.program = None
        life.start(partial(self._live, machine, life), "main")
        self.tell(machine, "started", -1, {})

    def kill(self, machine: Machine) -> None:
        """kill -9, unless it is dead."""
        if machine.life is not None and machine.up:
            machine.life.kill()
            self.tell(machine, "killed", -1, {})

    def leave(self, machine: Machine) -> None:
        """As SIGTERM ends it: it says that it leaves, if the store hears it, and dies."""
        if machine.up and machine.program is not None and machine.life is not None:
            program, life = machine.program, machine.life

            def say() -> None:
                program.pulse.leave()
                life.kill()

            life.start(say, "leaving")
            self.tell(machine, "leaves", -1, {})

    def wipe(self, machine: Machine) -> None:
        """Its home is gone, and with it who it was. The process must be dead."""
        rmtree(machine.home, ignore_errors=True)
        machine.homes += 1
        machine.id = _member_id(machine.name, machine.homes)

    def start_later(self, machine: Machine) -> None:
        """As a service manager does, which waits longer and longer for what does not start."""
        seconds = self.random.uniform(*RESTART_SECONDS) * min(2 ** max(0, machine.failures - 1), 64)
        self.clock.at(self.clock.now + seconds, lambda: self.start(machine))

    def close(self) -> None:
        """kill -9 for all, and the end of their threads."""
        for machine in self.machines:
            self.kill(machine)
        self.clock.run(self.clock.now)
        self.clock.close()

    def _live(self, machine: Machine, life: Life) -> None:
        disk: StateStore | None = None
        try:
            disk = _Disk(machine, self.run)
            machine.program = self._program(machine, life, disk)
            machine.program.run()
        except (MurmurError, OSError) as fault:
            machine.failures = 1 if machine.program is not None else machine.failures + 1
            text = str(fault).replace(str(self.folder), "")
            self.tell(machine, "ended", -1, {"fault": f"{type(fault).__name__}: {text}"})
            self.start_later(machine)
        finally:
            life.dead = True
            if disk is not None:
                disk.close()

    def _program(self, machine: Machine, life: Life, disk: StateStore) -> Member:
        draw = random.Random(f"{self.seed} {machine.name} {machine.lives}")

        def link(key: str, num_bytes: int, *, up: bool) -> float:
            large = "/payload/" in key or "blob/" in key
            size = num_bytes * LARGE_BYTES if large else num_bytes
            slow = max([1.0, *machine.slow, *self.store_slow])
            return (draw.uniform(*STORE_SECONDS) + size / (UP_BYTES if up else DOWN_BYTES)) * slow

        bucket = self.store.bucket(BUCKET, reader=machine.name, time=life, link=link)
        ledger = Ledger(bucket, self.run, Group(SECRET), machine.id, life)
        learner = Learner(self.spec, self.problem, life, Costs(INNER_SECONDS * machine.pace), draw)
        events = Recorder(partial(self.tell, machine))
        held = NodeState(self.spec, self.run, learner, disk, events, life)
        process = sha256(f"{machine.name} {machine.lives}".encode()).hexdigest()[:16]
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


@dataclass
class Result:
    """What `murmur simulate --cluster` tells of one run."""

    seed: int
    rounds: int
    members: int
    faults: int = 0
    disagreements: int = 0
    """Members that held another theta at the start of a round than the first one that applied it."""
    unexplained_waits: int = 0
    """Rounds in which a claim waited for its record longer than usual, and no fault was near."""
    participation: float = 0.0
    """Of the members whose process lived through a whole round, the mean share that is in its record."""
    throughput: float = 0.0
    """Inner steps that reached theta in an hour of a member to which nothing happened in the round, as a share of those
    of a run in which nothing goes wrong: what others' faults cost."""
    throughput_of_all: float = 0.0
    """The same of every member's hours, dead or alive."""
    given_back: int = 0
    history: str = ""
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Incident:
    kind: str
    machine: str | None
    began: float
    ended: float


class ClusterWitness:
    """Sees a simulated cluster through. It changes nothing and draws nothing."""

    def __init__(self, rounds: int, trace: IO[str] | None = None) -> None:
        self.rounds = rounds
        self.cluster: Cluster | None = None
        self.on_round: Callable[[int], None] = lambda rounds: None
        self.round = 0
        """The first round without a record."""
        self.result = Result(0, rounds, 0)
        self.steps, self.seconds = 0, 0.0
        """Of members to which nothing happened in a round, that reached theta, and in how long."""
        self.all_steps = 0
        self._trace, self._history = trace, sha256()
        self._theta: dict[int, str] = {}
        self._first_claim: dict[int, float] = {}
        self._incidents: list[_Incident] = []
        self._shares: list[float] = []
        self._began = 0.0
        """When the round began: when the one before was closed."""
        self._up_since: dict[str, float] = {}

    def watch(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.result.seed, self.result.members = cluster.seed, len(cluster.machines)

    def fault(self, kind: str, machine: Machine | None, seconds: float) -> None:
        assert self.cluster is not None
        now = self.cluster.clock.now
        self.result.faults += 1
        self._incidents.append(_Incident(kind, machine.name if machine else None, now, now + seconds))
        self._write(machine.name if machine else "everybody", "fault", -1, {"kind": kind, "seconds": seconds})

    def told(self, machine: Machine, event: str, round: int, fields: dict[str, Any]) -> None:
        assert self.cluster is not None
        now = self.cluster.clock.now
        self._write(machine.name, event, round, fields)
        if event == "started":
            self._up_since[machine.name] = now
        elif event in ("killed", "ended", "leaves"):
            self._up_since.pop(machine.name, None)
        elif event == "claimed":
            self._first_claim.setdefault(round, now)
        elif event == "update_returned":
            self.result.given_back += 1
        elif event == "applied" and self._theta.setdefault(round, fields["theta"]) != fields["theta"]:
            self.result.disagreements += 1
            self.result.broken.append(f"round {round}: {machine.name} holds another theta")
        if event in ("closed", "applied") and round == self.round:  # who created it may not have lived to tell
            self._closed(round, now)

    def _closed(self, round: int, now: float) -> None:
        cluster = self.cluster
        assert cluster is not None
        data = cluster.store.buckets[BUCKET][keys.record(cluster.run, round)].data
        updates = parse_record(data, cluster.run, round, Group(SECRET).verify).updates
        named = {update.member: update.steps for update in updates}
        self.all_steps += sum(named.values())
        unhurt = [machine for machine in cluster.machines if not self._near({machine.name, None}, now)]
        self.steps += sum(named.get(machine.id.hex(), 0) for machine in unhurt)
        self.seconds += len(unhurt) * (now - self._began)
        living = [
            machine.id.hex()
            for machine in cluster.machines
            if machine.up and self._up_since.get(machine.name, now) < self._began
        ]
        if living:
            self._shares.append(sum(member in named for member in living) / len(living))
        self._look_at_wait(round, now)
        self._began, self.round = now, round + 1
        self.on_round(self.round)
        if self.round >= self.rounds:
            cluster.clock.stop()

    def _look_at_wait(self, round: int, now: float) -> None:
        """The first claim waits for the slowest one's training and the usual, unless a fault was near."""
        assert self.cluster is not None
        since = self._first_claim.pop(round, now)
        paces = [machine.pace for machine in self.cluster.machines]
        usual = USUAL_WAIT + INNER_SECONDS * 1.1 * (max(paces) - min(paces))
        if now - since <= usual:
            return
        if not self._near({machine.name for machine in self.cluster.machines} | {None}, now):
            self.result.unexplained_waits += 1
            self.result.broken.append(f"round {round}: waited {now - since:.0f} s, and no fault was near")

    def _near(self, whom: set[str | None], now: float) -> bool:
        """Whether something has happened to one of them (None: to everybody) in this round, or just before it."""
        self._incidents = [one for one in self._incidents if one.ended + AFTERMATH_SECONDS > self._began]
        return any(one.machine in whom and one.began < now for one in self._incidents)

    def finish(self) -> Result:
        result = self.result
        result.participation = round(fmean(self._shares), 4) if self._shares else 0.0
        result.history = self._history.hexdigest()
        return result

    def compare(self, calm: "ClusterWitness") -> Result:
        """The result, beside a run in which nothing went wrong."""
        assert self.cluster is not None
        assert calm.cluster is not None
        usual = calm.steps / calm.seconds
        everybody = len(self.cluster.machines) * self.cluster.clock.now
        self.result.throughput = round(self.steps / max(self.seconds, 1e-9) / usual, 4)
        self.result.throughput_of_all = round(self.all_steps / everybody / usual, 4)
        return self.result

    def _write(self, who: str, event: str, round: int, fields: dict[str, Any]) -> None:
        assert self.cluster is not None
        line = {"at": round_ms(self.cluster.clock.now), "who": who, "event": event, "round": round, **fields}
        text = json.dumps(line, sort_keys=True, default=str)
        self._history.update(text.encode())
        if self._trace is not None:
            self._trace.write(text + "\n")


class ClusterFaults:
    """What happens to a simulated cluster: a Poisson process drawn from the seed, until the last rounds."""

    def __init__(self, cluster: Cluster, per_hour: float, witness: ClusterWitness) -> None:
        self.cluster, self.per_hour, self.witness = cluster, per_hour, witness
        self.random = random.Random(f"faults {cluster.seed}")

    def begin(self) -> None:
        if self.per_hour > 0:
            self._next()

    def _next(self) -> None:
        when = self.cluster.clock.now + self.random.expovariate(self.per_hour / 3600)
        self.cluster.clock.at(when, self._arrive)

    def _arrive(self) -> None:
        self._next()
        kind = self.random.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()])[0]
        _, shortest, longest = KINDS[kind]
        seconds = exp(self.random.uniform(log(shortest), log(longest)))
        machine = self.random.choice(self.cluster.machines)
        if self.witness.round < FIRST_ROUNDS:
            return
        self.witness.fault(kind, None if kind in EVERYBODY else machine, seconds)
        self._do(kind, machine, seconds)

    def _do(self, kind: str, machine: Machine, seconds: float) -> None:
        cluster = self.cluster
        if kind in ("killed", "away", "leaves", "home lost", "page damaged"):
            self._down(kind, machine, seconds)
        elif kind == "stopped":
            if machine.life is not None:
                machine.life.freeze(seconds)
        elif kind == "clock jumps":
            machine.wall_offset = self.random.uniform(-86_400, 86_400)
            if machine.life is not None:
                machine.life.wall_offset = machine.wall_offset
        elif kind in ("link slow", "store slow"):
            factors = machine.slow if kind == "link slow" else cluster.store_slow
            factor = self.random.uniform(2, 10)
            factors.append(factor)
            self._after(seconds, lambda: factors.remove(factor))
        else:
            whom, name = {
                "link dead": (machine, "dead_link"),
                "link stalls": (machine, "stalls"),
                "disk full": (machine, "disk_full"),
                "store dead": (cluster, "store_dead"),
            }[kind]
            setattr(whom, name, getattr(whom, name) + 1)
            self._after(seconds, lambda: setattr(whom, name, getattr(whom, name) - 1))

    def _down(self, kind: str, machine: Machine, seconds: float) -> None:
        cluster = self.cluster
        if kind == "leaves":
            cluster.leave(machine)
        else:
            cluster.kill(machine)
        machine.down += 1
        if kind == "home lost":
            cluster.wipe(machine)
        elif kind == "page damaged":
            self._damage(machine)

        def back() -> None:
            machine.down -= 1
            cluster.start_later(machine)

        self._after(seconds + (5.0 if kind == "leaves" else 0.0), back)

    def _damage(self, machine: Machine) -> None:
        """A flipped byte in one of its files: noticed at the next start."""
        files = sorted(path for path in machine.home.rglob("files/*") if path.stat().st_size)
        if files:
            path = self.random.choice(files)
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1
            path.write_bytes(data)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self.cluster.clock.at(self.cluster.clock.now + seconds, call)


def play(
    folder: Path,
    seed: int,
    members: int,
    rounds: int,
    faults_per_hour: float,
    trace: IO[str] | None = None,
    on_round: Callable[[int], None] = lambda rounds: None,
) -> ClusterWitness:
    """One run, to its last record."""
    witness = ClusterWitness(rounds, trace)
    witness.on_round = on_round
    cluster = Cluster(folder, seed, members, witness.told)
    witness.watch(cluster)
    try:
        cluster.begin()
        ClusterFaults(cluster, faults_per_hour, witness).begin()
        while witness.round < rounds:
            cluster.clock.run(cluster.clock.now + 86_400.0)
    finally:
        cluster.close()
    witness.finish()
    return witness


def simulate(
    folder: Path,
    seed: int,
    members: int,
    rounds: int,
    faults_per_hour: float,
    trace: IO[str] | None = None,
    on_round: Callable[[int], None] = lambda rounds: None,
) -> Result:
    """A run with faults, compared with one of the same members in which nothing goes wrong."""
    calm = play(folder / "calm", seed, members, CALM_ROUNDS, 0.0)
    return play(folder / "run", seed, members, rounds, faults_per_hour, trace, on_round).compare(calm)


def _spec(genesis: Digest) -> ClusterSpec:
    return ClusterSpec(
        name="simulation",
        genesis_checkpoint=genesis.hex(),
        checkpoint_rounds=4,
        local=True,
        model=MODEL,
        compression=CompressionSpec(k=1024),
        inner=InnerSpec(
            steps=STEPS, sequences=PAGE_SEQUENCES, peak_lr=1.0, final_lr=1.0, warmup_steps=0, decay_steps=1
        ),
        data=DataSpec(
            index=bytes(32).hex(),
            num_tokens=NUM_PAGES * PAGE_TOKENS + 1,
            page_sequences=PAGE_SEQUENCES,
            held_out_sequences=2,
        ),
        cluster=ClusterTable(keep_rounds=24),
    )


def _member_id(name: str, home: int) -> PeerId:
    return PeerId(sha256(f"{name} {home}".encode()).digest())


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def round_ms(seconds: float) -> float:
    """To the millisecond."""
    return round(seconds, 3)
