"""kill -9 of one simulated member at any line of what it does."""

import sys
from types import FrameType
from typing import Any

from simulation.clock import Killed
from simulation.cluster import Cluster, Machine

FILES = (
    "rounds/member.py",
    "rounds/recovery.py",
    "rounds/contribution.py",
    "node/state/node_state.py",
    "node/state/inner_state.py",
    "node/state/redo_log.py",
    "node/cluster/ledger.py",
    "node/state/store.py",
    "node/state/saved.py",
    "node/cluster/record_log.py",
)


class LineKiller:
    """Counts the lines that a member's main thread runs in these files once it is armed, and kills it at one of them.
    `killed`: where that was. `once`: whether each line counts only the first time."""

    def __init__(self, cluster: Cluster, victim: Machine, once: bool = False) -> None:
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
