"""What follows the chain: waiting for its blocks, reading what was agreed on it, writing our own slot. Of the run's
state it knows the amendments only; what is done with a decision is node/node.py's business.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Agreed
from node.chain.agreement import Agreement
from node.chain.retrying_chain import RetryingChain
from node.config.adapters import Doors
from node.fetch.sources import Sources, sources_as_of
from node.telemetry.events import Timeline
from protocol.errors import ChainError, ConfigError
from protocol.messages import encode_slot
from protocol.run import Run
from protocol.types import Commitment, Header, Peer, Selection, Uid, Word

QUIET_SECONDS = 2.0
"""Waits that are expected to last longer are announced."""
PATIENCE = 1.25
"""A wait for a block is given up after this many times its planned length plus the chain's time-out: then the chain
stands still, which is told, and the wait goes on."""
NO_FEE = "Payment"
"""`ChainError.code` of a call whose fee the hotkey's owner cannot pay."""
RETURN_BLOCKS = 2
"""What a fork has dropped mostly comes back by itself, so many blocks later at most."""
STALL_SECONDS = 1.0
"""Pause between two tries to reach a chain that does not answer."""


class Follower:
    """One node's view of a run's chain. Everything that blocks has a deadline from the round clock."""

    def __init__(self, run: Run, doors: Doors, timeline: Timeline) -> None:
        self.run, self.timeline = run, timeline
        self.clock = run.clock
        patient = RetryingChain(doors.chain, run.clock, run.first.clock.block_seconds, doors.time)
        self.doors = replace(doors, chain=patient)
        self.me = doors.signer.peer
        self.time = doors.time
        self._waited = False
        self.may_want = True
        """Whether our bucket may say that we lack something."""
        self.agreement = Agreement(patient)
        self.before_apply: Callable[[Selection | None], None] = lambda selection: None
        """Called with every selection that the chain shows us, before our state moves past it (None: of a void round).
        What it does survives a crash, because a restart comes here again. May raise StorageError or ChainError: then
        the state stays where it is."""

    # --- time ------------------------------------------------------------------------------------------------

    def head(self) -> int:
        """The finalised head's block number."""
        return self.doors.chain.finalized().block

    def seconds_until(self, block: int) -> float:
        """Planned seconds from the finalised head to `block`, at least 0."""
        return max(0, block - self.head()) * self.run.first.clock.block_seconds

    def seconds_to_post(self, block: int) -> float:
        """Planned seconds in which a post is still included by `block`, at least 0: the chain is ahead of its finalised
        head."""
        clock = self.run.first.clock
        return max(0, block - self.head() - clock.finality_blocks - 1) * clock.block_seconds

    def wait_for(self, block: int, why: str) -> Header:
        """Wait until `block` is final. A chain that stands still delays us; it never changes a decision.

        Raises ChainError only when the block is final and yet not to be had (the chain's node has pruned it).
        """
        with self.timeline.begin("wait"):
            return self._wait_for(block, why)

    def _wait_for(self, block: int, why: str) -> Header:
        began, clock = self.time.now(), self.run.first.clock
        told = False
        while True:
            try:
                expected = self.seconds_until(block)
                if expected > QUIET_SECONDS and not told:
                    # Each round has its waits: a person needs the first one's word, and that of the long ones.
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
                return self.doors.chain.wait(block, PATIENCE * expected + 30)
            except ChainError as fault:
                if self._passed(block):
                    # Final, so it is not the chain that keeps us waiting. One more try, then the caller has to know.
                    self.time.sleep(STALL_SECONDS)
                    return self.doors.chain.header(block)
                logger.warning(
                    "still waiting for {why}: block {block} is not final after {seconds} s ({fault}); retrying",
                    why=why,
                    block=block,
                    seconds=int(self.time.now() - began),
                    fault=str(fault),
                )
                self.time.sleep(STALL_SECONDS)

    def _passed(self, block: int) -> bool:
        try:
            return self.head() >= block
        except ChainError:
            return False

    @contextmanager
    def following(self, block: int) -> Iterator[Callable[[], bool]]:
        """Follow the chain beside what is done inside, in a thread of its own. Yields what says whether `block` is
        known to be final; it never waits or raises: a chain that does not answer has made nothing final."""
        final, left, pause = False, False, max(STALL_SECONDS, self.run.first.clock.block_seconds)

        def follow() -> None:
            nonlocal final
            while not (final or left):
                began = self.time.now()
                try:
                    self.doors.chain.wait(block, pause)
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
        """What is agreed in the round, as soon as final states say."""
        with self.timeline.begin("wait"):
            return self._decided(round)

    def _decided(self, round: int) -> Agreed:
        head, first = self.head(), self.clock.commit_by(round)
        while (found := self.agreement.agreed(self.run, round, head)) is None:
            head = self._wait_for(max(head + 1, first), f"the selection of round {round}").block
        return found

    # --- others, and our own slot ------------------------------------------------------------------------------

    def sources(self, block: int | None = None) -> Sources:
        """Where objects may be, as of a final block (default: the head)."""
        at = self.head() if block is None else block
        return sources_as_of(self.run, at, self.doors.chain.peers(at), self.doors.open_pointer)

    def transfer_seconds(self, num_payloads: int) -> float:
        """Time-out of a transfer of that many payloads: four times what the spec's slowest planned link needs, and
        never less than a few blocks."""
        spec = self.run.first
        slowest = min(spec.clock.upload_mbps, spec.clock.download_mbps)
        return max(5.0, 4 * spec.clock.block_seconds) + 4 * num_payloads * spec.object_bytes * 8e-6 / slowest

    def post(self, statement: Commitment | Word | None) -> int:
        """Overwrite our commitment slot: pointer, statement, and the run's digest when we own the run."""
        amendment = None
        if self.me == self.run.first.owner_id:
            # The slot may name an amendment that we have not read yet; it must not be taken back.
            me = self.registered()
            named = me.slot.amendment if me is not None and me.slot is not None else None
            amendment = named or self.run.head
        return _paid(lambda: self.doors.chain.publish(encode_slot(self.doors.pointer, statement, amendment)))

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        """Set our weights; the block of the set, or of the sealed commit of them."""
        return _paid(lambda: self.doors.chain.set_weights(weights))

    def registered(self) -> Peer | None:
        """Ourselves as the chain sees us, None when the hotkey is not registered."""
        return next((peer for peer in self.doors.chain.peers(self.head()) if peer.id == self.me), None)


def _paid(call: Callable[[], int]) -> int:
    """Make a call that may cost a fee. Raises ConfigError when nobody can pay it: no later call would fare better."""
    try:
        return call()
    except ChainError as fault:
        if fault.code == NO_FEE:
            raise ConfigError(str(fault)) from None
        raise
