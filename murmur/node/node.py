"""A node: moves the state of a run (murmur/node/state/node_state.py) along as its chain decides
(murmur/node/chain/follower.py).

A node's state is always the one at the start of a round. `advance` reads the agreed selection of that round from
finalised chain state, gathers exactly those submissions, applies them and saves: all or nothing, in that order. If the
run's state differs from ours, we catch up with it (murmur/node/sync/catchup.py); meanwhile our votes abstain.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from shutil import disk_usage

from loguru import logger

from gauntlet.agreement import Agreed, Tip, moved, order_of
from murmur.node.chain.follower import Follower
from murmur.node.chain.subnet_terms import RAO_PER_TAO, SubnetTerms
from murmur.node.config.ports import Ports
from murmur.node.fetch.opening import Opened
from murmur.node.fetch.payloads import Lacking
from murmur.node.fetch.selected import Brought, bring_pinned, is_whole, open_whole
from murmur.node.own_bucket import OwnBucket
from murmur.node.state.node_state import NodeState
from murmur.node.sync import run_discovery as runs
from murmur.node.sync.amendments import adopted, follow, settle
from murmur.node.sync.backoff import Backoff
from murmur.node.sync.catchup import Followed, catch_up, join
from murmur.node.sync.expected_selection import likely
from murmur.node.sync.prefetch import Prefetch
from murmur.node.sync.repair_requests import say_wanted, take_back_wanted
from murmur.node.sync.selection_chain import SelectionChain
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.events import round_seconds
from murmur.node.telemetry.trouble import Trouble
from murmur.protocol.errors import STATE_PRUNED, ChainError, OutOfSync, StorageError
from murmur.protocol.messages import first_link
from murmur.protocol.ports import Time
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Peer, PeerId, Pointer, Selection, StateRef, Subnet, hotkey

VAIN_ROUNDS = 4
"""After this many rounds in which no node gave us the data that follows our state, our votes name our state again. A
run whose newest payloads are lost everywhere recovers only in this way."""
ABORT_SECONDS = 10.0
LOW_DISK_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a round: its agreement, and the digest of theta after it."""

    round: int
    agreed: Agreed
    theta: Digest


class _Decision:
    """The decision of `round`, awaited in a task of its own. `wait` blocks until the round is decided and returns the
    result."""

    def __init__(self, round: int, wait: Callable[[int], Agreed], time: Time) -> None:
        self.round = round
        self._found: Agreed | None = None
        self._fault: BaseException | None = None

        def look() -> None:
            try:
                self._found = wait(round)
            except Exception as fault:  # noqa: BLE001 - raised where the decision is taken
                self._fault = fault

        self._task = time.start(look, "decision")

    def is_known(self) -> bool:
        return not self._task.is_alive()

    def take(self) -> Agreed:
        """Await the decision and return it. Raises the error of `wait`."""
        self._task.join()
        if self._found is None:
            raise self._fault or ChainError("no validator has posted a vote")
        return self._found


class Node(Follower):
    """One node of a run. Not thread-safe."""

    def __init__(self, run: Run, ports: Ports, state: NodeState, *, waits: bool = True) -> None:
        """waits: for theta_0, until a bucket has it. Raises StorageError otherwise."""
        super().__init__(run, ports, state.timeline, state.events)
        self.state = state
        self._terms = SubnetTerms(state.events)
        round_seconds = run.first.clock.round_blocks * run.first.clock.block_seconds
        own = ports.pointer
        where = f"bucket {own.bucket} at {own.endpoint}" if isinstance(own, Pointer) else own.endpoint
        bucket = OwnBucket(ports.bucket, where, self.troubles, lambda: state.saved.round, ports.time)
        self.ports = replace(self.ports, bucket=bucket)
        self.backoff = Backoff(bucket, round_seconds, self.troubles, ports.time)
        self._likely: frozenset[PeerId] = frozenset()
        """The contributors of the last selection."""
        self._decision: _Decision | None = None
        """The awaited decision of the round whose selection we expect."""
        self._brought: Brought | None = None
        """What the decision's thread has brought."""
        self._guess_seconds: dict[str, float] = {}
        self._ahead = Prefetch(self, state)
        self._followed = Followed.LOST
        """The result of our last try to catch up."""
        self._tried = -2
        """The newest round that was decided when we last tried to catch up."""
        join(self, state, waits=waits)

    @property
    def at_tip(self) -> bool:
        """Whether our state is the run's at the start of our round."""
        return self.state.saved.at_tip

    @property
    def state_ref(self) -> StateRef | None:
        """The state that our votes name; None while we abstain."""
        saved = self.state.saved
        in_vain = saved.vain_from is not None and saved.round >= saved.vain_from + VAIN_ROUNDS
        back = in_vain and self._followed is Followed.ON_THE_WAY
        return self.state.ref if self.at_tip or back else None

    def next_round(self, last: Callable[[int], int]) -> int:
        """Return the first round whose block `last(round)` is still ahead; never one before our state's round."""
        head = self.head()
        round = max(0, self.clock.round_at(head))
        return max(round + (head >= last(round)), self.state.saved.round)

    def look_around(self, round: int, *, validates: bool) -> None:
        """Say what is wrong with this node's place: the chain's head and terms, our hotkey and its permit, the disk.
        Once a round; no decision uses it."""
        self.look_at_head()
        self._terms.look(self.ports.chain, self.run, round)
        with suppress(OSError):
            free = disk_usage(self.state.store.folder).free
            low = Trouble("disk_low", f"{free / 1e9:.1f} GB left") if free < LOW_DISK_BYTES else None
            self.troubles.look(round, About.DISK, low)
        with suppress(ChainError):  # told by the chain's retries
            peers, subnet = self.ports.chain.peers(self.head()), self.ports.chain.subnet(self.head())
            me = next((peer for peer in peers if peer.id == self.me), None)
            lost = validates and me is not None and not me.validates and me.id != subnet.owner
            self.troubles.look(round, About.PERMIT, _unpermitted(me, peers, subnet) if lost and me else None)

    def is_out(self, round: int) -> bool:
        """Whether our hotkey has lost its place on the subnet, or never had one; it is said. Raises ChainError."""
        if self.registered() is None:
            self.troubles.tell(round, Trouble("not_registered", f"hotkey {hotkey(self.me)}"))
            return True
        self.troubles.mended(round, About.HOTKEY, "not_registered")
        return False

    def abort_unfinished(self) -> None:
        """Abort uploads (payloads, mirrors, checkpoints) that an earlier process left unfinished. The server keeps
        their parts and bills them, and no node can use them. The bucket is this hotkey's alone."""
        try:
            self.ports.bucket.abort_unfinished("", timeout_seconds=ABORT_SECONDS)
        except StorageError as fault:
            logger.warning(
                "could not remove unfinished uploads of an earlier start from our bucket: {fault}", fault=str(fault)
            )

    def advance(self, round: int) -> list[Applied]:
        """Apply agreed selections until our state is the one at the start of `round`. Return the results, in order. A
        catch-up may move the state to a later round.

        We skip a selection that we cannot follow: we keep our state and try again in every round. Missing bytes must
        not block us for ever.
        """
        applied: list[Applied] = []
        if not self.at_tip and self.agreement.newest_decided(self.run) > self._tried:
            self._catch_up()
        while (current := self.state.saved.round) < round:
            if self.head() < self.clock.commit_deadline(current):
                self.wait_for(self.clock.commit_deadline(current), f"the end of round {current}'s commit window")
            settle(self, self.state)
            runs.require_protocol(self.run, current + 1)
            try:
                if self.at_tip and (decision := self._agreed_in(current)) is not None:
                    applied.append(self._apply(current, decision))
                    continue
                why = "the run is at another state"
            except OutOfSync as fault:
                why = str(fault)
            except ChainError as fault:
                if fault.code != STATE_PRUNED:
                    raise
                why = str(fault)
            if self.head() < self.clock.vote_deadline(current):
                self.wait_for(self.clock.vote_deadline(current), f"the votes of round {current}")
            self._catch_up(why)
        return applied

    # --- expected selections ---------------------------------------------------------------------------------

    def expect(self, round: int) -> bool:
        """Apply the round's probable selection to theta, in memory only. Return whether theta is now the expected one.
        The next round starts from it. `advance` confirms it, or takes it back and applies the agreed selection.

        A guess waits for nobody. It is made of what lies whole on our disk, keys and bytes alike: at the latest a block
        after the commit deadline is final, or as soon as all that we expect is here. Once the decision is known we do
        not guess. If no miner committed, or none has shown a key, the round will be void.
        """
        state, last = self.state, self.clock.commit_deadline(round)
        if state.expected is not None:
            return state.expected.round == round  # the work after it was cut off
        try:
            if not self.at_tip or state.saved.round != round or self.head() < last:
                return False
            if not self._ahead.has_asked_for_keys(round):  # after a restart
                self.prefetch(round)
            with self.timeline.begin("download") as download:
                self._ahead.wait(round)
                self.stop_prefetch()
                opened = self._open_likely(round)
        except ChainError as fault:
            logger.debug("round {round}: cannot predict the selection: {fault}", round=round, fault=str(fault))
            return False
        if opened is None:
            return False
        with self.timeline.begin("apply") as apply:
            contributing = tuple((each.peer, each.envelope) for each in opened)
            state.expect(round, self.run.spec_at(round).outer, contributing, opened)
        self._guess_seconds = {"download": round_seconds(download.seconds), "apply": round_seconds(apply.seconds)}
        self.prefetch(round)
        self._decision = _Decision(round, self._decide_in_background, self.time)
        return True

    @property
    def expects(self) -> bool:
        """Whether theta includes an expected selection that is not agreed yet."""
        return self.state.expected is not None

    def is_decided(self) -> bool:
        """Whether the expected round's decision is known, and what it selects is on our disk. Never waits."""
        return self._decision is not None and self._decision.is_known()

    def _decide_in_background(self, round: int) -> Agreed:
        """Return the decision, with what it selects on our disk; runs in a thread of its own. Nobody's bytes keep the
        inner steps waiting: a wrong guess is corrected when they have come."""
        state = self.state
        state.replica.digest()  # computed now, ready for the confirmation
        decision = self._decided(round)
        if decision.selection is not None and decision.state_ref in (None, state.ref):
            self.stop_prefetch()
            if state.expected_by(round, self.run.spec_at(round), decision) is None:
                self._brought = self._bring(decision.selection)
        return decision

    def _open_likely(self, round: int) -> list[Opened] | None:
        """Open the submissions that will probably be selected, as far as they are whole on our disk. An empty list
        means a void round; None means that the decision came first."""
        head, run, cache = self.head(), self.run, self.state.cache
        if self.agreement.agreed(run, round, head) is not None:
            return None
        self.state.link_own_payload(self.me, round)
        log = self.agreement.log(run, round, head)
        committed = {promise[0] for promise in order_of(run, round, log).committed.values()}
        silent = {peer for peer in committed if not is_whole(run.id, round, peer, cache)}
        pairs = likely(run, round, log, self._likely, silent)
        return open_whole(run.spec_at(round), run.id, round, pairs, self.ports.verify, cache, self.time)

    # --- agreed selections -----------------------------------------------------------------------------------

    def _agreed_in(self, round: int) -> Agreed | None:
        """Return the round's decision if it builds on our state; None if the run continues from another. If others name
        another state and that does not move the run, the round is void."""
        beside, self._decision = self._decision, None
        with self.timeline.begin("wait"):
            awaited = beside is not None and beside.round == round  # a catch-up may have passed it
            decision = beside.take() if beside is not None and awaited else self._decided(round)
        (theta, link), tip = self.state.ref, self.state.saved.tip
        assert tip is not None
        if decision.state_ref in (None, (theta, link)):
            return decision
        self.wait_for(self.clock.vote_deadline(round), f"the votes of round {round}")
        after = moved(tip, round, self.agreement.outcome(self.run, round))
        stays = after.link == link and after.theta in (None, theta)
        return Agreed(None, None, decision.block) if stays else None

    def _catch_up(self, why: str = "") -> None:
        """Move to the run's state after the newest decided round. If we cannot, move to that round with the state that
        we have. We do not take back our own update: others may well have applied it. why: the reason that we could not
        follow directly."""
        state, newest = self.state, self.agreement.newest_decided(self.run)
        if why:
            self.troubles.tell(state.saved.round, Trouble("apart", why))
        self._tried = newest
        self._brought = None
        self.stop_prefetch()
        state.undo_outer_step()
        settle(self, state)
        since, link, before = state.saved.vain_from, state.saved.link, state.saved.tip
        tip = before
        self._followed = Followed.LOST
        try:
            named, tip = self.agreement.tips(self.run, before)
            if self._learns(named):
                _, tip = self.agreement.tips(self.run, before)
            self._followed = catch_up(self, state, tip)
        except ChainError as fault:
            if fault.code != STATE_PRUNED:
                raise
            logger.warning("cannot read the run's current state: {fault}", fault=str(fault))
            if tip is not None and tip.link == link != first_link(self.run.id):
                self._followed = Followed.ON_THE_WAY  # our state was on the run's way when we last could read it
        if self._followed is Followed.YES:
            self.troubles.mended(state.saved.round, About.STATE)
            take_back_wanted(self)
        else:
            stands_still = (
                state.saved.link == link and before is not None and tip is not None and tip.link == before.link
            )
            if self._followed is Followed.ON_THE_WAY and not (since is not None and stands_still):
                since = newest + 1
            state.save(round=max(newest + 1, state.saved.round), tip=tip, vain_from=since)
            self._show_what_was_agreed()
            state.events.emit("not_followed", newest, reason=why or self._followed.value)
        state.clear_cache()

    def _show_what_was_agreed(self) -> None:
        """Publish the agreed selections that we cannot apply. No chain node may have their votes at our next start, or
        another node's. Without the selections a node could not know that its state is on the run's way."""
        tip, link = self.state.saved.tip, self.state.saved.link
        at = tip.link if tip is not None else link
        while at != link and (selection := self.agreement.selections.get(at)) is not None:
            try:
                self.before_apply(selection)
            except StorageError as fault:
                logger.warning("could not publish an agreed selection yet: {fault}", fault=str(fault))
                return
            at = selection.previous

    def _learns(self, named: Tip) -> bool:
        """Adopt the amendments that the newest named selection refers to. Return whether any was new to us: then the
        tip must be computed again under them."""
        records = SelectionChain(self.run.id, self.sources(), named.link, named.round, self.time)
        head = self.run.head
        try:
            for _, newest in islice(records.back(), 1):
                told = [(newest.round, newest.head)]
                follow(self, self.state, adopted(self.run, told, self.ports, self.state.store.run.read, self.time))
        except (StorageError, OutOfSync) as fault:
            logger.debug("cannot find out which amendments are in force: {fault}", fault=str(fault))
        return self.run.head != head

    def _apply(self, round: int, decision: Agreed) -> Applied:
        self.stop_prefetch()
        self.before_apply(decision.selection)
        spec, guessed = self.run.spec_at(round), self.expects
        opened = self.state.expected_by(round, spec, decision)
        right = opened is not None
        if decision.selection is not None:
            self._likely = frozenset(peer for peer, _ in decision.selection.contributing)
        if opened is not None:
            seconds = self._guess_seconds
            self.state.apply(round, spec, decision, opened)
        else:
            self.state.undo_outer_step()
            with self.timeline.begin("download") as download:
                opened = self.gather(decision) if decision.selection else []
            with self.timeline.begin("apply") as apply:
                self.state.apply(round, spec, decision, opened)
            seconds = {"download": round_seconds(download.seconds), "apply": round_seconds(apply.seconds)}
        self.state.events.emit(
            "applied",
            round,
            void=decision.selection is None,
            contributing=[hotkey(peer) for peer, _ in decision.selection.contributing] if decision.selection else [],
            theta=self.state.replica.digest().hex(),
            decided=decision.block,
            after=decision.block - self.clock.commit_deadline(round),
            guess=("right" if right else "wrong") if guessed else None,
            seconds={"download": seconds["download"], "apply": seconds["apply"]},
        )
        self.state.events.emit("phases", round, phases=self.timeline.take())
        take_back_wanted(self)
        return Applied(round, decision, self.state.replica.digest())

    def gather(self, decision: Agreed) -> list[Opened]:
        """Open every selected submission of an agreed selection. Waits, and asks all sources until it has them. Raises
        OutOfSync after a whole round: then only a checkpoint helps."""
        selection, brought = decision.selection, self._brought
        assert selection is not None
        if brought is None or (brought.round, brought.pairs) != (selection.round, selection.contributing):
            brought = self._bring(selection)
        self._brought = None
        return brought.open(self.run.spec_at(selection.round), self.time)

    def _bring(self, selection: Selection) -> Brought:
        """Bring every selected submission to our disk, as `gather` says."""
        self.state.link_own_payload(self.me, selection.round)
        spec = self.run.spec_at(selection.round)
        give_up = self.time.now() + spec.clock.round_blocks * spec.clock.block_seconds
        pause, said = 0.2, frozenset[PeerId]()

        def seconds(lacked: int) -> float:
            return min(self.transfer_seconds(lacked), max(give_up - self.time.now(), 1.0))

        while True:
            try:
                return bring_pinned(
                    spec,
                    self.run.id,
                    selection.round,
                    selection.contributing,
                    self.sources(),
                    self.ports.verify,
                    seconds,
                    self.state.cache,
                    self.time,
                )
            except Lacking as fault:
                if self.time.now() >= give_up:
                    raise OutOfSync(f"round {selection.round} cannot be fetched from any source: {fault}") from None
                if said != (lacked := frozenset(fault.peers)) and say_wanted(self, fault.round, lacked):
                    said = lacked
                logger.warning("{fault}; trying again", fault=str(fault))
                self.time.sleep(pause)
                pause = min(2 * pause, 10.0)

    def prefetch(self, round: int) -> None:
        """Start to fetch the submissions that will probably be selected, until the selection is known
        (murmur/node/sync/prefetch.py)."""
        expected = self.state.expected
        here = {peer for peer, _ in expected.contributing} if expected is not None else set()
        self._ahead.start(round, self._likely, here)

    def stop_prefetch(self) -> None:
        """Stop fetching ahead; fetched submissions stay in the cache."""
        self._ahead.stop()


def _unpermitted(me: Peer, peers: Sequence[Peer], subnet: Subnet) -> Trouble:
    """Return that we have no validator permit, with the stakes that decide it."""
    permitted = [peer.stake for peer in peers if peer.validates]
    least = f"; the smallest with a permit has {min(permitted) / RAO_PER_TAO:,.2f}" if permitted else ""
    seen = f"uid {me.uid} has a stake of {me.stake / RAO_PER_TAO:,.2f}{least}; an epoch has {subnet.tempo} blocks"
    return Trouble("no_permit", seen)
