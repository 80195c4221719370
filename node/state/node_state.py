"""What a node holds: its model at the start of one round, what a miner has sealed, and the files and the row that make
them last. Knows nothing of the chain: who decides what is applied is not its business (node/chain/follower.py).
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from loguru import logger

from gauntlet.agreement import Agreed, Pair, Tip
from node.fetch.opening import Opened, open_threads
from node.state.inner_state import InnerState
from node.state.redo_log import Lost, RedoLog
from node.state.saved import Consensus, Saved, SealedRound, Snapshot, Step
from node.state.snapshots import Snapshots
from node.state.store import StateStore
from node.telemetry.events import Events, Timeline
from protocol import keys
from protocol.errors import CheckpointCorrupt
from protocol.messages import ENVELOPE_BYTES, parse_envelope
from protocol.ports import Time
from protocol.spec import OuterSpec, TrainingSpec
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
    "theta": "the model; the node catches up",
    "log": "payloads applied to the model; the node fetches those rounds again",
    "own": "error feedback and optimizer state, which start from zero",
    "sealed": "the last sealed submission, which is lost",
    "book": "all ratings, which start afresh",
}
"""The parts of a saved state, and what becomes of one that is damaged."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A selection that nobody has agreed on yet, applied to the model in memory: nothing of it is saved, or said to
    anybody. `opened` without their updates: those are applied."""

    round: int
    contributing: tuple[tuple[PeerId, Digest], ...]
    outer: OuterSpec
    opened: tuple[Opened, ...]


LOG_INTERVALS = 2
"""After so many intervals of checkpoints without a snapshot the next one is waited for: a disk is not endless."""


class NodeState:
    """The state of one node. Not thread-safe. `first`: the run's first spec. `saved` is None on a fresh folder, until
    `begin` or `resume`."""

    saved: Saved
    consensus: Consensus
    """What the replica's theta follows from: the saved one, but in the middle of a catch-up."""

    def __init__(
        self, first: TrainingSpec, run: Digest, replica: Replica, store: StateStore, events: Events, time: Time = REAL
    ) -> None:
        self.first, self.run_id = first, run
        self.replica, self.store, self.events, self._time = replica, store, events, time
        self.timeline = Timeline(time)
        """What the time since the last applied round went into."""
        self.own = InnerState(store.own, replica, time)
        self.snapshots = Snapshots(store.snapshot, store.folder / "writing", time)
        self.redo = RedoLog(store.log, run, first.layout)
        self.expected: Expected | None = None
        """What theta in memory follows from beside what is saved."""
        self._kept: Saved | None = None
        """What is left of a state whose theta is damaged."""
        self.cache = store.folder / "cache"
        """Sealed objects and keys of the round that is next to be applied, emptied with it."""

    def resume(self) -> bool:
        """Load the saved state into the replica. False when theta has to come from others: on a fresh folder, or where
        the disk has changed it. Whatever is damaged is set aside, and the rest is kept."""
        found = self.store.load()
        if found is None:
            return False
        lost: list[str] = []
        self.saved = self._without_damage(found, lost)
        if not self._is_whole("theta", lambda: self.restore(lost), lost):
            self.events.emit("damaged", found.round, lost=lost)
            # What was sealed for a decided round is dealt with.
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
        """Bring the error feedback of the disk to where the saved row stands. It is written beside the rounds, so it
        may be of before the update that was sealed last. What was sent is then taken out of it, and the rest of that
        round's training is lost. What belongs back into it goes back, once."""
        sealed = self.saved.sealed
        mine = self.own_update(sealed.round) if sealed is not None else None
        if sealed is None or mine is None:
            return
        if self.own.sealed != sealed.object.hex():
            self.replica.strike(mine)
            self.own.sealed, self.own.returned = sealed.object.hex(), False
        if sealed.returned and not self.own.returned:
            self.give_back(mine)

    def restore(self, lost: list[str] | None = None) -> None:
        """Take the saved state again: load the snapshot and replay the log. Where a payload of that is lost, the state
        stands from now on at the start of its round, which is followed once more. Raises CheckpointCorrupt, with no
        state of use in place, when the snapshot is damaged, or leads elsewhere than it did."""
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
        """Take our state as it was at this link, one of `saved.consensus.links`: not part of what is saved until
        `stand`. Raises Lost, with no state of use in place."""
        kept = self.saved.consensus
        self._replay(kept.snapshot, kept.log[: kept.links.index(link)])

    def _replay(self, snapshot: Snapshot, log: Sequence[Step]) -> None:
        """Load the snapshot and make these steps again; `consensus` says how far that came. Raises Lost, or
        CheckpointCorrupt where the snapshot is damaged."""
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
        """What was sealed, unless that was for a round before this one."""
        sealed = self.saved.sealed
        return sealed if sealed is not None and sealed.round >= round else None

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

    def begin(self) -> None:
        """Stand at the start of round 0 with theta_0, which was loaded, and with what `resume` could keep."""
        theta, link = self.replica.digest(), self.consensus.snapshot.link
        self.saved = (
            Saved(0, self.consensus, theta, link)
            if self._kept is None
            else replace(self._kept, round=0, consensus=self.consensus, theta=theta, link=link, tip=None)
        )
        self.store.commit(self.saved)
        self._settle()

    @property
    def claim(self) -> Pair:
        """The pair that we hold: our theta, and the link to the last selection that it comes from."""
        return self.saved.theta, self.saved.link

    # --- rounds ----------------------------------------------------------------------------------------------

    def expect(
        self, round: int, outer: OuterSpec, contributing: tuple[tuple[PeerId, Digest], ...], opened: Sequence[Opened]
    ) -> None:
        """The outer step of a round whose selection is not known yet, in memory only; none for a round that will be
        void. `apply` keeps it where this was the selection; `take_back` undoes it."""
        if contributing:
            self.replica.outer_step([each.update for each in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        self.expected = Expected(round, contributing, outer, tuple(replace(each, update=None) for each in opened))

    def take_back(self) -> None:
        """Hold what is saved again, where something else was expected."""
        expected, self.expected = self.expected, None
        if expected is None:
            return
        self.replica.displace()
        if expected.contributing:
            self.replica.take_back()

    def expected_by(self, round: int, spec: TrainingSpec, decision: Agreed) -> list[Opened] | None:
        """What was applied already where we expected just this decision of the round, else None."""
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
        """The outer step, unless that is what we expected, then save: we stand where the run stands. Our own update
        goes back into the error feedback in a void round, or where it is given. `spec`: in force in `round`. `mine`:
        our own update, where the round has an outer step without it."""
        if self.expected_by(round, spec, decision) is None:
            self.take_back()
        if decision.selection is not None and decision.link is not None:
            self.step(round, spec.outer, self.saved.theta, decision.link, opened)
            self.stand(decision.link, Tip(round + 1, decision.link), **self._returned(mine))
            if mine is not None:
                self.give_back(mine)
            return
        self.expected = None
        self.clear_cache()
        mine = self.own_update(round)
        tip = self.saved.tip
        named = decision.pair[0] if decision.pair is not None else tip.theta if tip is not None else None
        self.save(round=round + 1, tip=Tip(round + 1, self.saved.link, named), **self._returned(mine))
        if mine is not None:
            self.give_back(mine)
            self.save_own()

    def _returned(self, mine: Update | None) -> dict[str, SealedRound]:
        """What the row says of our update where it goes back: a process may be killed before it is in the error
        feedback, or that on the disk."""
        sealed = self.saved.sealed
        return {"sealed": replace(sealed, returned=True)} if mine is not None and sealed is not None else {}

    def step(self, round: int, outer: OuterSpec, theta: Digest, link: Digest, opened: Sequence[Opened]) -> None:
        """The outer step of `round`, unless it was expected and made, from the state with this theta digest, and what a
        restart needs to make it again. link: of the round's selection. Not part of the state until `stand`."""
        self.snapshots.hold(wait=len(self.consensus.log) >= LOG_INTERVALS * self.first.checkpoint_rounds)
        payloads = self.redo.keep(self.cache, round, opened)
        if self.expected is None:
            self.replica.outer_step([each.update for each in opened], alpha=outer.alpha, aggregate=outer.aggregate)
        self.expected = None
        done = Step(round, theta, link, outer.alpha, outer.aggregate, payloads)
        self.consensus = replace(self.consensus, log=(*self.consensus.log, done))

    def stand(self, link: Digest, tip: Tip, **changes: object) -> None:
        """Save, with these changes: we hold the theta of the replica, which follows from this link, while the run
        stands at `tip`."""
        if (snapshot := self.snapshots.take()) is not None:
            self.consensus = self.consensus.since(snapshot)
        theta = self.replica.digest()
        self.save(round=tip.round, consensus=self.consensus, theta=theta, link=link, tip=tip, vain_from=None, **changes)
        self.clear_cache()
        self.begin_snapshot()

    def give_back(self, mine: Update) -> None:
        """Our own update goes back into the error feedback. The saved row says already that it does."""
        self.own.hold()
        self.replica.give_back(mine)
        self.own.returned = True

    def save_sealed(self, sealed: SealedRound) -> None:
        """Commit what was sealed: its update is out of the error feedback in memory."""
        self.save(sealed=sealed)
        self.own.sealed, self.own.returned = sealed.object.hex(), False

    def own_update(self, round: int) -> Update | None:
        """What we sealed in `round`, opened again from the saved bytes; None where there is nothing. What the disk has
        changed is set aside, and the next state that is saved is without it."""
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
        return ops.parse(plaintext, self.first.layout)

    def lay_out_own(self, me: PeerId, round: int) -> None:
        """Put our own submission into the cache: it need not be fetched."""
        sealed = self.saved.sealed
        if sealed is not None and sealed.round == round:
            with suppress(OSError):  # it is there already, or this disk knows no links: then it is fetched
                self.cache.mkdir(exist_ok=True)
                os.link(self.store.path(sealed.object), cached(self.cache, me, keys.payload(self.run_id, round)))

    def sealed_file(self, round: int, peer: PeerId, envelope: Digest) -> Path | None:
        """The file with what a peer sent in `round`, where this disk has it (node/state/redo_log.py). Thread-safe."""
        return self.redo.find(self.cache, round, peer, envelope)

    def clear_cache(self) -> None:
        rmtree(self.cache, ignore_errors=True)

    # --- disk ------------------------------------------------------------------------------------------------

    def save(self, **changes: object) -> None:
        """Commit a new saved state: the node's only commit point."""
        self.saved = replace(self.saved, **changes)  # type: ignore[arg-type]
        self.store.commit(self.saved)

    def take_snapshot(self) -> None:
        """Make a snapshot that is whole by now part of the state. What it replaces is deleted, as large as the model:
        not for the time between compute and commit."""
        if (snapshot := self.snapshots.take()) is not None:
            self.consensus = self.consensus.since(snapshot)
            self.save(consensus=self.consensus)

    def begin_snapshot(self) -> None:
        """Begin to write theta, beside the rounds, when as many outer steps were made as the run's interval of
        checkpoints. The count is the run's, so all nodes write the same states."""
        if self._snapshot_is_due():
            self.snapshots.begin(self.saved.round, self.saved.link, self.replica.consensus_state())

    def write_snapshot(self, round: int, link: Digest) -> None:
        """In the middle of a catch-up, at the start of `round`: write theta where that is due, so that the log of
        however many rounds stays short. Raises ConfigError."""
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
        """Take theta and the outer state from disk, or through `fetch`: also what the disk has damaged since it was
        fetched, which no saved state names yet."""
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
        """Copy the optimizer's state off the accelerator, and begin to write what a miner carries over."""
        self.take_snapshot()
        with self.timeline.begin("swap"):
            self.own.save()
