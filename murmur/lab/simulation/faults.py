"""Faults of a simulated network: failures of machines, links, chains and rivals.

Faults arrive as a Poisson process drawn from the seed, in storms with calm rounds between them. The storms show whether
the run survives them, the calms whether every node recovers. Most last seconds to minutes: at some thirty per round the
network must still have a chance. Faults act from outside, on processes, homes, links, servers and blocks.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, log

from murmur.lab.simulation.chain import BLOCK_SECONDS
from murmur.lab.simulation.conditions import FINALITY_LAG
from murmur.lab.simulation.hostile import serves
from murmur.lab.simulation.network import Network, SimulatedNode
from murmur.lab.simulation.store import Faults as StoreFaults

STORM_ROUNDS, CALM_ROUNDS = 18, 6
FIRST_ROUND = 1
"""The first round has no faults: a run begins when its owner sees that all nodes are there."""
ARCHIVE_SHARE = 1 / 3
"""Share of a storm's rounds in which an archive answers that is only available at times ("some")."""
OUTAGE_BLOCKS = 10
LONG_ROUNDS = 8.0
"""The longest outage, in rounds."""


@dataclass
class Incident:
    """One fault: its victim (None: all nodes), and from when to when, in modelled seconds."""

    kind: str
    member: SimulatedNode | None
    began: float
    ended: float


@dataclass(frozen=True)
class Kind:
    """`weight`: relative frequency. `seconds`: shortest and longest, drawn evenly in their logarithm. `whom`: a node, a
    validator or everybody at once."""

    name: str
    weight: float
    seconds: tuple[float, float]
    whom: str = "node"


KINDS = (
    Kind("killed", 20, (0.1, 60)),
    Kind("stopped", 15, (2, 90)),
    Kind("store dead", 12, (10, 180)),
    Kind("store slow", 10, (30, 300)),
    Kind("store stalls", 8, (10, 180)),
    Kind("writes refused", 4, (60, 1800)),
    Kind("chain cut", 8, (10, 120)),
    Kind("chain hangs", 4, (10, 120)),
    Kind("chain stands still", 6, (30, 180)),
    Kind("clock jumps", 5, (1, 1)),
    Kind("disk full", 3, (20, 200)),
    Kind("mirror lies", 4, (60, 900), "validator"),
    Kind("away", 2, (900, LONG_ROUNDS * 900)),
    Kind("home lost", 1.5, (1, 120)),
    Kind("page damaged", 1, (1, 60)),
    Kind("hotkey replaced", 0.4, (1, 1)),
    Kind("blocks late", 2, (12, 60), "everybody"),
    Kind("fork", 3, (1, 1), "everybody"),
    Kind("finality stalls", 0.5, (24, 90), "everybody"),
    Kind("chain dead", 0.5, (10, 60), "everybody"),
)


@dataclass
class Afflicted:
    """The current faults of a member's bucket, which may overlap."""

    dead: int = 0
    stalls: int = 0
    refused: int = 0
    lies: int = 0
    slow: list[float] = field(default_factory=list)
    rival: str = "honest"
    """A hostile owner's behaviour in this round."""

    def faults(self) -> StoreFaults:
        return StoreFaults(
            down=self.dead > 0 or self.rival == "dead",
            stalls=self.stalls > 0 or self.rival == "stalls",
            read_only=self.refused > 0,
            lies=self.lies > 0 or self.rival == "lies",
            slow=max(self.slow, default=1.0),
        )


class Faults:
    """All faults of one simulation. `told` is called with every incident when it begins."""

    def __init__(
        self,
        network: Network,
        per_hour: float,
        rounds: int,
        told: Callable[[Incident], None] = lambda incident: None,
        archive: str = "yes",
        outage: bool = False,
    ) -> None:
        """`archive`: whether a public archive of the chain answers: "yes", "no", or "some", which means in every round
        of a calm and in a third of the others. `outage`: in every round the bucket of one miner, drawn anew, is dead
        for `OUTAGE_BLOCKS` from the commit deadline on."""
        self.network, self.per_hour, self.rounds, self.told = network, per_hour, rounds, told
        self.random = random.Random(f"faults {network.seed}")
        self.archive, self.outage = archive, outage
        self.count = 0
        self._buckets: dict[str, Afflicted] = {}
        self._replaced = 0
        self._does = {
            "killed": self._killed,
            "stopped": self._stopped,
            "store dead": self._store_dead,
            "store slow": self._store_slow,
            "store stalls": self._store_stalls,
            "writes refused": self._writes_refused,
            "chain cut": self._chain_cut,
            "chain hangs": self._chain_hangs,
            "chain stands still": self._chain_stands_still,
            "clock jumps": self._clock_jumps,
            "disk full": self._disk_full,
            "mirror lies": self._mirror_lies,
            "away": self._killed,
            "home lost": self._home_lost,
            "page damaged": self._page_damaged,
            "hotkey replaced": self._hotkey_replaced,
            "blocks late": self._blocks_late,
            "fork": self._fork,
            "finality stalls": self._finality_stalls,
            "chain dead": self._chain_dead,
        }

    def begin(self) -> None:
        if self.per_hour > 0:
            self._next(self.network.clock.now)
        self._others_serve()
        if self.outage:
            self._goes_out()

    def calm(self, round: int) -> bool:
        """Whether this round has no faults."""
        place = (round - FIRST_ROUND) % (STORM_ROUNDS + CALM_ROUNDS)
        return round < FIRST_ROUND or place >= STORM_ROUNDS or round >= self.rounds - CALM_ROUNDS

    # --- when and what -----------------------------------------------------------------------------------------

    def _next(self, now: float) -> None:
        when = now + self.random.expovariate(self.per_hour / 3600)
        self.network.clock.at(when, self._arrive)

    def _arrive(self) -> None:
        network = self.network
        now = network.clock.now
        self._next(now)
        round = network.run.clock.round_at(network.world.head)
        kind = self.random.choices(KINDS, [kind.weight for kind in KINDS])[0]
        shortest, longest = kind.seconds
        seconds = exp(self.random.uniform(log(shortest), log(longest)))
        candidates = [m for m in network.members.values() if not m.gone and (kind.whom == "node" or m.validates)]
        member = None if kind.whom == "everybody" else self.random.choice(candidates)
        if self.calm(round):
            return
        seconds = min(seconds, self._seconds_of_storm(round))
        incident = Incident(kind.name, member, now, now + seconds)
        self.count += 1
        self.told(incident)
        self._does[kind.name](member, seconds)  # type: ignore[operator]

    def _seconds_of_storm(self, round: int) -> float:
        """Return the seconds from now to the next calm."""
        clock = self.network.run.clock
        calm = next(later for later in range(round + 1, round + STORM_ROUNDS + 1) if self.calm(later))
        return max(1.0, (clock.start(calm) - self.network.world.head) * BLOCK_SECONDS)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self.network.clock.at(self.network.clock.now + seconds, call)

    def _others_serve(self) -> None:
        """Set the hostile minority's servers to the behaviour drawn for this round, in a calm as in a storm, and switch
        the public archive on or off. Repeats every round."""
        network = self.network
        clock = network.run.clock
        round = clock.round_at(network.world.head)
        drawn = random.Random(f"archive {network.seed} {round}").random() < ARCHIVE_SHARE
        network.blocks.has_archive = self.archive == "yes" or (self.archive == "some" and (self.calm(round) or drawn))
        for member in network.members.values():
            if member.hostile and member.validates:
                self._bucket(member).rival = serves(network.run.id, round)
                self._set(member)
        blocks = max(1, clock.start(round + 1) - network.world.head)
        self._after(blocks * BLOCK_SECONDS, self._others_serve)

    def _goes_out(self) -> None:
        """Repeats every round, from the block of the commit deadline on."""
        network = self.network
        clock, head, now = network.run.clock, network.world.head, network.clock.now
        round = clock.round_at(head)
        if head >= clock.commit_deadline(round):
            miners = [m for m in network.members.values() if not m.validates and not m.hostile and not m.gone]
            member = random.Random(f"outage {network.seed} {round}").choice(miners)
            seconds = OUTAGE_BLOCKS * BLOCK_SECONDS
            self.told(Incident("store dead", member, now, now + seconds))
            self._store_dead(member, seconds)
            round += 1
        blocks = max(1, clock.commit_deadline(round) - head)
        self._after(blocks * BLOCK_SECONDS, self._goes_out)

    # --- processes and homes -----------------------------------------------------------------------------------

    def _killed(self, member: SimulatedNode, seconds: float) -> None:
        self.network.kill(member)
        member.down += 1
        self._after(seconds, lambda: self._back(member))

    def _back(self, member: SimulatedNode) -> None:
        member.down -= 1
        self.network.start_later(member)

    def _home_lost(self, member: SimulatedNode, seconds: float) -> None:
        self._killed(member, seconds)
        self.network.wipe(member)

    def _page_damaged(self, member: SimulatedNode, seconds: float) -> None:
        """Flip a byte in one of its files: the next start notices."""
        self._killed(member, seconds)
        files = sorted(path for path in member.home.rglob("files/*") if path.stat().st_size)
        if files:
            path = self.random.choice(files)
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1
            path.write_bytes(data)

    def _stopped(self, member: SimulatedNode, seconds: float) -> None:
        if member.life is not None:
            member.life.freeze(seconds)

    def _clock_jumps(self, member: SimulatedNode, seconds: float) -> None:
        member.wall_offset = self.random.uniform(-86_400, 86_400)
        if member.life is not None:
            member.life.wall_offset = member.wall_offset

    def _disk_full(self, member: SimulatedNode, seconds: float) -> None:
        member.disk_full += 1

        def room() -> None:
            member.disk_full -= 1

        self._after(seconds, room)

    def _hotkey_replaced(self, member: SimulatedNode, seconds: float) -> None:
        """Remove a miner for good, and give its uid to a new hotkey."""
        if member.validates or member.hostile:
            return
        self._replaced += 1
        network = self.network
        network.kill(member)
        member.gone = True
        uid = next(peer.uid for peer in network.world.pending_peers if peer.id == member.peer)
        joiner = network.add(f"joiner-{self._replaced}", validates=False, stake=0, uid=uid)
        network.start_later(joiner)

    # --- links and servers -------------------------------------------------------------------------------------

    def _bucket(self, member: SimulatedNode) -> Afflicted:
        return self._buckets.setdefault(member.name, Afflicted())

    def _set(self, member: SimulatedNode) -> None:
        self.network.store.faults[member.name] = self._bucket(member).faults()

    def _store_dead(self, member: SimulatedNode, seconds: float) -> None:
        self._bucket(member).dead += 1
        self._set(member)

        def back() -> None:
            self._bucket(member).dead -= 1
            self._set(member)

        self._after(seconds, back)

    def _store_stalls(self, member: SimulatedNode, seconds: float) -> None:
        self._bucket(member).stalls += 1
        self._set(member)

        def back() -> None:
            self._bucket(member).stalls -= 1
            self._set(member)

        self._after(seconds, back)

    def _writes_refused(self, member: SimulatedNode, seconds: float) -> None:
        """Its token may not write any more."""
        self._bucket(member).refused += 1
        self._set(member)

        def back() -> None:
            self._bucket(member).refused -= 1
            self._set(member)

        self._after(seconds, back)

    def _mirror_lies(self, member: SimulatedNode, seconds: float) -> None:
        self._bucket(member).lies += 1
        self._set(member)

        def back() -> None:
            self._bucket(member).lies -= 1
            self._set(member)

        self._after(seconds, back)

    def _store_slow(self, member: SimulatedNode, seconds: float) -> None:
        factor = self.random.uniform(2, 10)
        self._bucket(member).slow.append(factor)
        self._set(member)

        def back() -> None:
            self._bucket(member).slow.remove(factor)
            self._set(member)

        self._after(seconds, back)

    def _chain_cut(self, member: SimulatedNode, seconds: float) -> None:
        self._cut([member], seconds, hangs=False)

    def _chain_hangs(self, member: SimulatedNode, seconds: float) -> None:
        self._cut([member], seconds, hangs=True)

    def _chain_dead(self, member: None, seconds: float) -> None:
        self._cut(list(self.network.members.values()), seconds, hangs=False)

    def _cut(self, members: list[SimulatedNode], seconds: float, *, hangs: bool) -> None:
        for member in members:
            member.connection.down += 1
            member.connection.hangs = hangs

        def back() -> None:
            for member in members:
                member.connection.down -= 1

        self._after(seconds, back)

    def _chain_stands_still(self, member: SimulatedNode, seconds: float) -> None:
        """Its endpoint answers, but sees no new block."""
        connection = member.connection
        if connection.stuck_at is None:
            connection.stuck_at = self.network.world.final

            def back() -> None:
                connection.stuck_at = None

            self._after(seconds, back)

    # --- the chain itself --------------------------------------------------------------------------------------

    def _blocks_late(self, member: None, seconds: float) -> None:
        self.network.blocks.late_seconds += seconds

    def _fork(self, member: None, seconds: float) -> None:
        if self.network.world.finality_stops is None:
            self.network.world.reorg(self.random.randint(1, FINALITY_LAG))
            self.network.blocks.wake()

    def _finality_stalls(self, member: None, seconds: float) -> None:
        world = self.network.world
        if world.finality_stops is None:
            world.finality_stops = world.final

            def back() -> None:
                world.finality_stops = None
                self.network.blocks.wake()

            self._after(seconds, back)
