"""A miner's copies for nodes that list payloads as wanted (docs/protocol.md section 6). It copies payloads applied
since the last snapshot or shortly before, which every node that follows the run has on its disk.

Miners are the last resort: validators copy first, and miners follow one after the other, in an order drawn for each
payload. A miner must not lose its round by this: copies are uploaded while it would only wait, and few of them.
"""

from collections.abc import Collection, Iterable
from hashlib import sha256

from loguru import logger

from gauntlet.agreement import MEMORY_ROUNDS
from murmur.node.fetch.sources import Sources
from murmur.node.node import Node
from murmur.node.sync.repair_requests import Place
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId
from murmur.rounds.copies import Copier, HeldPayload
from storage.mirror import Mirror

LOOKS = 2
"""All peers are asked for their wanted lists this many times in a round."""
FIRST_LOOK = 2
"""The look in which the first miner's turn comes: the validators' copies are published by then. For a payload that a
validator lacks, the number of miners that have their turn grows with every further look, of this round or the next ones
.."""
GROWTH = 4
""".. by this factor: 256 miners in the sixth look."""


class RepairAnswers(Copier):
    """One miner's copies."""

    def __init__(self, node: Node, mirror: Mirror) -> None:
        super().__init__(node, mirror)
        self._times_lacked: dict[Place, int] = {}
        """In how many consecutive looks a node lacked it."""
        self._before: dict[Place, tuple[PeerId, ...]] = {}
        """The miners whose turn comes before ours."""
        self._put_off: set[Place] = set()
        """Payloads that a node before us has published in this round."""
        self._shown: dict[Place, set[PeerId]] = {}
        """Nodes that showed a copy when our turn came. If the payload is still wanted a round later, they do not really
        serve it."""
        self._favours = 0
        """Copies in this round."""

    def answer(self, round: int) -> None:
        """Copy payloads that nodes lack: our part in `round` is done, and nothing of the next one is uploaded before
        the vote deadline. Returns at once."""
        node, clock = self.node, self.node.clock
        try:
            last = clock.commit_deadline(round)
            sources, commit_hash = node.sources(last), node.ports.chain.header(last).hash
            seconds = node.seconds_until(clock.vote_deadline(round))
        except ChainError as fault:
            logger.debug(
                "round {round}: cannot read which payloads others lack: {fault}", round=round, fault=str(fault)
            )
            return
        if self._copied:
            self.tell()
        with self._changed:
            self._turn_to(round, commit_hash, sources, self._applied())
            self._pause = seconds / LOOKS
            self._before, self._put_off, self._favours = {}, set(), 0
            self._shown = {place: shown for place, shown in self._shown.items() if place in self._held}
        self._go_on(seconds)

    def _ask(self, sources: Sources) -> Iterable[PeerId]:
        return sources.published()

    def _hear(self, seconds: float) -> None:
        super()._hear(seconds)
        with self._changed:
            asked = self._asked_by_validators.union(self._asked_by_others)
            self._times_lacked = {place: self._times_lacked.get(place, 0) + 1 for place in asked & self._held.keys()}

    def _due(self) -> list[Place]:
        """Return the places whose turn it is, in order. First those that validators lack, which have posted votes for
        it. Then those where we come first, so that miners asked for everything do not all begin with the same one. Of
        what only others lack, only the first miner in the round's order has its turn."""
        by_validators = self._asked_by_validators
        due = []
        for place, times in self._times_lacked.items():
            rank, others_alone = len(self._miners_before(place)), place not in by_validators
            turns = 1 if others_alone else GROWTH ** max(0, times - FIRST_LOOK)
            if times >= FIRST_LOOK and rank < turns and place not in self._put_off:
                due.append((others_alone, rank, place))
        return [place for *_, place in sorted(due)]

    def _miners_before(self, place: Place) -> tuple[PeerId, ...]:
        if place not in self._before:
            sources, since = self._sources, max(0, self._round - MEMORY_ROUNDS)
            assert sources is not None
            label = b"answer" + self.node.run.id + self._hash + place[0].to_bytes(4, "little") + place[1]
            miners = [one for one in sources.others() if sources.committed_in(one) >= since]
            drawn = sorted((sha256(label + one).digest(), one) for one in {*miners, self.node.me})
            order = [one for _, one in drawn]
            self._before[place] = tuple(order[: order.index(self.node.me)])
        return self._before[place]

    def _keys_due(self) -> Iterable[Place]:
        return self._due()

    def _next(self, tried: Collection[Place]) -> tuple[Place, HeldPayload] | None:
        with self._changed:
            due = [place for place in self._due() if place not in self._up and place not in tried]
            return (due[0], self._held[due[0]]) if due and self._favours < self._share else None

    def _copy(self, place: Place, held: HeldPayload) -> None:
        if not self._is_up_elsewhere(place, held):
            super()._copy(place, held)

    def _is_up_elsewhere(self, place: Place, held: HeldPayload) -> bool:
        """Whether a node before us shows a copy that it did not show a round ago. Then we wait for the next round: the
        node that asked has it by then, or was shown something else."""
        sources, shown = self._sources, self._shown.setdefault(place, set())
        assert sources is not None
        first = [one for one in (*sources.validators(), *self._miners_before(place)) if one not in shown]
        found = self._who_shows(place, held, first)
        shown.update(found)
        with self._changed:
            if found:
                self._put_off.add(place)
        return bool(found)

    def _upload_seconds(self) -> float:
        """Return the time-out of one upload, at most the time until our own next payload may need the link."""
        return min(super()._upload_seconds(), self._until - self.node.time.now())

    def _count(self, place: Place, held: HeldPayload) -> None:
        self._favours += 1
