"""kill -9 of one simulated member at any line of what it does, or at any call to the store."""

import re
import sys
from types import FrameType
from typing import Any

from murmur.lab.simulation.clock import Killed
from murmur.lab.simulation.cluster import Cluster, MemberMachine
from murmur.lab.simulation.cluster_witness import ClusterWitness
from murmur.lab.simulation.store import Call
from murmur.protocol import keys

FILES = (
    "murmur/cluster/member.py",
    "murmur/cluster/play.py",
    "murmur/cluster/contribute.py",
    "murmur/cluster/follow.py",
    "murmur/cluster/fetch.py",
    "murmur/cluster/repair.py",
    "murmur/cluster/documents.py",
    "murmur/cluster/recovery.py",
    "murmur/rounds/contribution.py",
    "murmur/node/state/node_state.py",
    "murmur/node/state/inner_state.py",
    "murmur/node/state/redo_log.py",
    "murmur/cluster/ledger.py",
    "murmur/node/state/store.py",
    "murmur/node/state/saved.py",
    "murmur/cluster/on_disk.py",
    "murmur/cluster/amendments.py",
    "murmur/cluster/rejoin.py",
    "murmur/cluster/mean.py",
    "murmur/cluster/mean_parts.py",
)


class LineKiller:
    """Counts the lines that a member's main thread runs in these files once it is armed, and kills it at one of them.
    `killed`: where that was. `once`: whether each line counts only the first time."""

    def __init__(self, cluster: Cluster, victim: MemberMachine, once: bool = False) -> None:
        self.cluster, self.victim, self.once = cluster, victim, once
        self.lines, self._at = 0, -1
        self._seen = set[tuple[str, int]]()
        self.killed = ""
        self._work: Any = None

    def arm(self, line: int) -> None:
        """Called by the victim itself: it dies before the line of this number, counted from now. -1: it is counted
        only."""
        self.lines, self._at, self.killed = 0, line, ""
        self._seen = set()
        self._work = self.cluster.clock.running()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def disarm(self) -> None:
        self._work = None
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self._work is None or not frame.f_code.co_filename.endswith(FILES):
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and self.cluster.clock._running is self._work and not (self.once and place in self._seen):
            self.lines += 1
            self._seen.add(place)
            if self.lines == self._at:
                self.killed = f"{place[0]}:{place[1]}"
                self._work = None
                sys.settrace(None)
                self.cluster.kill(self.victim)
                self.cluster.start_later(self.victim)
                raise Killed
        return self._trace


def deed(call: Call) -> str:
    """What a call does, to a document of which round: `put claim 2`. `mean`: the pointer to a part of the mean."""
    _, what, *rest = call.key.split("/")
    if what == "payload" and (kind := re.search("/(mean)-|-(blocks)$", call.key)):
        what = kind[1] or kind[2]
    return f"{call.verb} {what}" + (f" {int(rest[0])}" if rest and len(rest[0]) == 8 else "")


class CallKiller:
    """Kills a member at one of its calls to the store in a round, and starts it again later. `at`: the number of the
    call, or what it does (`deed`), or `after` and what the call before it did. Listings and beats do not count: beats
    alone would be most of the calls. `victim`: None for the first member that makes the call. `killed`: which call that
    was."""

    def __init__(
        self, cluster: Cluster, witness: ClusterWitness, victim: MemberMachine | None, round: int, at: int | str
    ) -> None:
        self.cluster, self.witness, self.victim, self.round, self.at = cluster, witness, victim, round, at
        self.killed: Call | None = None
        self._calls, self._deeds = 0, dict[str, str]()
        self._serve, cluster.store.before = cluster.store.before, self._before

    def _before(self, call: Call) -> None:
        counts = call.verb != "list" and not call.key.startswith(keys.beats(self.cluster.run))
        suspects = self.cluster.machines if self.victim is None else [self.victim]
        found = [machine for machine in suspects if machine.name == call.reader]
        if found and counts and self.witness.round == self.round and self.killed is None:
            self._calls += 1
            before, self._deeds[call.reader] = self._deeds.get(call.reader), deed(call)
            if self.at in (self._calls, deed(call), f"after {before}"):
                self.killed, self.victim = call, found[0]
                self.cluster.kill(self.victim)
                self.cluster.start_later(self.victim)
        self._serve(call)
