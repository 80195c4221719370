"""Follow the chain: await its blocks, read agreed selections, write our own slot. Of the run's state it knows the
amendments only; murmur/node/node.py acts on the decisions."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Agreed
from murmur.node.chain.agreement import Agreement
from murmur.node.chain.head_watch import HEADS, HeadWatch
from murmur.node.chain.retrying_chain import RetryingChain
from murmur.node.config.ports import Ports
from murmur.node.fetch.credentials import Credentials
from murmur.node.fetch.sources import Sources, sources_as_of
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.events import Timeline
from murmur.node.telemetry.trouble import Emitter, Nobody, Troubles, of_chain
from murmur.protocol.errors import ChainError
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Header, Peer, Selection, Uid, Vote

QUIET_SECONDS = 2.0
"""Longer waits are logged."""
LOOK_SECONDS, LOOK_SHARE = 15.0, 0.1
"""A wait for a block is cut into pieces of so long, or of this share of a round if that is longer. After each piece the
head is looked at: does it advance, and is it new?"""
RETURN_BLOCKS = 2
"""Statements that a fork has dropped mostly come back by themselves within this many blocks."""
POSTED_KEPT = 8
STALL_SECONDS = 1.0
"""Pause between two tries to reach a chain that does not answer."""


class Follower:
    """One node's view of a run's chain. Everything that blocks has a deadline from the round clock."""

    def __init__(self, run: Run, ports: Ports, timeline: Timeline, events: Emitter | None = None) -> None:
        """events: take what is said of troubles."""
        self.run, self.timeline = run, timeline
        self.clock = run.clock
        block_seconds = run.first.clock.block_seconds
        round_seconds = run.first.clock.round_blocks * block_seconds
        self.troubles = Troubles(events or Nobody(), round_seconds, ports.time)
        self._look_seconds = max(LOOK_SECONDS, LOOK_SHARE * round_seconds)
        patient = RetryingChain(ports.chain, run.clock, block_seconds, ports.time, self._chain_fails)
        self.ports = replace(ports, chain=patient)
        self._watch = HeadWatch(block_seconds, ports.time, ports.store_time)
        self._round = -1
        """The chain's round when we last looked at its head."""
        self.me = ports.signer.peer
        self.posted = deque[Commitment | Vote | None](maxlen=POSTED_KEPT)
        """The last statements that this process has posted, or has tried to: an answer may be lost."""
        self.time = ports.time
        self._waited = False
        self.may_want = True
        """Whether our bucket may list payloads that we lack."""
        self.agreement = Agreement(patient)
        self._credentials = Credentials()
        self.before_apply: Callable[[Selection | None], None] = lambda selection: None
        """Called with every selection that the chain shows us, before our state moves past it (None: a void round). Its
        effects survive a crash, because a restart calls it again. May raise StorageError or ChainError: then the state
        does not move."""

    # --- time ------------------------------------------------------------------------------------------------

    def head(self) -> int:
        """The finalised head's block number."""
        return self.ports.chain.finalized().block

    def seconds_until(self, block: int) -> float:
        """Planned seconds from the finalised head to `block`, at least 0."""
        return max(0, block - self.head()) * self.run.first.clock.block_seconds

    def seconds_to_post(self, block: int) -> float:
        """Return the planned seconds in which a post is still included by `block`, at least 0. The chain is ahead of
        its finalised head."""
        clock = self.run.first.clock
        return max(0, block - self.head() - clock.finality_blocks - 1) * clock.block_seconds

    def wait_for(self, block: int, why: str) -> Header:
        """Wait until `block` is final. A stalled chain delays us; it never changes a decision.

        Raises ChainError only if the block is final but unavailable (the chain's node has pruned it).
        """
        with self.timeline.begin("wait"):
            return self._wait_for(block, why)

    def _wait_for(self, block: int, why: str) -> Header:
        clock, told = self.run.first.clock, False
        while True:
            try:
                expected = self.seconds_until(block)
                if expected > QUIET_SECONDS and not told:
                    # Every round has its waits: operators need to see the first one and the long ones only.
                    usual = self._waited and expected <= clock.round_blocks * clock.block_seconds
                    self._waited = True
                    logger.log(
                        "DEBUG" if usual else "INFO",
                        "waiting for {why}: block {block}, about {seconds} s",
                        why=why,
                        block=block,
                        seconds=int(expected),
                    )
                    told = True
                return self.ports.chain.wait(block, self._look_seconds)
            except ChainError as fault:
                if self._passed(block):
                    # It is final, so the chain is not the cause of the wait. Try once more, then the caller has to
                    # know.
                    self.time.sleep(STALL_SECONDS)
                    return self.ports.chain.header(block)
                logger.debug("still waiting for {why}: {fault}", why=why, fault=str(fault))
                self.look_at_head()
                self.time.sleep(STALL_SECONDS)

    def look_at_head(self) -> None:
        """Say whether the head that we see is the chain's present one."""
        try:
            head = self.ports.chain.finalized()
        except ChainError:
            return  # told by the chain's retries
        self._round = max(0, self.clock.round_at(head.block))
        trouble = self._watch.look(head)
        for about in (About.CLOCK, About.CHAIN):
            if trouble is not None and trouble.of.about is about:
                self.troubles.tell(self._round, trouble)
            else:  # a chain that refuses what we post has a head all the same
                self.troubles.mended(self._round, about, *HEADS)

    def _chain_fails(self, fault: ChainError | None) -> None:
        """Called by the chain's retries: it has not answered for a while, or it does."""
        if fault is None:
            self.troubles.mended(self._round, About.CHAIN, "chain_silent")
        else:
            self.troubles.tell(self._round, of_chain(fault))

    def _passed(self, block: int) -> bool:
        try:
            return self.head() >= block
        except ChainError:
            return False

    @contextmanager
    def following(self, block: int) -> Iterator[Callable[[], bool]]:
        """Follow the chain in a thread of its own while the body runs. Yields a function: whether `block` is known to
        be final. It never waits or raises: if the chain does not answer, the block is not known to be final."""
        final, left, pause = False, False, max(STALL_SECONDS, self.run.first.clock.block_seconds)

        def follow() -> None:
            nonlocal final
            while not (final or left):
                began = self.time.now()
                try:
                    self.ports.chain.wait(block, pause)
                    final = True
                except ChainError:  # not final yet, or no answer
                    self.time.sleep(max(0.0, began + pause - self.time.now()))

        self.time.start(follow, "chain")
        try:
            yield lambda: final
        finally:
            left = True  # not waited for: a call may hang

    # --- decisions ------------------------------------------------------------------------------------------

    def decided(self, round: int) -> Agreed:
        """Await the round's decision from final states and return it."""
        with self.timeline.begin("wait"):
            return self._decided(round)

    def _decided(self, round: int) -> Agreed:
        head, first = self.head(), self.clock.commit_deadline(round)
        while (found := self.agreement.agreed(self.run, round, head)) is None:
            head = self._wait_for(max(head + 1, first), f"the selection of round {round}").block
        return found

    # --- others, and our own slot ------------------------------------------------------------------------------

    def sources(self, block: int | None = None) -> Sources:
        """Return the sources of objects, as of a final block (default: the head)."""
        at = self.head() if block is None else block
        return sources_as_of(self.run, at, self.ports.chain.peers(at), self.ports.open_pointer, self._credentials)

    def transfer_seconds(self, num_payloads: int) -> float:
        """Return the time-out of a transfer of `num_payloads` payloads, in seconds: four times the planned time on the
        spec's slowest link, plus four blocks' time or 5 s if that is more."""
        spec = self.run.first
        slowest = min(spec.clock.upload_mbps, spec.clock.download_mbps)
        return max(5.0, 4 * spec.clock.block_seconds) + 4 * num_payloads * spec.object_bytes * 8e-6 / slowest

    def post(self, statement: Commitment | Vote | None) -> int:
        """Overwrite our commitment slot: pointer, statement, and the run's digest when we own the run."""
        amendment = None
        if self.me == self.run.first.owner_id:
            # The slot may name an amendment that we have not read yet; it must not be taken back.
            me = self.registered()
            named = me.slot.amendment if me is not None and me.slot is not None else None
            amendment = named or self.run.head
        self.posted.append(statement)
        return self.ports.chain.publish(encode_slot(self.ports.pointer, statement, amendment))

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        """Set our weights; return the block of the set, or of the sealed commit of them."""
        return self.ports.chain.set_weights(weights)

    def registered(self) -> Peer | None:
        """Return our peer as the chain shows it; None when the hotkey is not registered."""
        return next((peer for peer in self.ports.chain.peers(self.head()) if peer.id == self.me), None)
