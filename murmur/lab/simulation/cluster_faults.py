"""A simulated cluster's run, to its last record, with what goes wrong in it."""

import random
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import IO, Any

from murmur.lab.simulation.cluster import Cluster, MemberMachine
from murmur.lab.simulation.cluster_witness import FIRST_ROUNDS, ClusterWitness, Result
from murmur.protocol.spec import Exchange

CALM_SHARE, LEAST_CALM_ROUNDS = 0.1, 12
"""Rounds of the run in which nothing goes wrong, with which the stormy one is compared: what a member makes in a round
varies by a tenth."""

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

    def _do(self, kind: str, machine: MemberMachine, seconds: float) -> None:
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

    def _down(self, kind: str, machine: MemberMachine, seconds: float) -> None:
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

    def _damage(self, machine: MemberMachine) -> None:
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
    exchange: Exchange = "sparse",
    trace: IO[str] | None = None,
    on_round: Callable[[int], None] = lambda rounds: None,
) -> ClusterWitness:
    """One run, to its last record."""
    witness = ClusterWitness(rounds, trace)
    witness.on_round = on_round
    cluster = Cluster(folder, seed, members, witness.told, exchange)
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
    exchange: Exchange = "sparse",
    **how: Any,
) -> Result:
    """A run with faults, compared with one of the same members in which nothing goes wrong. how: as of `play`."""
    calm_rounds = max(LEAST_CALM_ROUNDS, int(CALM_SHARE * rounds))
    calm = play(folder / "calm", seed, members, calm_rounds, 0.0, exchange)
    return play(folder / "run", seed, members, rounds, faults_per_hour, exchange, **how).compare(calm)
