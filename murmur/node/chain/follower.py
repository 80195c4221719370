"""Follow the chain: await its blocks, read agreed selections, write our own slot. Of the run's state it knows the
amendments only; murmur/node/node.py acts on the decisions."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Agreed
from murmur.node.chain.agreement import Agreement
from murmur.node.chain.retrying_chain import RetryingChain
from murmur.node.config.ports import Ports
from murmur.node.fetch.credentials import Credentials
from murmur.node.fetch.sources import Sources, sources_as_of
from murmur.node.telemetry.events import Timeline
from murmur.protocol.errors import ChainError, ConfigError
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Header, Peer, Selection, Uid, Vote

QUIET_SECONDS = 2.0
"""Longer waits are logged."""
PATIENCE = 1.25
"""A wait for a block times out after this many times its planned length plus the chain's time-out. Then a warning says
that the chain does not advance, and the wait is retried."""
NO_FEE = "Payment"
"""`ChainError.code` of a call whose fee the hotkey's owner cannot pay."""
RETURN_BLOCKS = 2
"""Statements that a fork has dropped mostly come back by themselves within this many blocks."""
STALL_SECONDS = 1.0
"""Pause between two tries to reach a chain that does not answer."""


class Follower:
    """One node's view of a run's chain. Everything that blocks has a deadline from the round clock."""

    def __init__(self, run: Run, ports: Ports, timeline: Timeline) -> None:
        self.run, self.timeline = run, timeline
        self.clock = run.clock
        patient = RetryingChain(ports.chain, run.clock, run.first.clock.block_seconds, ports.time)
        self.ports = replace(ports, chain=patient)
        self.me = ports.signer.peer
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
        began, clock = self.time.now(), self.run.first.clock
        told = False
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
                return self.ports.chain.wait(block, PATIENCE * expected + 30)
            except ChainError as fault:
                if self._passed(block):
                    # It is final, so the chain is not the cause of the wait. Try once more, then the caller has to
                    # know.
                    self.time.sleep(STALL_SECONDS)
                    return self.ports.chain.header(block)
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
        return _paid(lambda: self.ports.chain.publish(encode_slot(self.ports.pointer, statement, amendment)))

    def set_weights(self, weights: Mapping[Uid, float]) -> int:
        """Set our weights; return the block of the set, or of the sealed commit of them."""
        return _paid(lambda: self.ports.chain.set_weights(weights))

    def registered(self) -> Peer | None:
        """Return our peer as the chain shows it; None when the hotkey is not registered."""
        return next((peer for peer in self.ports.chain.peers(self.head()) if peer.id == self.me), None)


def _paid(call: Callable[[], int]) -> int:
    """Make a call that may cost a fee. Raises ConfigError if the fee cannot be paid: a retry would not help."""
    try:
        return call()
    except ChainError as fault:
        if fault.code == NO_FEE:
            raise ConfigError(str(fault)) from None
        raise
