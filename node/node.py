"""A node: what holds the state of a run (node/held.py) moved along by what follows its chain (node/follower.py).

A node's state always stands at the start of one round. `advance` reads the agreed selection of that round from
finalised chain state, gathers exactly those submissions, applies them and saves: all or nothing, in that order. Where
the run stands elsewhere than we, we go there (node/catchup.py), and lend nobody our word meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from loguru import logger

from gauntlet.agreement import Agreed, Pair, Tip, moved
from gauntlet.commitment import commitment
from node import run as runs
from node.adapters import Doors
from node.amendments import adopted, follow, settle
from node.catchup import Followed, catch_up, join
from node.events import round_seconds
from node.follower import Follower
from node.held import Held
from node.payloads import Lacking, Opened, gather_pinned, prefetch_pinned
from node.records import Records
from node.setbacks import Setbacks
from node.terms import Terms
from node.wanted import say_wanted, take_back_wanted
from protocol.errors import STATE_PRUNED, ChainError, OutOfSync, StorageError
from protocol.messages import first_link
from protocol.run import Run
from protocol.types import Digest, PeerId, hotkey
from storage.collect import Collection

VAIN_ROUNDS = 4
"""After so many rounds in which nobody gave what follows on what we hold, we say that we hold it: the one way back, for
a run whose newest payloads nobody has any more."""
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
        self._followed = Followed.LOST
        """What became of our last try to catch up."""
        self._tried = -2
        """The newest round that was decided when we last tried to catch up."""
        join(self, held)

    @property
    def at_tip(self) -> bool:
        """Whether we hold where the run stands at the start of our round."""
        return self.held.saved.at_tip

    @property
    def pair(self) -> Pair | None:
        """What our word names; None while we abstain."""
        saved = self.held.saved
        in_vain = saved.vain_from is not None and saved.round >= saved.vain_from + VAIN_ROUNDS
        back = in_vain and self._followed is Followed.ON_THE_WAY
        return self.held.claim if self.at_tip or back else None

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

        What we cannot follow we pass over with the state that we have, and try again in every round: bytes that nobody
        gives must not hold us for ever.
        """
        applied: list[Applied] = []
        if not self.at_tip and self.agreement.newest_decided(self.run) > self._tried:
            self._catch_up()
        while (current := self.held.saved.round) < round:
            if self.head() < self.clock.commit_by(current):
                self.wait_for(self.clock.commit_by(current), f"the end of round {current}'s commit window")
            settle(self, self.held)
            runs.require_protocol(self.run, current + 1)
            try:
                if self.at_tip and (decision := self._decision(current)) is not None:
                    applied.append(self._apply(current, decision))
                    continue
                why = "the run stands elsewhere"
            except OutOfSync as fault:
                why = str(fault)
            except ChainError as fault:
                if fault.code != STATE_PRUNED:
                    raise
                why = str(fault)
            if self.head() < self.clock.words_by(current):
                self.wait_for(self.clock.words_by(current), f"the words of round {current}")
            self._catch_up(why)
        return applied

    def _decision(self, round: int) -> Agreed | None:
        """What is agreed in the round for what we hold, which is where the run stands; None where it goes on from
        elsewhere. What others name without moving the run makes the round void."""
        decision, (theta, link), tip = self.decided(round), self.held.claim, self.held.saved.tip
        assert tip is not None
        if decision.pair in (None, (theta, link)):
            return decision
        self.wait_for(self.clock.words_by(round), f"the words of round {round}")
        after = moved(tip, round, self.agreement.outcome(self.run, round))
        stays = after.link == link and after.theta in (None, theta)
        return Agreed(None, None, decision.block) if stays else None

    def _catch_up(self, why: str = "") -> None:
        """Go where the run stands after the newest decided round. Where nobody lets us, stand there with the state that
        we have: what we sent is not taken back, others may well have applied it. why: we did not stay there."""
        held, newest = self.held, self.agreement.newest_decided(self.run)
        if why:
            logger.warning("round {round} cannot be followed directly: {why}", round=held.saved.round, why=why)
        self._tried = newest
        self.stop_prefetch()
        settle(self, held)
        since, link, before = held.saved.vain_from, held.saved.link, held.saved.tip
        tip = before
        self._followed = Followed.LOST
        try:
            named, tip = self.agreement.tips(self.run, before)
            if self._learns(named):
                _, tip = self.agreement.tips(self.run, before)
            self._followed = catch_up(self, held, tip)
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
            logger.warning("where the run stands cannot be read: {fault}", fault=str(fault))
            if tip is not None and tip.link == link != first_link(self.run.id):
                self._followed = Followed.ON_THE_WAY  # it stood there when we last could read it
        if self._followed is Followed.YES:
            take_back_wanted(self)
        else:
            stands_still = (
                held.saved.link == link and before is not None and tip is not None and tip.link == before.link
            )
            if self._followed is Followed.ON_THE_WAY and not (since is not None and stands_still):
                since = newest + 1
            held.save(round=max(newest + 1, held.saved.round), tip=tip, vain_from=since)
            held.events.emit("passed_over", newest, reason=why or self._followed.value)
        held.clear_cache()

    def _learns(self, named: Tip) -> bool:
        """Take up the amendments that the newest selection tells of which words stand on; whether we did not know them.
        What we take for agreed since then follows from what we know."""
        records = Records(self.run.id, self.sources(), named.link, named.round, self.time)
        head = self.run.head
        try:
            for _, newest in islice(records.back(), 1):
                told = [(newest.round, newest.head)]
                follow(self, self.held, adopted(self.run, told, self.doors, self.held.store.run.read, self.time))
        except (StorageError, OutOfSync) as fault:
            logger.debug("which amendments hold is not told: {fault}", fault=str(fault))
        return self.run.head != head

    def _apply(self, round: int, decision: Agreed) -> Applied:
        self.stop_prefetch()
        self.before_apply(decision.selection)
        with self.timeline.begin("download") as download:
            opened = self.gather(decision) if decision.selection else []
        with self.timeline.begin("apply") as apply:
            if decision.selection is not None:
                self._likely = frozenset(peer for peer, _ in decision.selection.contributing)
            self.held.apply(round, self.run.spec_at(round), decision, opened)
        self.held.events.emit(
            "applied",
            round,
            void=decision.selection is None,
            contributing=[hotkey(peer) for peer, _ in decision.selection.contributing] if decision.selection else [],
            theta=self.held.replica.digest().hex(),
            decided=decision.block,
            seconds={"download": round_seconds(download.seconds), "apply": round_seconds(apply.seconds)},
        )
        self.held.events.emit("phases", round, phases=self.timeline.take())
        take_back_wanted(self)
        return Applied(round, decision, self.held.replica.digest())

    def gather(self, decision: Agreed) -> list[Opened]:
        """Every selected submission of an agreed selection, opened. Waits and repairs from any source; gives up with
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
            timeout = self.seconds_until(self.clock.words_by(round))
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
