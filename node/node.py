"""What a miner and a validator have in common: to follow the chain's decisions and to hold the state that they make.

A node's state always stands at the start of one round. `advance` reads the agreed selection of that round from
finalised chain state, gathers exactly those submissions, applies them and saves: all or nothing, in that order.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from shutil import rmtree

from loguru import logger

from gauntlet.agreement import Agreed, Views, agreed, claimed_start, electorate, leader_order, proposals
from gauntlet.checks import commitment
from node import catchup
from node import run as runs
from node.adapters import Doors
from node.amendments import settled
from node.events import Events, Timeline, round_seconds
from node.payloads import Opened, Sources, gather_pinned, prefetch_pinned
from node.state import Saved, StateStore
from protocol import keys
from protocol.errors import ChainError, CheckpointCorrupt, OutOfSync, StorageError
from protocol.messages import ENVELOPE_BYTES, encode_slot, parse_envelope
from protocol.run import Run
from protocol.types import Attestation, Commitment, Digest, Header, Peer, PeerId, Record, Selection, hotkey
from sparseloco import ops
from sparseloco.update import Update
from storage.exchange import Prefetch, cached
from storage.seal import unseal
from training import checkpoint
from training.replica import Replica
from training.shards import Fetch

QUIET_SECONDS = 2.0
"""Waits that are expected to last longer are announced."""
PATIENCE = 1.25
"""A wait for a block is given up after this many times its planned length plus the chain's time-out: then the chain
stands still, which is told, and the wait goes on."""
STALL_SECONDS = 1.0
"""Pause between two tries to reach a chain that does not answer."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a round: its agreement, and the digest of theta after it."""

    round: int
    agreed: Agreed
    theta: Digest


class Node:
    """One node of a run. Not thread-safe; everything that blocks has a deadline from the round clock."""

    def __init__(self, run: Run, doors: Doors, replica: Replica, store: StateStore, events: Events) -> None:
        self.run, self.doors, self.replica, self.store, self.events = run, doors, replica, store, events
        self.clock = run.clock
        self.me = doors.signer.peer
        self.timeline = Timeline()
        """What the time since the last applied round went into."""
        self.cache = store.folder / "cache"
        """Sealed objects of the round that is next to be applied, emptied with it."""
        self._likely: frozenset[PeerId] = frozenset()
        """Who was selected last."""
        self._prefetch: Prefetch | None = None
        self.before_apply: Callable[[Agreed], None] = lambda decision: None
        """Called with every agreed selection before our state moves past it: what it does survives a crash, because a
        restart comes here again. May raise StorageError or ChainError: then the state stays where it is."""
        self.saved = self._resume()

    # --- time ------------------------------------------------------------------------------------------------

    def head(self) -> int:
        """The finalised head's block number."""
        return self.doors.chain.finalized().block

    def seconds_until(self, block: int) -> float:
        """Planned seconds from the finalised head to `block`, at least 0."""
        return max(0, block - self.head()) * self.run.first.clock.block_seconds

    def wait_for(self, block: int, why: str) -> Header:
        """Wait until `block` is final. A chain that stands still delays us; it never changes a decision.

        Raises ChainError only when the block is final and yet not to be had (the chain's node has pruned it).
        """
        with self.timeline.begin("wait"):
            return self._wait_for(block, why)

    def _wait_for(self, block: int, why: str) -> Header:
        began = time.monotonic()
        told = False
        while True:
            try:
                expected = self.seconds_until(block)
                if expected > QUIET_SECONDS and not told:
                    logger.info(
                        "waiting for {why}: block {block}, about {seconds} s",
                        why=why,
                        block=block,
                        seconds=int(expected),
                    )
                    told = True
                return self.doors.chain.wait(block, PATIENCE * expected + 30)
            except ChainError as fault:
                if self._passed(block):
                    # Final, so it is not the chain that keeps us waiting. One more try, then the caller has to know.
                    time.sleep(STALL_SECONDS)
                    return self.doors.chain.header(block)
                logger.warning(
                    "still waiting for {why}: block {block} is not final after {seconds} s ({fault}); retrying",
                    why=why,
                    block=block,
                    seconds=int(time.monotonic() - began),
                    fault=str(fault),
                )
                time.sleep(STALL_SECONDS)

    def _passed(self, block: int) -> bool:
        try:
            return self.head() >= block
        except ChainError:
            return False

    def next_round(self) -> int:
        """The first round whose commit window is still open, at least the round that our state stands at."""
        head = self.head()
        round = max(0, self.clock.round_at(head))
        return max(round + (head >= self.clock.commit_by(round)), self.saved.round)

    # --- following the chain ---------------------------------------------------------------------------------

    def advance(self, round: int) -> list[Applied]:
        """Apply agreed selections until the state stands at the start of `round`; what was applied, in order. After a
        catch-up it may stand at a later round."""
        applied: list[Applied] = []
        failed = -1
        while self.saved.round < round:
            current = self.saved.round
            if self.head() < self.clock.attest_by(current):
                self.wait_for(self.clock.attest_by(current), f"the selection of round {current}")
            # As of now, not of `current`: a round that nobody can finish is declared void only later.
            self.follow(settled(self.run, current, self.doors, self.store.run.read))
            runs.require_protocol(self.run, current + 1)
            try:
                applied.append(self._apply(current))
            except (OutOfSync, ChainError) as fault:
                logger.warning("round {round} cannot be followed directly: {fault}", round=current, fault=str(fault))
                if current == failed:
                    # Catch-up has brought us to this very round already: only new statements can bring us further.
                    later = self.clock.round_at(self.head()) + 1
                    self.wait_for(self.clock.attest_by(later), f"the statements of round {later}")
                failed = current
                catchup.catch_up(self)
                if self.saved.round != current:
                    self.stop_prefetch()
                    rmtree(self.cache, ignore_errors=True)
        return applied

    def follow(self, run: Run) -> None:
        """Take up what `settled` or `adopted` gave: saved first, so that a restart follows it too."""
        if run.head != self.run.head:
            self.store.run.save(run)
        self.run = run

    def agreed_selection(self, round: int) -> Agreed:
        """The round's agreed record, or that it is void: a predicate over finalised chain state only."""
        return self._read(round, self.clock.leader_slots, self.clock.attest_by(round))

    def provisional_selection(self, round: int, slots: int) -> Agreed:
        """The same as far as it can be known now: the first `slots` leader slots have passed."""
        return self._read(round, slots, self.head())

    def proposals(self, round: int) -> list[tuple[PeerId, Selection] | None]:
        """Every slot's leader and what its record would make agreed, once all slots have passed."""
        views, commit_hash = self._views(round, self.clock.leader_slots, self.head())
        order = leader_order(self.run, round, commit_hash, views.commit)
        found = proposals(self.run, round, self.saved.link, commit_hash, views)
        return [None if selection is None else (order[slot], selection) for slot, selection in enumerate(found)]

    def _read(self, round: int, slots: int, height: int) -> Agreed:
        views, commit_hash = self._views(round, slots, height)
        return agreed(self.run, round, self.saved.link, commit_hash, views, self.head())

    def _views(self, round: int, slots: int, height: int) -> tuple[Views, Digest]:
        chain, clock = self.doors.chain, self.clock
        commit = clock.commit_by(round)
        passed = [chain.peers(clock.slot(round, index)[1]) for index in range(slots)]
        views = Views(chain.peers(commit), [*passed, *[()] * (clock.leader_slots - slots)], chain.peers(height))
        return views, chain.header(commit).hash

    def _apply(self, round: int) -> Applied:
        with self.timeline.begin("select") as select:
            decision = self.agreed_selection(round)
            if decision.selection is None and self._disowned(round):
                raise OutOfSync(f"most of the stake starts round {round} from another state than ours")
        self.stop_prefetch()
        self.before_apply(decision)
        with self.timeline.begin("download") as download:
            opened = self.gather(decision) if decision.selection else []
        # Before the new state is written: downloads must not take the room that it needs.
        rmtree(self.cache, ignore_errors=True)
        with self.timeline.begin("apply") as apply:
            self.apply(round, decision, opened)
        self.events.emit(
            "applied",
            round,
            void=decision.selection is None,
            contributing=[hotkey(peer) for peer, _ in decision.selection.contributing] if decision.selection else [],
            theta=self.replica.digest().hex(),
            seconds={
                "select": round_seconds(select.seconds),
                "download": round_seconds(download.seconds),
                "apply": round_seconds(apply.seconds),
            },
        )
        self.events.emit("phases", round, phases=self.timeline.take())
        return Applied(round, decision, self.replica.digest())

    def _disowned(self, round: int) -> bool:
        """True when validators with more than half of the counted stake say that they start `round` from another state
        than ours. A record of theirs is void in our eyes then, and without this look it would be for ever."""
        chain, clock = self.doors.chain, self.clock
        stakes = electorate(self.run, round, chain.peers(clock.commit_by(round)))
        voters = [peer for peer in chain.peers(clock.attest_by(round)) if peer.id in stakes]
        claims = {peer.id: claimed_start(self.run, round, [peer]) for peer in voters}
        ours = (self.replica.digest(), self.saved.link)
        others = {claim for claim in claims.values() if claim is not None and claim != ours}
        most = max((sum(stakes[p] for p, c in claims.items() if c == claim) for claim in others), default=0)
        return 2 * most > sum(stakes.values())

    def gather(self, decision: Agreed) -> list[Opened]:
        """Every selected submission of an agreed record, opened. Waits and repairs from any source; gives up with
        OutOfSync after a whole round, when only a checkpoint can help."""
        selection = decision.selection
        assert selection is not None
        if selection.theta != self.replica.digest():
            raise OutOfSync(
                f"our theta is {self.replica.digest().hex()[:16]}, the agreed record of round {selection.round} names "
                f"{selection.theta.hex()[:16]}"
            )
        self._lay_out_own(selection.round)
        spec = self.run.spec_at(selection.round)
        give_up = time.monotonic() + spec.clock.round_blocks * spec.clock.block_seconds
        pause = 0.2
        while True:
            sources = Sources(self.doors.chain.peers(self.head()), self.doors.open_pointer)
            try:
                return gather_pinned(
                    spec,
                    self.run.id,
                    selection.round,
                    selection.contributing,
                    sources,
                    self.doors.verify,
                    self.transfer_seconds(len(selection.contributing)),
                    self.cache,
                )
            except StorageError as fault:
                if time.monotonic() > give_up:
                    raise OutOfSync(f"round {selection.round} cannot be had from any source: {fault}") from None
                logger.warning("{fault}; trying again", fault=str(fault))
                time.sleep(pause)
                pause = min(2 * pause, 10.0)

    def prefetch(self, round: int) -> None:
        """After block D: begin to fetch what will probably be selected, the submissions of those who were selected
        last, until the selection is known. Nothing waits for it and nothing depends on it."""
        self.stop_prefetch()
        last = self.clock.commit_by(round)
        try:
            peers = self.doors.chain.peers(last)
            timeout = self.seconds_until(self.clock.attest_by(round))
        except ChainError as fault:
            logger.debug("round {round}: nothing is fetched early: {fault}", round=round, fault=str(fault))
            return
        promises = {peer.id: commitment(peer, round, last) for peer in peers if peer.id in self._likely}
        pairs = [(peer, promise.envelope) for peer, promise in promises.items() if promise and peer != self.me]
        if pairs and timeout > 0:
            self._prefetch = prefetch_pinned(
                self.run.spec_at(round),
                self.run.id,
                round,
                pairs,
                Sources(peers, self.doors.open_pointer),
                timeout,
                self.cache,
                self.timeline.begin("prefetch").end,
            )

    def stop_prefetch(self) -> None:
        """Fetch nothing more ahead; what has come stays in the cache."""
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            prefetch.stop()

    def _lay_out_own(self, round: int) -> None:
        """Our own submission need not be fetched."""
        sealed = self.saved.sealed
        if sealed is not None and sealed.round == round:
            with suppress(OSError):  # it is there already, or this disk knows no links: then it is fetched
                self.cache.mkdir(exist_ok=True)
                os.link(self.store.path(sealed.object), cached(self.cache, self.me, keys.payload(self.run.id, round)))

    def transfer_seconds(self, num_payloads: int) -> float:
        """Time-out of a transfer of that many payloads: four times what the spec's slowest planned link needs, and
        never less than a few blocks."""
        spec = self.run.first
        slowest = min(spec.clock.upload_mbps, spec.clock.download_mbps)
        return max(5.0, 4 * spec.clock.block_seconds) + 4 * num_payloads * spec.object_bytes * 8e-6 / slowest

    def apply(self, round: int, decision: Agreed, opened: list[Opened]) -> None:
        """The outer step (or, in a void round, giving our own update back to the error feedback), then save."""
        spec = self.run.spec_at(round)
        own = self.saved.own
        if decision.selection is not None:
            self._likely = frozenset(peer for peer, _ in decision.selection.contributing)
            self.replica.outer_step(
                [submission.update for submission in opened], alpha=spec.outer.alpha, aggregate=spec.outer.aggregate
            )
        elif (mine := self.own_update(round)) is not None:
            self.replica.give_back(mine)
            own = self.save_own()
        consensus = self.save_consensus() if decision.selection is not None else self.saved.consensus
        self.save(round=round + 1, consensus=consensus, link=decision.link, own=own)

    def own_update(self, round: int) -> Update | None:
        """What we sealed in `round`, opened again from the saved bytes."""
        sealed = self.saved.sealed
        if sealed is None or sealed.round != round:
            return None
        data = self.store.read(sealed.object)
        plaintext = unseal(parse_envelope(data[:ENVELOPE_BYTES]), sealed.key, data[ENVELOPE_BYTES:])
        return ops.parse(plaintext, self.run.layout)

    # --- state -----------------------------------------------------------------------------------------------

    def save(self, **changes: object) -> None:
        """Commit a new saved state: the node's only commit point."""
        self.saved = replace(self.saved, **changes)  # type: ignore[arg-type]
        self.store.commit(self.saved)

    def save_consensus(self) -> Digest:
        """Write theta and the outer state to disk; not part of the state until a commit names it."""
        return checkpoint.save(self.store.files, self.replica.consensus_state())

    def load_consensus(self, digest: Digest, fetch: Fetch | None = None) -> None:
        """Take theta and the outer state from disk, or through `fetch`."""
        shapes = self.run.first.model.shapes()
        self.replica.load_consensus(checkpoint.load(self.store.files, digest, shapes, fetch=fetch))

    def save_own(self) -> Digest:
        """Copy error feedback and the optimizer's state off the accelerator and write them to disk; not part of the
        state until a commit names them."""
        with self.timeline.begin("swap"):
            own = self.replica.own_state()
        with self.timeline.begin("save"):
            return checkpoint.save(self.store.files, own)

    def _resume(self) -> Saved:
        """The saved state, loaded into the replica; on a fresh folder what catch-up or the run's genesis gives."""
        saved = self.store.load()
        if saved is None:
            return catchup.genesis(self)
        try:
            self.load_consensus(saved.consensus)
            if saved.own is not None:
                self.replica.load_own(checkpoint.load(self.store.files, saved.own, self.replica.own_shapes()))
        except CheckpointCorrupt as fault:
            raise CheckpointCorrupt(
                f"the saved state is damaged: {fault}. Restore {self.store.folder} from a backup, or remove it and "
                "start again: the node catches up (a miner then begins with empty error feedback)"
            ) from None
        logger.info("resuming at the start of round {round}", round=saved.round)
        return saved

    # --- the chain slot --------------------------------------------------------------------------------------

    def post(self, statement: Commitment | Record | Attestation | None) -> int:
        """Overwrite our commitment slot: pointer, statement, and the run's digest when we own the run."""
        amendment = None
        if self.me == self.run.first.owner_id:
            # The slot may name an amendment that we have not read yet; it must not be taken back.
            me = self.registered()
            named = me.slot.amendment if me is not None and me.slot is not None else None
            amendment = named or self.run.head
        return self.doors.chain.publish(encode_slot(self.doors.pointer, statement, amendment))

    def registered(self) -> Peer | None:
        """Ourselves as the chain sees us, None when the hotkey is not registered."""
        return next((peer for peer in self.doors.chain.peers(self.head()) if peer.id == self.me), None)
