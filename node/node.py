"""A node: what holds the state of a run (node/held.py) moved along by what follows its chain (node/follower.py).

A node's state always stands at the start of one round. `advance` reads the agreed selection of that round from
finalised chain state, gathers exactly those submissions, applies them and saves: all or nothing, in that order.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from gauntlet.agreement import STATEMENT_ROUNDS, Agreed
from gauntlet.commitment import commitment
from node import run as runs
from node.adapters import Doors
from node.amendments import settle
from node.behind import holds_last_words
from node.catchup import CaughtUp, catch_up, join, meet
from node.claimed import newest_decided
from node.events import round_seconds
from node.follower import Follower
from node.held import Held
from node.payloads import Lacking, Opened, gather_pinned, prefetch_pinned
from node.setbacks import Setbacks
from node.terms import Terms
from node.wanted import say_wanted
from protocol.errors import STATE_PRUNED, ChainError, OutOfSync, StorageError
from protocol.run import Run
from protocol.types import Digest, PeerId, hotkey
from storage.collect import Collection

ABORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a round: its agreement, and the digest of theta after it."""

    round: int
    agreed: Agreed
    theta: Digest


class Node(Follower):
    """One node of a run. Not thread-safe."""

    def __init__(self, run: Run, doors: Doors, held: Held) -> None:
        super().__init__(run, doors, held.timeline)
        self.held = held
        self._terms = Terms(held.events)
        round_seconds = run.first.clock.round_blocks * run.first.clock.block_seconds
        self.setbacks = Setbacks(doors.bucket, round_seconds, lambda: self.clock.round_at(self.head()), doors.time)
        self._likely: frozenset[PeerId] = frozenset()
        """Who was selected last."""
        self._prefetch: Collection | None = None
        self.before_apply: Callable[[Agreed], None] = lambda decision: None
        """Called with every agreed selection before our state moves past it: what it does survives a crash, because a
        restart comes here again. May raise StorageError or ChainError: then the state stays where it is."""
        self._in_vain = 0
        """Times in a row that the chain had pruned what we needed and no claim could be followed."""
        self._void = 0
        """Newest rounds in a row that we followed and in which nothing was agreed, since we last looked for common
        ground."""
        self.behind = not join(self, held)
        """True while we hold nothing but theta_0 of a run that others have moved on: then our word would speak for a
        state that nobody has any more."""

    def next_round(self, last: Callable[[int], int]) -> int:
        """The first round whose block `last(round)` is still ahead, at least the round that our state stands at."""
        head = self.head()
        round = max(0, self.clock.round_at(head))
        return max(round + (head >= last(round)), self.held.saved.round)

    def look_at_terms(self, round: int) -> None:
        """Tell what has changed of what the chain demands."""
        self._terms.look(self.doors.chain, self.run, round)

    def abort_unfinished(self) -> None:
        """Of uploads that we did not live to finish (payloads, mirrors, checkpoints), the server keeps the parts, and
        bills them: they are of no use to anybody. The bucket is this hotkey's alone."""
        try:
            self.doors.bucket.abort_unfinished("", timeout_seconds=ABORT_SECONDS)
        except StorageError as fault:
            logger.warning("unfinished uploads of an earlier start may stay in our bucket: {fault}", fault=str(fault))

    def advance(self, round: int) -> list[Applied]:
        """Apply agreed selections until the state stands at the start of `round`; what was applied, in order. After a
        catch-up it may stand at a later round.

        A round that we cannot follow, neither by its record nor by catch-up, we pass over with the state that we have:
        a claim that nobody lets us check must not hold us for ever. Where it was true, more than half of the stake
        contradicts us from then on, and catch-up is tried again in every round.
        """
        applied: list[Applied] = []
        while (current := self.held.saved.round) < round:
            if self.head() < self.clock.attest_by(current):
                self.wait_for(self.clock.attest_by(current), f"the selection of round {current}")
            # As of now, not of `current`: a round that nobody can finish is declared void only later.
            settle(self, self.held)
            runs.require_protocol(self.run, current + 1)
            try:
                if self.contradicted(current, self.held.claim) is not None:
                    raise OutOfSync("more than half of the counted stake starts it from another state than ours")
                applied.append(self._apply(current))
                self._meet(applied[-1])
            except (OutOfSync, ChainError) as fault:
                logger.warning("round {round} cannot be followed directly: {fault}", round=current, fault=str(fault))
                self._return(current, fault)
        return applied

    def _return(self, current: int, fault: OutOfSync | ChainError) -> None:
        """Catch up; where nobody claims another state than ours, try again or pass the round over."""
        clock, pruned = self.clock, isinstance(fault, ChainError) and fault.code == STATE_PRUNED
        outcome, moved = self._caught_up(widely=pruned)
        if moved:
            return
        reached = outcome is CaughtUp.YES
        if reached and isinstance(fault, ChainError) and not pruned:
            self.time.sleep(self.run.first.clock.block_seconds)  # it did not answer for a moment
            return
        if reached and self.head() < clock.attest_by(current + 1):
            # The chain is slower than planned: whoever follows the round has not had to say so yet.
            self.wait_for(clock.attest_by(current + 1), f"what others say of round {current + 1}")
            if self._caught_up()[1]:
                return
        if isinstance(fault, ChainError) and not reached:
            # The chain's node has pruned what we need: only later statements, and a checkpoint, can bring us further.
            later = newest_decided(self) + 1
            self.wait_for(clock.attest_by(later), f"the statements of round {later}")
            self._in_vain += 1
            if not pruned or not self._has_to_speak(outcome, later):
                return
            current = later
        self._pass_over(current, fault)

    def _has_to_speak(self, outcome: CaughtUp, round: int) -> bool:
        """Whether we say what we hold though we could not catch up. If all wait for others to say what they hold, one
        liar that speaks stops the run for ever; and where several claims contradict each other, whoever waits until it
        counts no more leaves the run to them. Who is late does wait, and longest where it only lacks something for a
        moment: its word would count against those that went on."""
        if self.behind:
            return False
        patient = self._in_vain > STATEMENT_ROUNDS
        if outcome is not CaughtUp.LACKING and patient:
            return True
        return (outcome is not CaughtUp.LACKING or patient) and holds_last_words(self, self.held, round)

    def _meet(self, applied: Applied) -> None:
        """Where those that hold different states all say so, none has a majority: go where most have been. Of the
        newest round only: what was void long ago has been settled since."""
        try:
            void = applied.agreed.selection is None and applied.round >= newest_decided(self)
            self._void = self._void + 1 if void else 0
            if self._void < STATEMENT_ROUNDS:
                return
            self._void = 0
            moved = meet(self, self.held)
        except ChainError as fault:  # the round is applied all the same
            logger.debug("no common ground is looked for now: {fault}", fault=str(fault))
            return
        if moved:
            self.behind = False
            self.stop_prefetch()
            self.held.clear_cache()

    def _caught_up(self, *, widely: bool = False) -> tuple[CaughtUp, bool]:
        """What became of a catch-up, and whether it has moved us: it may only confirm what we hold, while nobody states
        anything for a later round. Our state is what it was otherwise."""
        before = self.held.saved.round, self.held.saved.link
        outcome = catch_up(self, self.held, widely=widely)
        moved = (self.held.saved.round, self.held.saved.link) != before
        if outcome is CaughtUp.YES:
            self._void = 0
            self.behind = False
            self._in_vain = 0
            self.stop_prefetch()
        if moved:
            self.held.clear_cache()
        return outcome, moved

    def _pass_over(self, round: int, fault: OutOfSync | ChainError) -> None:
        """Go on with the state that we have. What we sent is not taken back: others may well have applied it. Where
        nobody can have its bytes any more, all would else wait for them for ever."""
        logger.warning("round {round} is passed over: nobody lets us follow it", round=round)
        self.held.save(round=round + 1, apart=True)
        self.held.events.emit("passed_over", round, reason=str(fault))

    def _apply(self, round: int) -> Applied:
        with self.timeline.begin("select") as select:
            decision = self.agreed_selection(round, self.held.claim)
        self.stop_prefetch()
        self.before_apply(decision)
        with self.timeline.begin("download") as download:
            opened = self.gather(decision) if decision.selection else []
        with self.timeline.begin("apply") as apply:
            if decision.selection is not None:
                self._likely = frozenset(peer for peer, _ in decision.selection.contributing)
                self.behind = self.behind and round < newest_decided(self)
            self.held.apply(round, self.run.spec_at(round), decision, opened)
        self.held.events.emit(
            "applied",
            round,
            void=decision.selection is None,
            contributing=[hotkey(peer) for peer, _ in decision.selection.contributing] if decision.selection else [],
            theta=self.held.replica.digest().hex(),
            seconds={
                "select": round_seconds(select.seconds),
                "download": round_seconds(download.seconds),
                "apply": round_seconds(apply.seconds),
            },
        )
        self.held.events.emit("phases", round, phases=self.timeline.take())
        return Applied(round, decision, self.held.replica.digest())

    def gather(self, decision: Agreed) -> list[Opened]:
        """Every selected submission of an agreed record, opened. Waits and repairs from any source; gives up with
        OutOfSync after a whole round, when only a checkpoint can help."""
        selection = decision.selection
        assert selection is not None
        self.held.lay_out_own(self.me, selection.round)
        spec = self.run.spec_at(selection.round)
        give_up = self.time.now() + spec.clock.round_blocks * spec.clock.block_seconds
        pause, said = 0.2, frozenset[PeerId]()
        while True:
            sources = self.sources()
            try:
                return gather_pinned(
                    spec,
                    self.run.id,
                    selection.round,
                    selection.contributing,
                    sources,
                    self.doors.verify,
                    self.transfer_seconds(len(selection.contributing)),
                    self.held.cache,
                    self.time,
                )
            except Lacking as fault:
                if self.time.now() > give_up:
                    raise OutOfSync(f"round {selection.round} cannot be had from any source: {fault}") from None
                if said != (lacked := frozenset(fault.peers)) and say_wanted(self, fault.round, lacked):
                    said = lacked
                logger.warning("{fault}; trying again", fault=str(fault))
                self.time.sleep(pause)
                pause = min(2 * pause, 10.0)

    def prefetch(self, round: int) -> None:
        """After block D: begin to fetch what will probably be selected, until the selection is known: the submissions
        of those who were selected last, and for the places that are left those of others, the lowest uids first. What
        is fetched only when it is selected makes everybody late for the next round. Nothing waits for it and nothing
        depends on it."""
        self.stop_prefetch()
        last = self.clock.commit_by(round)
        try:
            peers = self.doors.chain.peers(last)
            timeout = self.seconds_until(self.clock.attest_by(round))
        except ChainError as fault:
            logger.debug("round {round}: nothing is fetched early: {fault}", round=round, fault=str(fault))
            return
        spec = self.run.spec_at(round)
        places = max(spec.gauntlet.contributors, len(self._likely))
        first = sorted(peers, key=lambda peer: (peer.id not in self._likely, peer.uid))
        promises = {peer.id: commitment(peer, round, last) for peer in first}
        promised = [(peer, promise.envelope) for peer, promise in promises.items() if promise][:places]
        pairs = [(peer, envelope) for peer, envelope in promised if peer != self.me]
        if pairs and timeout > 0:
            self._prefetch = prefetch_pinned(
                spec,
                self.run.id,
                round,
                pairs,
                self.sources(last),
                timeout,
                self.held.cache,
                self.timeline.begin("prefetch").end,
                self.time,
            )

    def stop_prefetch(self) -> None:
        """Fetch nothing more ahead; what has come stays in the cache."""
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            prefetch.stop()
