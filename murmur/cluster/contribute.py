"""What a member sends in a round: its inner steps, its sealed update, and its claim."""

from collections.abc import Callable, Sequence

from loguru import logger

from murmur.cluster.ledger import Ledger
from murmur.cluster.mean_parts import MeanMaker
from murmur.data.shards import Shards
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import SealedRound
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.assignment import assigned
from murmur.protocol.cluster import Claim, ClusterSpec
from murmur.protocol.spec import InnerSpec
from murmur.protocol.types import Digest, Page
from murmur.rounds.contribution import Diverged, RoundWork


class Contributor:
    """Makes and sends one member's updates. seconds: time-out of one try to send one. maker: in the int8 exchange."""

    def __init__(
        self, ledger: Ledger, state: NodeState, shards: Shards, maker: MeanMaker | None, seconds: float
    ) -> None:
        self._ledger, self._state, self._maker, self._seconds = ledger, state, maker, seconds
        self._work = RoundWork(
            state,
            shards,
            ledger.bucket,
            ledger.group.signer(ledger.me),
            ledger.time,
            lambda round, key: ledger.payload_key(round, ledger.me, key),
        )
        self.step_seconds: float | None = None
        """Seconds of one inner step, in the last round that we trained."""
        self._sending = 0.0
        """Seconds from our last inner step to our claim, the last time."""
        self._trained_at: float | None = None
        self._tried: Digest | None = None
        """The last update that this process has begun to send."""

    def pages(self, spec: ClusterSpec, link: Digest) -> tuple[Page, ...]:
        """Return the pages that are ours in a round, drawn from the link of the record before it; their text is here
        then. Raises StorageError."""
        pages = assigned(
            self._ledger.run,
            link,
            self._ledger.me,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )
        self._work.hold(pages)
        return pages

    def train(
        self,
        round: int,
        pages: Sequence[Page],
        inner: InnerSpec,
        least: int,
        stopped: Callable[[], bool],
        trained: Callable[[], None],
    ) -> SealedRound | None:
        """Run inner steps until `stopped`, called after each, returns true; return the update that they give, sealed
        and on this disk. None if there are fewer than `least`, or they have diverged. trained: called when they are
        done. Raises StorageError."""
        training = self._work.training(round, pages, inner)
        done = training.go_on(stopped)
        self.step_seconds = training.seconds / done if done else None
        training.end()
        self._trained_at = self._ledger.time.now()
        trained()
        if done < least:
            logger.warning("round {round}: {done} steps are too few to send anything", round=round, done=done)
            return None
        try:
            return self._work.seal(round, self._work.compress(), lambda: self._seconds)
        except Diverged as fault:
            logger.error("round {round}: {fault}; sending nothing", round=round, fault=str(fault))
            self._state.events.emit("interrupted", round, fault=str(fault))
            return None

    def send(self, round: int, sealed: SealedRound) -> None:
        """Upload the update, and say that it is there, with what opens it. An update that was sealed before a crash is
        sent unchanged. Raises StorageError."""
        tried, self._tried = self._tried, sealed.object
        # It may be there since before this process began, or what comes after it may have failed.
        if tried not in (None, sealed.object) or not self._work.is_published(round, sealed):
            self._work.publish(round, sealed, lambda: self._seconds)
        if self._maker is not None:
            self._maker.publish_blocks(round, sealed.object, sealed.key)
        theta, link = self._state.ref
        envelope = self._work.envelope_digest(sealed)
        claim = Claim(
            theta=theta,
            previous=link,
            envelope=envelope,
            key=self._ledger.group.wrap(sealed.key, envelope).hex(),
            steps=sealed.steps,
            seconds=round_seconds(sealed.seconds),
            sending=round_seconds(self._sending),
            loss=sealed.loss,
        )
        self._ledger.claim(round, claim)
        if self._trained_at is not None:
            self._sending, self._trained_at = self._ledger.time.now() - self._trained_at, None
        self._state.events.emit("claimed", round, steps=sealed.steps)
