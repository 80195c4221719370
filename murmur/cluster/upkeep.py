"""A member's upkeep of its cluster's bucket, in a thread of its own: it puts back what was lost, and deletes what no
member needs any more."""

from contextlib import suppress

from murmur.cluster.amendments import KeptAmendments
from murmur.cluster.decide import turns
from murmur.cluster.deletion import delete_payloads
from murmur.cluster.ledger import Ledger
from murmur.cluster.pace import rounds_in
from murmur.cluster.presence import GONE_SILENCES
from murmur.cluster.repair import Repair
from murmur.cluster.view import ClusterView
from murmur.node.state.node_state import NodeState
from murmur.protocol.errors import StorageError

MOST_CLEARED = 1024
"""Beats that are deleted in one turn."""


class Upkeep:
    """One member's upkeep of the shared bucket."""

    def __init__(
        self, state: NodeState, ledger: Ledger, view: ClusterView, repair: Repair, amendments: KeptAmendments
    ) -> None:
        self._state, self._ledger, self._view = state, ledger, view
        self._repair, self._amendments = repair, amendments
        self._ended = False
        self._cleared = -1
        """The last round in which we checked for old objects."""

    def start(self) -> None:
        """Start the upkeep; it runs until `end`."""
        self._ledger.time.start(self._go_on, "upkeep")

    def end(self) -> None:
        self._ended = True

    def _go_on(self) -> None:
        while not self._ended:
            with suppress(StorageError, OSError):  # the store's users report that it is down; a file may go meanwhile
                self._repair.answer(self._view.value.presence.running())
                self._clear()
            self._ledger.time.sleep(self._view.rules.silent_seconds)

    def _clear(self) -> None:
        """Once a round restore amendments, and delete old objects. The member drawn for the round deletes; if it does
        not, the next round's member does."""
        saved, ledger = self._state.saved, self._ledger
        if saved.round <= self._cleared:
            return
        view, rules = self._view, self._view.rules
        presence = view.value.presence
        if turns(saved.link, "clear", {*presence.running(), ledger.me})[0] == ledger.me:
            delete_payloads(ledger, saved.round - rules.keep_rounds)
            pace = view.pace
            away = rounds_in(GONE_SILENCES * rules.silent_seconds, pace.records, pace.steps)
            for member in presence.departed(saved.round - away)[:MOST_CLEARED]:
                ledger.clear(member)
        self._amendments.restore()  # all of us do: those that have not applied the last record wait for it
        self._cleared = saved.round
