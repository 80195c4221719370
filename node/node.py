"""A node: what holds the state of a run (node/held.py) moved along by what follows its chain (node/follower.py).

A node's state always stands at the start of one round. `advance` reads the agreed selection of that round from
finalised chain state, gathers exactly those submissions, applies them and saves: all or nothing, in that order.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from gauntlet.agreement import Agreed, claimed_start, electorate
from gauntlet.checks import commitment
from node import run as runs
from node.adapters import Doors
from node.catchup import catch_up, join
from node.events import round_seconds
from node.follower import Follower
from node.held import Held
from node.payloads import Opened, Sources, gather_pinned, prefetch_pinned
from protocol.errors import ChainError, OutOfSync, StorageError
from protocol.run import Run
from protocol.types import Digest, PeerId, hotkey
from storage.collect import Collector


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
        self._likely: frozenset[PeerId] = frozenset()
        """Who was selected last."""
        self._prefetch: Collector | None = None
        self.before_apply: Callable[[Agreed], None] = lambda decision: None
        """Called with every agreed selection before our state moves past it: what it does survives a crash, because a
        restart comes here again. May raise StorageError or ChainError: then the state stays where it is."""
        if not held.resume():
            join(self, held)

    def next_round(self) -> int:
        """The first round whose commit window is still open, at least the round that our state stands at."""
        head = self.head()
        round = max(0, self.clock.round_at(head))
        return max(round + (head >= self.clock.commit_by(round)), self.held.saved.round)

    def advance(self, round: int) -> list[Applied]:
        """Apply agreed selections until the state stands at the start of `round`; what was applied, in order. After a
        catch-up it may stand at a later round."""
        applied: list[Applied] = []
        failed = -1
        while self.held.saved.round < round:
            current = self.held.saved.round
            if self.head() < self.clock.attest_by(current):
                self.wait_for(self.clock.attest_by(current), f"the selection of round {current}")
            # As of now, not of `current`: a round that nobody can finish is declared void only later.
            self.refresh_run(self.doors.chain.peers(self.head()))
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
                catch_up(self, self.held)
                if self.held.saved.round != current:
                    self.stop_prefetch()
                    self.held.clear_cache()
        return applied

    def _apply(self, round: int) -> Applied:
        with self.timeline.begin("select") as select:
            decision = self.agreed_selection(round, self.held.saved.link)
            if decision.selection is None and self._disowned(round):
                raise OutOfSync(f"most of the stake starts round {round} from another state than ours")
        self.stop_prefetch()
        self.before_apply(decision)
        with self.timeline.begin("download") as download:
            opened = self.gather(decision) if decision.selection else []
        # Before the new state is written: downloads must not take the room that it needs.
        self.held.clear_cache()
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
            seconds={
                "select": round_seconds(select.seconds),
                "download": round_seconds(download.seconds),
                "apply": round_seconds(apply.seconds),
            },
        )
        self.held.events.emit("phases", round, phases=self.timeline.take())
        return Applied(round, decision, self.held.replica.digest())

    def _disowned(self, round: int) -> bool:
        """True when validators with more than half of the counted stake say that they start `round` from another state
        than ours. A record of theirs is void in our eyes then, and without this look it would be for ever."""
        chain, clock = self.doors.chain, self.clock
        stakes = electorate(self.run, round, chain.peers(clock.commit_by(round)))
        voters = [peer for peer in chain.peers(clock.attest_by(round)) if peer.id in stakes]
        claims = {peer.id: claimed_start(self.run, round, [peer]) for peer in voters}
        ours = (self.held.replica.digest(), self.held.saved.link)
        others = {claim for claim in claims.values() if claim is not None and claim != ours}
        most = max((sum(stakes[p] for p, c in claims.items() if c == claim) for claim in others), default=0)
        return 2 * most > sum(stakes.values())

    def gather(self, decision: Agreed) -> list[Opened]:
        """Every selected submission of an agreed record, opened. Waits and repairs from any source; gives up with
        OutOfSync after a whole round, when only a checkpoint can help."""
        selection = decision.selection
        assert selection is not None
        if selection.theta != self.held.replica.digest():
            ours = self.held.replica.digest().hex()[:16]
            raise OutOfSync(
                f"our theta is {ours}, the agreed record of round {selection.round} names {selection.theta.hex()[:16]}"
            )
        self.held.lay_out_own(self.me, selection.round)
        spec = self.run.spec_at(selection.round)
        give_up = self.time.now() + spec.clock.round_blocks * spec.clock.block_seconds
        pause = 0.2
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
            except StorageError as fault:
                if self.time.now() > give_up:
                    raise OutOfSync(f"round {selection.round} cannot be had from any source: {fault}") from None
                logger.warning("{fault}; trying again", fault=str(fault))
                self.time.sleep(pause)
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
                self.held.cache,
                self.timeline.begin("prefetch").end,
                self.time,
            )

    def stop_prefetch(self) -> None:
        """Fetch nothing more ahead; what has come stays in the cache."""
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            prefetch.stop()
