"""A network read from outside for the page, without a key: chain and public objects (murmur/node/observe/history.py).
Its memory is bounded in rounds and bytes whatever strangers publish, and nothing is written to disk."""

import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from murmur.node.chain.head_watch import HeadWatch
from murmur.node.observe.history import HISTORY_ROUNDS, History, HistoryEvent
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.telemetry.trouble import Trouble
from murmur.page.evaluations import Evaluations, in_home
from murmur.page.live.follower import SHORTEST_LOOK_SECONDS, Follower
from murmur.page.source import PORTION_BYTES
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import hotkey

ROWS_BYTES = 64 << 20
"""Bytes of compressed reports' rows that are kept for requests of details; the rounds that were read first are dropped
first."""
NOT_KEPT = "NOT_KEPT"


class Network(Follower):
    """Source of the page over the network that `open` opens. `where` describes its location."""

    what = "network"
    rounds_kept = HISTORY_ROUNDS

    def __init__(self, where: str, open: Callable[[], OpenedNetwork]) -> None:
        super().__init__()
        self._where, self._open = where, open
        self._there: OpenedNetwork | None = None
        self._history: History | None = None
        self._evaluations: Evaluations | None = None
        self._rows: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._rows_bytes = 0
        self._head = -1
        self._watch: HeadWatch | None = None
        self._wrong: Trouble | None = None
        """What is wrong with the chain's head."""

    def open(self) -> None:
        """See Follower."""
        there = self._open()
        self.names = {hotkey(peer): name for peer, name in there.names.items()}
        if not there.recorded:
            self._evaluations = Evaluations(in_home(there.home, there.run.id))
        self._there, self._history = there, History(there.run, there.ports)

    # --- what the page asks ------------------------------------------------------------------------------------

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        if self._evaluations is not None:
            self._evaluations.read(self.rounds)
        return super().read(max_bytes)

    @property
    def spec(self) -> RunSpec | None:
        if self._history is None:
            return None
        newest = self.rounds.newest(1)
        return self._history.run.spec_at(newest[0].number if newest else 0)

    def cluster(self) -> None:
        return None

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

    def taken(self, node: str, event: Mapping[str, Any]) -> int:
        return self._keep(event["round"], node, event["peers"]) if event["event"] == "reported" else 0

    def _keep(self, round: int, validator: str, rows: Mapping[str, Any]) -> int:
        """Keep a report's rows for later requests; return their bytes."""
        text = json.dumps(rows).encode()
        packed = zlib.compress(text, 1)
        self._rows_bytes += len(packed) - len(self._rows.pop((round, validator), b""))
        self._rows[round, validator] = packed
        while self._rows_bytes > ROWS_BYTES:
            self._rows_bytes -= len(self._rows.popitem(last=False)[1])
        return len(text)

    def waits_for(self) -> str | None:
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
        return None if len(self.rounds) or history.head.block >= clock.vote_deadline(0) else "Round 0 is being played."

    # --- the thread --------------------------------------------------------------------------------------------

    def look(self) -> Iterator[HistoryEvent]:
        if self._history is None:
            self.open()
        assert self._history is not None
        for told in self._history.look():
            yield told
            self._seen(self._history)
        self._seen(self._history)

    def pause(self) -> float:
        assert self._history is not None
        if self._history.more:
            return 0.0
        return max(SHORTEST_LOOK_SECONDS, self._history.run.first.clock.block_seconds)

    def let_go(self) -> None:
        close = getattr(self._there.ports.chain, "close", None) if self._there is not None else None
        if close is not None:
            close()

    def _seen(self, history: History) -> None:
        if history.head is None:
            return
        if self._watch is None:
            self._watch = HeadWatch(history.run.first.clock.block_seconds, history.ports.time, history.ports.store_time)
        there = self._there
        self._wrong = self._watch.look(history.head) if there is not None and not there.recorded else None
        if history.head.block > self._head:
            self._head = history.head.block
            self.grew()

    def troubles(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        return (("the chain", self._wrong.fields()),) if self._wrong is not None else ()
