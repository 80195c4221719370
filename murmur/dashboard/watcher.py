"""A network read from outside for the page, without a key: its own thread reads chain and public objects
(node/observe/history.py). Its memory is bounded in rounds and bytes whatever strangers publish, and nothing is written
to disk."""

import json
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from queue import Empty, Full, Queue
from typing import Any

from dashboard.evaluations import Evaluations, in_home
from dashboard.rounds import Rounds
from dashboard.source import PORTION_BYTES, Stage
from murmur.network import Opened
from node.observe.history import HISTORY_ROUNDS, History, HistoryEvent
from protocol.errors import MurmurError
from protocol.spec import RunSpec
from protocol.types import hotkey

RETRY_SECONDS = 5.0
SHORTEST_LOOK_SECONDS = 1.0
QUEUED = 64
"""Events that are read ahead; the largest, a report of 256 hotkeys, has 150 kB."""
ROWS_BYTES = 64 << 20
"""Bytes of compressed reports' rows that are kept for requests of details; the rounds that were read first are dropped
first."""
NOT_KEPT = "NOT_KEPT"


class Network:
    """Source of the page over the network that `open` opens. `where` describes its location."""

    def __init__(self, where: str, open: Callable[[], Opened]) -> None:
        self.rounds = Rounds()
        self.names: Mapping[str, str] = {}
        self._where, self._open = where, open
        self._there: Opened | None = None
        self._history: History | None = None
        self._evaluations: Evaluations | None = None
        self._told: Queue[HistoryEvent] = Queue(QUEUED)
        self._rows: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._rows_bytes = 0
        self._trouble: str | None = None
        self._head = -1
        self._grew = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="network reader", daemon=True)

    def open(self) -> None:
        """Find the run, once, synchronously. Raises ConfigError for faults that the operator has to fix, and other
        errors; following the network tries again."""
        there = self._open()
        self.names = {hotkey(peer): name for peer, name in there.names.items()}
        if not there.recorded:
            self._evaluations = Evaluations(in_home(there.home, there.run.id))
        self._there, self._history = there, History(there.run, there.doors)

    def follow(self) -> "Network":
        """Keep up with it until `close`."""
        self._thread.start()
        return self

    def close(self) -> None:
        self._ending.set()

    # --- what the page asks ------------------------------------------------------------------------------------

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        while max_bytes > 0:
            try:
                node, event = self._told.get_nowait()
            except Empty:
                break
            self.rounds.take(node, event)
            if event["event"] == "reported":
                max_bytes -= self._keep(event["round"], node, event["peers"])
        if self._evaluations is not None:
            self._evaluations.read(self.rounds)
        self.rounds.keep(HISTORY_ROUNDS)
        return not self._told.empty()

    @property
    def spec(self) -> RunSpec | None:
        if self._history is None:
            return None
        newest = self.rounds.newest(1)
        return self._history.run.spec_at(newest[0].number if newest else 0)

    def stage(self) -> Stage:
        trouble = self._trouble
        if (
            trouble is None
            and self._thread.ident is not None
            and not (self._thread.is_alive() or self._ending.is_set())
        ):
            trouble = (
                "The page stopped reading the network, by a fault of its own: see the terminal. Start the page again."
            )
        return Stage(self._waits_for(), False, time.monotonic() - self._grew, trouble)

    def detail(self, number: int) -> dict[str, Any] | None:
        one = self.rounds.get(number)
        if one is None:
            return None
        peers: dict[str, dict[str, Any]] = {}
        unread = dict(one.unread)
        for validator in one.pay:
            packed = self._rows.get((number, validator))
            if packed is None:
                unread[validator] = NOT_KEPT
                continue
            for peer, row in json.loads(zlib.decompress(packed)).items():
                peers.setdefault(peer, {})[validator] = row
        return {"round": number, "peers": peers, "unread": unread, "phases": {}, "deadline": None}

    def _keep(self, round: int, validator: str, rows: Mapping[str, Any]) -> int:
        """Keep a report's rows for later requests; return their bytes."""
        text = json.dumps(rows).encode()
        packed = zlib.compress(text, 1)
        self._rows_bytes += len(packed) - len(self._rows.pop((round, validator), b""))
        self._rows[round, validator] = packed
        while self._rows_bytes > ROWS_BYTES:
            self._rows_bytes -= len(self._rows.popitem(last=False)[1])
        return len(text)

    def _waits_for(self) -> str | None:
        history = self._history
        if history is None:
            return f"Looking for the run at {self._where}."
        if history.head is None:
            return f"Asking the chain at {self._where}."
        clock = history.run.clock
        if history.head.block < clock.start(0):
            blocks = clock.start(0) - history.head.block
            minutes = blocks * history.run.first.clock.block_seconds / 60
            return f"The run begins in block {clock.start(0)}, in {blocks} blocks: about {minutes:.0f} minutes."
        return None if len(self.rounds) or history.head.block >= clock.words_by(0) else "Round 0 is being played."

    # --- the thread --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ending.wait(self._look()):
            pass
        if self._there is not None:
            close = getattr(self._there.doors.chain, "close", None)
            if close is not None:
                close()

    def _look(self) -> float:
        """Read new events; return the seconds until the next look."""
        try:
            if self._history is None:
                self.open()
            assert self._history is not None
            for told in self._history.look():
                self._put(told)
                self._seen(self._history)
            self._seen(self._history)
        except MurmurError as fault:
            self._trouble = f"{fault}. The page shows older data and tries again every {RETRY_SECONDS:.0f} s."
            return RETRY_SECONDS
        self._trouble = None
        if self._history.more:
            return 0.0
        return max(SHORTEST_LOOK_SECONDS, self._history.run.first.clock.block_seconds)

    def _seen(self, history: History) -> None:
        if history.head is not None and history.head.block > self._head:
            self._head, self._grew = history.head.block, time.monotonic()

    def _put(self, told: HistoryEvent) -> None:
        while not self._ending.is_set():
            try:
                return self._told.put(told, timeout=1.0)
            except Full:
                continue
