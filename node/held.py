"""What a node holds: its model at the start of one round, what a miner has sealed, and the files and the row that make
them last. Knows nothing of the chain: who decides what is applied is not its business (node/follower.py).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from shutil import rmtree

from loguru import logger

from gauntlet.agreement import Agreed, Claim
from node.events import Events, Timeline
from node.own import OwnState
from node.payloads import Opened
from node.state import Saved, StateStore
from protocol import keys
from protocol.errors import CheckpointCorrupt
from protocol.messages import ENVELOPE_BYTES, parse_envelope
from protocol.ports import Time
from protocol.spec import RunSpec
from protocol.types import Digest, PeerId
from sparseloco import ops
from sparseloco.update import Update
from storage.exchange import cached
from storage.realtime import REAL
from storage.seal import unseal
from training import checkpoint
from training.replica import Replica
from training.shards import Fetch

_PARTS = {
    "theta": "the model; catching up",
    "own": "error feedback and optimizer state, which begin anew",
    "sealed": "what was sealed last, which is lost",
    "book": "all ratings, which begin anew",
}
"""The parts of a saved state, and what becomes of one that is damaged."""


class Held:
    """The state of one node. Not thread-safe. `first`: the run's first spec. `saved` is None on a fresh folder, until
    `begin` or `resume`."""

    saved: Saved

    def __init__(
        self, first: RunSpec, run: Digest, replica: Replica, store: StateStore, events: Events, time: Time = REAL
    ) -> None:
        self.first, self.run_id = first, run
        self.replica, self.store, self.events = replica, store, events
        self.timeline = Timeline(time)
        """What the time since the last applied round went into."""
        self.own = OwnState(store.own, replica, time)
        self._kept: Saved | None = None
        """What is left of a state whose theta is damaged."""
        self.cache = store.folder / "cache"
        """Sealed objects of the round that is next to be applied, emptied with it."""

    def resume(self) -> bool:
        """Load the saved state into the replica. False when theta has to come from others: on a fresh folder, or where
        the disk has changed it. Whatever is damaged is set aside, and the rest is kept."""
        found = self.store.load()
        if found is None:
            return False
        lost: list[str] = []
        saved = self._without_damage(found, lost)
        if not self._is_whole("theta", lambda: self.load_consensus(saved.consensus), lost):
            self.events.emit("damaged", saved.round, lost=lost)
            sealed = saved.sealed if saved.sealed is not None and saved.sealed.round >= saved.round else None
            self._kept = replace(saved, sealed=sealed)  # what was sealed for a decided round is dealt with
            return False
        self.saved = saved
        if lost:
            self.events.emit("damaged", saved.round, lost=lost)
            self.store.commit(saved)
        logger.info("resuming at the start of round {round}", round=saved.round)
        return True

    def _without_damage(self, saved: Saved, lost: list[str]) -> Saved:
        """The state without those of our own parts that cannot be read any more; loads what a miner carries over."""
        sealed, book = saved.sealed, saved.book
        if not self._is_whole("own", self.own.load, lost):
            self.own.forget()
        if sealed is not None and not self._is_whole("sealed", lambda: self.store.read(sealed.object), lost):
            saved = replace(saved, sealed=None)
        if book is not None and not self._is_whole("book", lambda: self.store.read(book), lost):
            saved = replace(saved, book=None, scored=-1)
        return saved

    def _is_whole(self, part: str, load: Callable[[], object], lost: list[str]) -> bool:
        """Whether a part can be loaded; else it is set aside and told."""
        try:
            load()
        except CheckpointCorrupt as fault:
            logger.warning("damaged on this disk: {what} ({fault})", what=_PARTS[part], fault=str(fault))
            self.store.set_aside_damaged()
            lost.append(part)
            return False
        return True

    def begin(self, consensus: Digest, link: Digest, fetch: Fetch | None = None) -> None:
        """Stand at the start of round 0, with theta_0 from disk or through `fetch`, and what `resume` could keep."""
        self.load_consensus(consensus, fetch)
        start = Saved(0, consensus, link)
        self.saved = start if self._kept is None else replace(self._kept, round=0, consensus=consensus, link=link)
        self.store.commit(self.saved)

    @property
    def claim(self) -> Claim:
        """What we say of the start of this round: our theta, and the link to the last agreed record."""
        return self.replica.digest(), self.saved.link

    # --- rounds ----------------------------------------------------------------------------------------------

    def apply(self, round: int, spec: RunSpec, decision: Agreed, opened: list[Opened]) -> None:
        """The outer step (or, in a void round, giving our own update back to the error feedback), then save. `spec`: in
        force in `round`."""
        mine = self.own_update(round) if decision.selection is None else None
        if decision.selection is not None:
            self.replica.outer_step(
                [submission.update for submission in opened], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate
            )
        elif mine is not None:
            self.give_back(mine)
        consensus = self.save_consensus() if decision.selection is not None else self.saved.consensus
        self.save(round=round + 1, consensus=consensus, link=decision.link)
        if mine is not None:
            self.save_own()

    def give_back(self, mine: Update) -> None:
        """Our own update of a void round goes back into the error feedback."""
        self.own.hold()
        self.replica.give_back(mine)

    def own_update(self, round: int) -> Update | None:
        """What we sealed in `round`, opened again from the saved bytes."""
        sealed = self.saved.sealed
        if sealed is None or sealed.round != round:
            return None
        data = self.store.read(sealed.object)
        plaintext = unseal(parse_envelope(data[:ENVELOPE_BYTES]), sealed.key, data[ENVELOPE_BYTES:])
        return ops.parse(plaintext, self.first.layout)

    def lay_out_own(self, me: PeerId, round: int) -> None:
        """Put our own submission into the cache: it need not be fetched."""
        sealed = self.saved.sealed
        if sealed is not None and sealed.round == round:
            with suppress(OSError):  # it is there already, or this disk knows no links: then it is fetched
                self.cache.mkdir(exist_ok=True)
                os.link(self.store.path(sealed.object), cached(self.cache, me, keys.payload(self.run_id, round)))

    def clear_cache(self) -> None:
        rmtree(self.cache, ignore_errors=True)

    # --- disk ------------------------------------------------------------------------------------------------

    def save(self, **changes: object) -> None:
        """Commit a new saved state: the node's only commit point."""
        self.saved = replace(self.saved, **changes)  # type: ignore[arg-type]
        self.store.commit(self.saved)

    def save_consensus(self) -> Digest:
        """Write theta and the outer state to disk; not part of the state until a commit names it."""
        return checkpoint.save(self.store.files, self.replica.consensus_state())

    def load_consensus(self, digest: Digest, fetch: Fetch | None = None) -> None:
        """Take theta and the outer state from disk, or through `fetch`: also what the disk has damaged since it was
        fetched, which no saved state names yet."""
        shapes = self.first.model.shapes()
        try:
            found = checkpoint.load(self.store.files, digest, shapes, fetch=fetch)
        except checkpoint.Damaged:
            if fetch is None:
                raise
            self.store.set_aside_damaged()
            found = checkpoint.load(self.store.files, digest, shapes, fetch=fetch)
        self.replica.load_consensus(found)

    def save_own(self) -> None:
        """Copy the optimizer's state off the accelerator, and begin to write what a miner carries over."""
        with self.timeline.begin("swap"):
            self.own.save()
