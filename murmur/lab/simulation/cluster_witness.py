"""What must hold in a simulated cluster: a witness that sees its whole run."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256
from statistics import fmean
from typing import IO, Any

from murmur.cluster.group_keys import Group
from murmur.lab.simulation.cluster import BUCKET, INNER_SECONDS, SECRET, Cluster, MemberMachine
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Record
from murmur.protocol.types import Digest

FIRST_ROUNDS = 2
"""Left in peace, and not measured: a run begins when everybody is there, and members do not know their pace yet."""
USUAL_WAIT = 60.0
"""From a member's claim to the record, beyond the slowest one's training: looks, grace, and a payload on its way."""
AFTERMATH_SECONDS = 60.0
"""What a fault costs the others after it has ended: silence, time-outs, a payload that is sent again."""

MAY_END = ("disk is full", "InUse: ")
"""Why a member may end by itself: its disk is full, or its process before has not quite ended."""
MAY_BEND = ("store lies", "store loses", "store shows two")
"""After these faults a member may leave its theta for a checkpoint: it saw another record than the others, or lost one.
No fault that is drawn is among them: after those, it would have computed another theta."""
MAY_DAMAGE = ("page damaged", "home damaged")
"""After these faults a member may find its files damaged. Else it has saved, or made again, another theta."""


@dataclass
class Result:
    """What `murmur simulate --cluster` tells of one run."""

    seed: int
    rounds: int
    members: int
    faults: int = 0
    disagreements: int = 0
    """Members that held another theta after a round than the first one that applied it, or could not go on from theirs
    though nothing had damaged their disk and the store had shown them nothing wrong."""
    unexplained_waits: int = 0
    """Rounds in which a claim waited for its record longer than usual, and no fault was near."""
    participation: float = 0.0
    """Of the members whose process lived through a whole round, the mean share that is in its record."""
    throughput: float = 0.0
    """Inner steps that reached theta of members to which nothing happened in the round, as a share of those that the
    same members make in as long a time in which nothing goes wrong: what others' faults cost."""
    throughput_of_all: float = 0.0
    """The same of all members' time, dead or alive."""
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
        self.steps = Counter[str]()
        self.seconds: dict[str, float] = defaultdict(float)
        """By member: steps that reached theta in rounds in which nothing happened to it, and these rounds' seconds."""
        self.all_steps = 0
        self._trace, self._history = trace, sha256()
        self._named: dict[int, str] = {}
        self._held: dict[tuple[int, Digest], Digest] = {}
        """By round and link: the theta that the first member held at its start."""
        self._first_claim: dict[int, float] = {}
        self._incidents: list[_Incident] = []
        self._damaged: set[str] = set()
        """Members whose disks were damaged: noticed at one of their next starts."""
        self._shares: list[float] = []
        self._began = 0.0
        """When the round began: when the one before was closed."""
        self._measured_from = 0.0
        self._up_since: dict[str, float] = {}

    def watch(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.result.seed, self.result.members = cluster.seed, len(cluster.machines)

    def fault(self, kind: str, machine: MemberMachine | None, seconds: float) -> None:
        assert self.cluster is not None
        now = self.cluster.clock.now
        self.result.faults += 1
        if machine is not None and kind in MAY_DAMAGE:
            self._damaged.add(machine.name)
        self._incidents.append(_Incident(kind, machine.name if machine else None, now, now + seconds))
        self._write(machine.name if machine else "everybody", "fault", -1, {"kind": kind, "seconds": seconds})

    def told(self, machine: MemberMachine, event: str, round: int, fields: dict[str, Any]) -> None:
        assert self.cluster is not None
        now = self.cluster.clock.now
        self._write(machine.name, event, round, fields)
        if event == "started":
            self._up_since[machine.name] = now
        elif event in ("killed", "ended", "leaves"):
            self._up_since.pop(machine.name, None)
        if event == "ended" and not any(reason in fields["fault"] for reason in MAY_END):
            self.result.broken.append(f"{machine.name} ended by itself: {fields['fault']}")
        if event == "claimed":
            self._first_claim.setdefault(round, now)
        elif event == "update_returned":
            self.result.given_back += 1
        elif event == "applied" and self._named.setdefault(round, fields["theta"]) != fields["theta"]:
            self._disagrees(f"round {round}: {machine.name} holds another theta")
        elif event == "diverged" and not self._near({machine.name, None}, now, MAY_BEND):
            self._disagrees(f"round {round}: {machine.name} left its theta: {fields['why']}")
        elif event == "damaged" and machine.name not in self._damaged:
            self._disagrees(f"round {round}: {machine.name} finds its files damaged: {fields['lost']}")
        if event in ("applied", "caught_up", "joined"):
            self._look_at_theta(machine)
        if event in ("closed", "applied") and round == self.round:  # who created it may not have lived to tell
            self._closed(round, now)

    def _look_at_theta(self, machine: MemberMachine) -> None:
        """What it holds itself: an event has the theta of a record, and a member applies no record of another one."""
        assert machine.program is not None
        saved = machine.program.state.saved
        if self._held.setdefault((saved.round, saved.link), saved.theta) != saved.theta:
            self._disagrees(f"round {saved.round}: {machine.name} begins with another theta")

    def _disagrees(self, how: str) -> None:
        self.result.disagreements += 1
        self.result.broken.append(how)

    def _closed(self, round: int, now: float) -> None:
        cluster = self.cluster
        assert cluster is not None
        data = cluster.store.buckets[BUCKET][keys.record(cluster.run, round)].data
        updates = Record.parse(data, cluster.run, round, GROUP, Group(SECRET).verify).updates
        named = {update.member: update.steps for update in updates}
        if round >= FIRST_ROUNDS:
            self.all_steps += sum(named.values())
            for machine in cluster.machines:
                if not self._near({machine.name, None}, now):
                    self.steps[machine.name] += named.get(machine.id, 0)
                    self.seconds[machine.name] += now - self._began
        living = [
            machine.id
            for machine in cluster.machines
            if machine.up and self._up_since.get(machine.name, now) < self._began
        ]
        if living:
            self._shares.append(sum(member in named for member in living) / len(living))
        self._look_at_wait(round, now)
        self._began, self.round = now, round + 1
        if self.round == FIRST_ROUNDS:
            self._measured_from = now
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

    def _near(self, whom: set[str | None], now: float, kinds: Collection[str] = ()) -> bool:
        """Whether something has happened to one of them (None: to everybody) in this round, or just before it. kinds:
        what counts; without any, everything does."""
        self._incidents = [one for one in self._incidents if one.ended + AFTERMATH_SECONDS > self._began]
        near = [one for one in self._incidents if not kinds or one.kind in kinds]
        return any(one.machine in whom and one.began < now for one in near)

    def finish(self) -> Result:
        result = self.result
        result.participation = round(fmean(self._shares), 4) if self._shares else 0.0
        result.history = self._history.hexdigest()
        return result

    def compare(self, calm: "ClusterWitness") -> Result:
        """The result, beside a run in which nothing went wrong."""
        assert self.cluster is not None
        assert calm.cluster is not None
        # Each member beside itself: who is undisturbed differs from round to round, and so does their pace.
        usual = {name: calm.steps[name] / calm.seconds[name] for name in calm.seconds}
        undisturbed = sum(usual[name] * seconds for name, seconds in self.seconds.items())
        everybody = sum(usual.values()) * (self._began - self._measured_from)
        self.result.throughput = round(self.steps.total() / max(undisturbed, 1e-9), 4)
        self.result.throughput_of_all = round(self.all_steps / everybody, 4)
        return self.result

    def _write(self, who: str, event: str, round: int, fields: dict[str, Any]) -> None:
        assert self.cluster is not None
        line = {"at": round_ms(self.cluster.clock.now), "who": who, "event": event, "round": round, **fields}
        text = json.dumps(line, sort_keys=True, default=str)
        self._history.update(text.encode())
        if self._trace is not None:
            self._trace.write(text + "\n")


def round_ms(seconds: float) -> float:
    """To the millisecond."""
    return round(seconds, 3)
