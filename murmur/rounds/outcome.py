"""A miner's result in a round: whether it contributed, or why not and by which number. It is logged when the
validators' reports are in. It is for people: no decision uses it, and unreadable values are left out."""

from collections.abc import Sequence

from loguru import logger

from gauntlet.account import briefly, sureness
from gauntlet.agreement import mirrors
from gauntlet.commitment import who_committed
from gauntlet.report import Report
from gauntlet.weights import due_from
from murmur.node.fetch.reports import Reports
from murmur.node.node import Applied, Node
from murmur.node.telemetry import round_line
from murmur.protocol.errors import ChainError, StorageError
from murmur.protocol.types import Peer, PeerId

ASKED = 5
"""Validators whose reports are read, those with the most stake."""
MOST_UNTOLD = 5


class Outcomes:
    """Facts of one miner's last rounds until their results are logged."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.losses: dict[int, float | None] = {}
        """Training loss of our rounds, nats a token."""
        self.margins: dict[int, int] = {}
        """Blocks from our commitment to the deadline."""
        self.decided: dict[int, tuple[PeerId, ...]] = {}
        """Contributors of rounds that are not logged yet; none for a void one."""

    def follow(self, applied: Sequence[Applied]) -> None:
        """Note the contributors of decided rounds."""
        for one in applied:
            selection = one.agreed.selection
            self.decided[one.round] = tuple(peer for peer, _ in selection.contributing) if selection else ()
        for old in sorted(self.decided)[:-MOST_UNTOLD]:
            self._forget(old)

    def tell(self, seconds: float) -> None:
        """Log every decided round that is not logged yet, within about `seconds`."""
        decided, self.decided = self.decided, {}  # `follow` runs concurrently
        for round, contributed in sorted(decided.items()):
            try:
                self._tell(round, contributed, seconds / len(decided))
            except (ChainError, StorageError) as fault:
                logger.debug(
                    "round {round}: cannot find out how our work was judged: {fault}", round=round, fault=str(fault)
                )
            self._forget(round)

    def _forget(self, round: int) -> None:
        for facts in (self.decided, self.losses, self.margins):
            facts.pop(round, None)

    def _tell(self, round: int, contributed: Sequence[PeerId], seconds: float) -> None:
        node, run = self.node, self.node.run
        last, head = node.clock.commit_deadline(round), node.head()
        at_commit, peers = node.ports.chain.peers(last), node.ports.chain.peers(head)
        active = who_committed(at_commit, round, last)
        asked = mirrors(run, head, peers)[:ASKED]
        found = Reports(run, node.ports, node.sources(head)).of(round, asked, seconds)
        found = {one: report for one, report in found.items() if node.me in report.rows}
        outcome, why = self._outcome(round, active, contributed, found)
        spec = run.spec_at(round).gauntlet
        by_id = {peer.id: peer for peer in peers}
        first = next(iter(found), None)
        event = {
            "outcome": outcome,
            "why": why,
            "selected": len(contributed),
            "active": len(active),
            "loss": self.losses.get(round),
            "pay": _share(node.me, found, by_id),
            "sure": sureness(found[first].after.peers.get(node.me), spec) if first is not None else None,
            "next_set": due_from(run, round + 1, by_id[first].last_update) if first is not None else None,
            "margin": self.margins.get(round),
        }
        node.state.events.emit("round_outcome", round, **event)
        logger.info("{line}", line=round_line.line({"event": "round_outcome", "round": round, **event}))

    def _outcome(
        self, round: int, active: set[PeerId], contributed: Sequence[PeerId], found: dict[PeerId, Report]
    ) -> tuple[str, str]:
        """Return our result and the number that decided it, by the report of the validator with the most stake."""
        me = self.node.me
        if me in contributed:
            return "contributing", ""
        if me not in active:
            return "absent", "nothing of ours was on chain at the deadline"
        row, report = next(((report.rows[me], report) for report in found.values()), (None, None))
        if row is None or report is None:
            return "not contributing", "no validator has reported why yet"
        code = row.rejected or row.standing
        if code is None:
            return "not contributing", "others were selected" if contributed else ""
        return str(code), briefly(me, report, self.node.run.spec_at(round).gauntlet)


def _share(me: PeerId, found: dict[PeerId, Report], peers: dict[PeerId, Peer]) -> float | None:
    """Return our share of the pay that validators have computed, weighted by their stake; None without a report."""
    stakes = {one: peers[one].stake for one in found}
    total = sum(stakes.values())
    if not total:
        return None
    return sum(stakes[one] * report.rows[me].weight for one, report in found.items()) / total
