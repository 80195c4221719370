"""A node's state: its model at the start of one round, a miner's sealed work, and the files and the database row that
persist them. It does not know the chain (murmur/node/chain/follower.py): its caller decides which updates are
applied."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from loguru import logger

from gauntlet.agreement import Agreed, Tip
from murmur.data.shards import Fetch
from murmur.node.fetch.opening import Opened, open_threads
from murmur.node.state.inner_state import InnerState
from murmur.node.state.redo_log import Lost, RedoLog
from murmur.node.state.saved import Consensus, Saved, SealedRound, Snapshot, Step
from murmur.node.state.snapshots import Snapshots
from murmur.node.state.store import StateStore
from murmur.node.telemetry.events import Events, Timeline
from murmur.protocol import keys
from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.messages import ENVELOPE_BYTES, parse_envelope
from murmur.protocol.ports import Time
from murmur.protocol.spec import OuterSpec, TrainingSpec
from murmur.protocol.types import Digest, PeerId, StateRef
from murmur.training import checkpoint
from murmur.training.replica import Replica
from sparseloco import ops
from sparseloco.update import Update
from storage.exchange import cached
from storage.realtime import REAL
from storage.seal import unseal

_PARTS = {
    "theta": "the model; the node catches up",
    "log": "payloads applied to the model; the node fetches those rounds again",
    "own": "error feedback and optimizer state, which start from zero",
    "sealed": "the last sealed submission, which is lost",
    "book": "all ratings, which start afresh",
}
"""The parts of a saved state, and the result of damage to each."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A selection that is not agreed yet, applied to the model in memory: it is neither saved nor published. `opened`
    lacks the updates, since they are applied."""

    round: int
    contributing: tuple[tuple[PeerId, Digest], ...]
    outer: OuterSpec
    opened: tuple[Opened, ...]


LOG_INTERVALS = 2
"""After this many intervals of checkpoints without a snapshot the next write is awaited, so that the redo log does not
fill the disk."""


class NodeState:
    """The state of one node. Not thread-safe. `first`: the run's first spec. `saved` is unset on a fresh folder, until
    `begin` or `resume`."""

    saved: Saved
    consensus: Consensus
    """The snapshot and log that the replica's theta follows from: the saved ones, except during a catch-up."""

    def __init__(
        self, first: TrainingSpec, run: Digest, replica: Replica, store: StateStore, events: Events, time: Time = REAL
    ) -> None:
        self.first, self.run_id = first, run
        self.replica, self.store, self.events, self._time = replica, store, events, time
        self.timeline = Timeline(time)
        """How the time since the last applied round was spent."""
        self.own = InnerState(store.own, replica, time)
        self.snapshots = Snapshots(store.snapshot, store.folder / "writing", time)
        self.redo = RedoLog(store.log, run, first.layout, first.trace.num_bytes)
        self.expected: Expected | None = None
        """The expected selection in theta in memory, on top of the saved state."""
        self._kept: Saved | None = None
        """The rest of a state whose theta is damaged."""
        self.cache = store.folder / "cache"
        """Sealed objects and keys of the round to be applied next; emptied with it."""

    @property
    def round(self) -> int:
        """The round at whose start we stand; 0 on a fresh folder, where `saved` is unset."""
        return self.saved.round if hasattr(self, "saved") else 0

    def resume(self) -> bool:
        """Load the saved state into the replica. False if theta has to come from other nodes: on a fresh folder, or if
        the disk has damaged it. Damaged parts are set aside, and the rest is kept."""
        found = self.store.load()
        if found is None:
            return False
        lost: list[str] = []
        self.saved = self._without_damage(found, lost)
        if not self._is_whole("theta", lambda: self.restore(lost), lost):
            self.events.emit("damaged", found.round, lost=lost)
            # A sealed object of a decided round is no longer needed.
            self._kept = replace(self.saved, sealed=self._sealed_from(self.saved.round))
            return False
        if lost:
            self.events.emit("damaged", found.round, lost=lost)
            self.store.commit(self.saved)
        logger.info("resuming at the start of round {round}", round=self.saved.round)
        self._settle()
        self.begin_snapshot()
        return True

    def _settle(self) -> None:
        """Make the error feedback from the disk match the saved row. It is written in a thread of its own, so it may be
        from before the last sealed update. Then that update is taken out of it, and the rest of that round's training
        is lost. If the row says that the update was returned, it is given back, once."""
        sealed = self.saved.sealed
        mine = self.own_update(sealed.round) if sealed is not None else None
        if sealed is None or mine is None:
            return
        if self.own.sealed != sealed.object.hex():
            self.replica.remove_from_error_feedback(mine)
            self.own.sealed, self.own.returned = sealed.object.hex(), False
        if sealed.returned and not self.own.returned:
            self.restore_to_error_feedback(mine)

    def restore(self, lost: list[str] | None = None) -> None:
        """Restore the saved state: load the snapshot and replay the log. If a payload of the log is lost, the state
        falls back to the start of its round, which is then followed again. Raises CheckpointCorrupt, with no usable
        state in place, if the snapshot is damaged or the replay gives another theta than the saved one."""
        saved = self.saved
        theta = saved.theta
        try:
            self._replay(saved.consensus.snapshot, saved.consensus.log)
        except Lost as fault:
            logger.warning("damaged on this disk: {what} ({fault})", what=_PARTS["log"], fault=str(fault))
            if fault.path.exists():
                self.store.set_aside(fault.path)
            if lost is not None:
                lost.append("log")
            step = saved.consensus.log[len(self.consensus.log)]
            theta, sealed = step.theta, self._sealed_from(saved.round)
            saved = replace(
                saved, round=step.round, consensus=self.consensus, theta=theta, link=self.consensus.link, sealed=sealed
            )
        if self.replica.digest() != theta:
            raise CheckpointCorrupt("the saved snapshot and payloads do not give the theta that was saved")
        self.saved = saved

    def step_back(self, link: Digest) -> None:
        """Restore the state at this link, one of `saved.consensus.links`; saved only by `commit_at_tip`. Raises Lost,
        with no usable state in place."""
        kept = self.saved.consensus
        self._replay(kept.snapshot, kept.log[: kept.links.index(link)])

    def _replay(self, snapshot: Snapshot, log: Sequence[Step]) -> None:
        """Load the snapshot and replay these steps; `consensus` says how far that came. Raises Lost, or
        CheckpointCorrupt if the snapshot is damaged."""
        self.load_consensus(snapshot)
        if log:
            logger.info(
                "replaying {count} rounds since the snapshot of theta at the start of round {round}",
                count=len(log),
                round=snapshot.round,
            )
        began = self._time.now()
        for done, step in enumerate(log, 1):
            updates = self.redo.updates(step, open_threads(self.first), self._time)
            self.replica.outer_step(updates, alpha=step.alpha, aggregate=step.aggregate)
            self.consensus = replace(self.consensus, log=(*self.consensus.log, step))
            logger.info(
                "replayed round {round}, about {left} s left",
                round=step.round,
                left=int((self._time.now() - began) / done * (len(log) - done)),
            )

    def _sealed_from(self, round: int) -> SealedRound | None:
        """Return the sealed object, unless it is of a round before this one."""
        sealed = self.saved.sealed
        return sealed if sealed is not None and sealed.round >= round else None

    def _without_damage(self, saved: Saved, lost: list[str]) -> Saved:
        """Return the state without its own parts that cannot be read any more; loads the inner state."""
        sealed, book = saved.sealed, saved.book
        if not self._is_whole("own", self.own.load, lost):
            self.own.forget()
        if sealed is not None and not self._is_whole("sealed", lambda: self.store.read(sealed.object), lost):
            saved = replace(saved, sealed=None)
        if book is not None and not self._is_whole("book", lambda: self.store.read(book), lost):
            saved = replace(saved, book=None, scored=-1)
        return saved

    def _is_whole(self, part: str, load: Callable[[], object], lost: list[str]) -> bool:
        """Whether a part can be loaded; otherwise it is set aside, and a warning logged."""
        try:
            load()
        except CheckpointCorrupt as fault:
            logger.warning("damaged on this disk: {what} ({fault})", what=_PARTS[part], fault=str(fault))
            self.store.set_aside_damaged()
            lost.append(part)
            return False
        return True

    def begin(self) -> None:
        """Start at the loaded snapshot (theta_0, or a checkpoint), with the parts that `resume` could keep."""
        theta, round, link = self.replica.digest(), self.consensus.snapshot.round, self.consensus.snapshot.link
        self.saved = (
            Saved(round, self.consensus, theta, link)
            if self._kept is None
            else replace(self._kept, round=round, consensus=self.consensus, theta=theta, link=link, tip=None)
        )
        self.store.commit(self.saved)
        self._settle()

    @property
    def ref(self) -> StateRef:
        """Our state as votes and claims name it."""
        return StateRef(self.saved.theta, self.saved.link)

    # --- rounds ----------------------------------------------------------------------------------------------

    def expect(
        self, round: int, outer: OuterSpec, contributing: tuple[tuple[PeerId, Digest], ...], opened: Sequence[Opened]
    ) -> None:
        """Make the outer step of a round whose selection is not known yet, in memory only; none for a round that will
        be void. `apply` keeps it if this was the selection; `undo_outer_step` undoes it."""
        if contributing:
            self.replica.outer_step([each.update for each in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        self.expected = Expected(round, contributing, outer, tuple(replace(each, update=None) for each in opened))

    def undo_outer_step(self) -> None:
        """Undo the expected selection: return to the saved state."""
        expected, self.expected = self.expected, None
        if expected is None:
            return
        self.replica.displace()
        if expected.contributing:
            self.replica.undo_outer_step()

    def expected_by(self, round: int, spec: TrainingSpec, decision: Agreed) -> list[Opened] | None:
        """Return the applied payloads, if we expected exactly this decision of the round; else None."""
        found, selection = self.expected, decision.selection
        if found is None:
            return None
        contributing = selection.contributing if selection is not None else ()
        if (found.round, found.outer, found.contributing) != (round, spec.outer, contributing):
            return None
        return list(found.opened)

    def apply(
        self, round: int, spec: TrainingSpec, decision: Agreed, opened: list[Opened], mine: Update | None = None
    ) -> None:
        """Make the outer step, unless it was expected and made, then save: our state is the run's again. Our own update
        goes back into the error feedback in a void round, or if `mine` is given. `spec`: in force in `round`. `mine`:
        our own update, if the round has an outer step without it."""
        if self.expected_by(round, spec, decision) is None:
            self.undo_outer_step()
        if decision.selection is not None and decision.link is not None:
            self.step(round, spec.outer, self.saved.theta, decision.link, opened)
            self.commit_at_tip(decision.link, Tip(round + 1, decision.link), **self._returned(mine))
            if mine is not None:
                self.restore_to_error_feedback(mine)
            return
        self.expected = None
        self.clear_cache()
        mine = self.own_update(round)
        tip = self.saved.tip
        named = decision.state_ref.theta if decision.state_ref is not None else tip.theta if tip is not None else None
        self.save(round=round + 1, tip=Tip(round + 1, self.saved.link, named), **self._returned(mine))
        if mine is not None:
            self.restore_to_error_feedback(mine)
            self.save_own()

    def _returned(self, mine: Update | None) -> dict[str, SealedRound]:
        """Return the row's change that marks our update as returned. It is saved first: a process may be killed before
        the update is in the error feedback, or the error feedback on the disk."""
        sealed = self.saved.sealed
        return {"sealed": replace(sealed, returned=True)} if mine is not None and sealed is not None else {}

    def step(self, round: int, outer: OuterSpec, theta: Digest, link: Digest, opened: Sequence[Opened]) -> None:
        """Make the outer step of `round`, unless it was expected and made, from the state with this theta digest. Keep
        its payloads, so that a restart can make it again. link: of the round's selection. Not part of the saved state
        until `commit_at_tip`."""
        self.snapshots.hold(wait=len(self.consensus.log) >= LOG_INTERVALS * self.first.checkpoint_rounds)
        payloads = self.redo.keep(self.cache, round, opened)
        if self.expected is None:
            self.replica.outer_step([each.update for each in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        self.expected = None
        done = Step(round, theta, link, outer.alpha, outer.aggregate, payloads)
        self.consensus = replace(self.consensus, log=(*self.consensus.log, done))

    def commit_at_tip(self, link: Digest, tip: Tip, **changes: object) -> None:
        """Save the replica's theta, which follows from this link, as our state, with these changes. The run is at
        `tip`."""
        if (snapshot := self.snapshots.take()) is not None:
            self.consensus = self.consensus.since(snapshot)
        theta = self.replica.digest()
        self.save(round=tip.round, consensus=self.consensus, theta=theta, link=link, tip=tip, vain_from=None, **changes)
        self.clear_cache()
        self.begin_snapshot()

    def restore_to_error_feedback(self, mine: Update) -> None:
        """Put our own update back into the error feedback. The saved row says so already."""
        self.own.hold()
        self.replica.restore_to_error_feedback(mine)
        self.own.returned = True

    def save_sealed(self, sealed: SealedRound) -> None:
        """Save a sealed object: its update is out of the error feedback in memory."""
        self.save(sealed=sealed)
        self.own.sealed, self.own.returned = sealed.object.hex(), False

    def own_update(self, round: int) -> Update | None:
        """Return the update that we sealed in `round`, opened from the saved bytes; None if there is none. A damaged
        object is set aside, and the next saved state is without it."""
        sealed = self.saved.sealed
        if sealed is None or sealed.round != round:
            return None
        try:
            data = self.store.read(sealed.object)
        except CheckpointCorrupt as fault:
            logger.warning("damaged on this disk: {what} ({fault})", what=_PARTS["sealed"], fault=str(fault))
            self.saved = replace(self.saved, sealed=None)
            with suppress(FileNotFoundError):
                self.store.set_aside(self.store.path(sealed.object))
            self.events.emit("damaged", round, lost=["sealed"])
            return None
        plaintext = unseal(parse_envelope(data[:ENVELOPE_BYTES]), sealed.key, data[ENVELOPE_BYTES:])
        return ops.parse(plaintext, self.first.layout, self.first.trace.num_bytes)

    def link_own_payload(self, me: PeerId, round: int) -> None:
        """Put our own submission into the cache, so that it is not fetched."""
        sealed = self.saved.sealed
        if sealed is not None and sealed.round == round:
            with suppress(OSError):  # it is there already, or this disk has no links: then it is fetched
                self.cache.mkdir(exist_ok=True)
                os.link(self.store.path(sealed.object), cached(self.cache, me, keys.payload(self.run_id, round)))

    def sealed_file(self, round: int, peer: PeerId, envelope: Digest) -> Path | None:
        """Return the file of a peer's sealed object of `round`, if this disk has it (murmur/node/state/redo_log.py).
        Thread-safe."""
        return self.redo.find(self.cache, round, peer, envelope)

    def clear_cache(self) -> None:
        rmtree(self.cache, ignore_errors=True)

    # --- disk ------------------------------------------------------------------------------------------------

    def save(self, **changes: object) -> None:
        """Save a new state: the node's only commit point."""
        self.saved = replace(self.saved, **changes)  # type: ignore[arg-type]
        self.store.commit(self.saved)

    def take_snapshot(self) -> None:
        """Add a snapshot that is complete by now to the saved state. The replaced one is deleted; it is as large as the
        model, so do not call this between compute and commit."""
        if (snapshot := self.snapshots.take()) is not None:
            self.consensus = self.consensus.since(snapshot)
            self.save(consensus=self.consensus)

    def begin_snapshot(self) -> None:
        """Start to write theta in a thread of its own, if the run's interval of checkpoints, in outer steps, is over.
        The run counts the steps, so all nodes write the same states."""
        if self._snapshot_is_due():
            self.snapshots.begin(self.saved.round, self.saved.link, self.replica.consensus_state())

    def write_snapshot(self, round: int, link: Digest) -> None:
        """Write theta during a catch-up, at the start of `round`, if that is due, so that the log of many rounds stays
        short. Raises ConfigError."""
        if self._snapshot_is_due():
            self.snapshots.begin(round, link, self.replica.consensus_state())
            self.snapshots.hold(wait=True)
            if (snapshot := self.snapshots.take()) is not None:
                self.consensus = Consensus(snapshot)
                self.store.sweep(self.saved, replace(self.saved, consensus=self.consensus))
                self.clear_cache()

    def _snapshot_is_due(self) -> bool:
        rounds, every = self.replica.outer.rounds, self.first.checkpoint_rounds
        return rounds // every > (rounds - len(self.consensus.log)) // every

    def load_consensus(self, snapshot: Snapshot, fetch: Fetch | None = None) -> None:
        """Load theta and the outer state from disk, or through `fetch`. With `fetch`, a file that the disk damaged
        after it was fetched is set aside and fetched again: no saved state names it yet."""
        shapes, also = self.first.model.shapes(), self.replica.velocity_shapes()
        self.snapshots.drop()
        try:
            found = checkpoint.load(self.store.snapshot, snapshot.state, shapes, also=also, fetch=fetch)
        except checkpoint.Damaged:
            if fetch is None:
                raise
            self.store.set_aside_damaged()
            found = checkpoint.load(self.store.snapshot, snapshot.state, shapes, also=also, fetch=fetch)
        self.replica.load_consensus(found)
        self.consensus = Consensus(snapshot)

    def save_own(self) -> None:
        """Copy the optimizer's state off the accelerator, and start to write the inner state."""
        self.take_snapshot()
        with self.timeline.begin("swap"):
            self.own.save()
