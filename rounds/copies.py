"""Copies: a validator's share of the mirror, put up beside the rounds (docs/protocol.md section 6).

Nobody waits for a copy: whoever approves a record holds what it names. What goes up are the payloads for which this
validator is drawn, of records that it stands by or that are agreed, and whatever else it holds and somebody says that
it lacks, which no draw of mirrors and no server's answer can prevent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from loguru import logger

from gauntlet.agreement import COPIES, mirror_order
from gauntlet.checks import Gathered
from gauntlet.commitment import commitment
from node.events import round_seconds
from node.node import Node
from node.sources import Sources
from node.state import Payload
from node.wanted import Place, hear_wanted
from protocol.errors import StorageError
from protocol.messages import Reveal
from protocol.ports import Task
from protocol.types import DIGEST_BYTES, Digest, Peer, PeerId
from storage.mirror import Mirror

LOOK_BLOCKS = 2
"""So often validators are asked what they lack .."""
EVERYBODY_LOOKS = 8
""".. and every so many times everybody else: who follows has a round's time, who approves has not."""
HEAR_SECONDS = 5.0
"""So long at most: meanwhile nothing is copied, and there are servers that only stall."""
ROUNDS = 2
"""What was begun goes on for so many rounds, if the validator comes to no other meanwhile."""


@dataclass(frozen=True, slots=True)
class Held:
    """A sealed object that is on our disk. envelope: the digest that pins it. reveal: as its owner published it, or
    with its key alone; None where there is none. rank: our place among those who copy it, None when we are not drawn,
    or where that is not known any more. named: whether a record names it."""

    envelope: Digest
    reveal: bytes | None
    rank: int | None = None
    named: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether we copy it unasked."""
        return self.named and self.rank is not None and self.rank < COPIES


class Copies:
    """One validator's copies. What it can copy follows from its disk: after a restart, too, what was applied since the
    last snapshot is given to whoever lacks it. Of earlier rounds it only forgets that it was drawn."""

    def __init__(self, node: Node, mirror: Mirror) -> None:
        self.node, self.mirror = node, mirror
        self._changed = node.time.condition()
        self._held: dict[Place, Held] = {}
        self._wanted: dict[PeerId, frozenset[Place]] = {}
        """What everybody said last."""
        self._up: set[Place] = set()
        """Payloads that our bucket has, and keys."""
        self._keys_up: set[Place] = set()
        self._round, self._at_commit, self._hash = -1, tuple[Peer, ...](), Digest(bytes(DIGEST_BYTES))
        self._sources: Sources | None = None
        self._task: Task | None = None
        self._until = 0.0
        self._looks = 0
        self._copied, self._seconds = 0, 0.0

    def hold(self, round: int, at_commit: Sequence[Peer], items: Sequence[Gathered]) -> None:
        """From now on we are asked for these submissions of `round`, which we have, and for what was applied before.
        Begins to copy and returns at once."""
        node, last = self.node, self.node.clock.commit_by(round)
        sources, commit_hash = node.sources(last), node.doors.chain.header(last).hash
        logged = {
            (step.round, payload.peer): Held(payload.envelope, _key_alone(node.run.id, step.round, payload))
            for step in node.held.saved.consensus.log
            for payload in step.payloads
        }
        with self._changed:
            self._held = {place: self._held.get(place, held) for place, held in logged.items()}
            self._round, self._at_commit, self._hash = round, tuple(at_commit), commit_hash
            self._sources, self._looks = sources, 0
            self._up &= self._held.keys()
            self._keys_up &= self._held.keys()
            self._wanted = {}
            self._copied, self._seconds = 0, 0.0
        self.add(items)
        self._go_on()

    def add(self, items: Sequence[Gathered]) -> None:
        """We have these as well."""
        round, last = self._round, self.node.clock.commit_by(self._round)
        ranks = self._ranks([item.peer.id for item in items])
        with self._changed:
            for item in items:
                promise = commitment(item.peer, round, last)
                if promise is not None:
                    self._held[round, item.peer.id] = Held(promise.envelope, item.reveal, ranks.get(item.peer.id))
            self._changed.notify_all()

    def name(self, round: int, pairs: Collection[tuple[PeerId, Digest]]) -> None:
        """A record names these: ours, one that we approve, or the agreed one. Our share of them goes up unasked."""
        if round != self._round:
            return  # decided while we were away: what somebody lacks of it, they will say
        ranks = self._ranks([peer for peer, _ in pairs])
        with self._changed:
            for peer, envelope in pairs:
                held = self._held.get((round, peer), Held(envelope, None, ranks.get(peer)))
                self._held[round, peer] = replace(held, named=True)
            self._changed.notify_all()

    def lacking(self, peer: PeerId) -> frozenset[PeerId]:
        """Who said that it lacks what this peer left in the round; nobody where our bucket has it."""
        place = self._round, peer
        with self._changed:
            if place in self._up:
                return frozenset()
            return frozenset(one for one, wanted in self._wanted.items() if place in wanted)

    def tell(self) -> None:
        """What was copied since `hold`."""
        with self._changed:
            copied, seconds = self._copied, self._seconds
        self.node.held.events.emit("mirrored", self._round, copies=copied, seconds={"mirror": round_seconds(seconds)})

    def _ranks(self, peers: Collection[PeerId]) -> dict[PeerId, int]:
        """Our place among those who copy each of these peers' payloads of this round."""
        drawn = mirror_order(self.node.run, self._round, self._hash, self._at_commit, peers)
        return {peer: order.index(self.node.me) for peer, order in drawn.items() if self.node.me in order}

    # --- beside the rounds -------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        node, clock = self.node, self.node.run.first.clock
        self._until = node.time.now() + ROUNDS * clock.round_blocks * clock.block_seconds
        if self._task is None or not self._task.is_alive():
            self._task = node.time.start(self._beside, "copies")

    def _beside(self) -> None:
        time, pause = self.node.time, LOOK_BLOCKS * self.node.run.first.clock.block_seconds
        while time.now() < self._until:
            self._hear(min(pause, HEAR_SECONDS))
            look_again = time.now() + pause
            self._put_up(look_again)
            with self._changed:
                if (left := look_again - time.now()) > 0:
                    self._changed.wait(left)

    def _hear(self, seconds: float) -> None:
        """Ask what others lack."""
        node, sources = self.node, self._sources
        assert sources is not None
        everybody = self._looks % EVERYBODY_LOOKS == 0
        self._looks += 1
        asked = [peer for peer in (sources.published() if everybody else sources.validators()) if peer != node.me]
        heard = hear_wanted(node.run.id, asked, sources, node.doors.verify, seconds, node.time)
        with self._changed:
            self._wanted |= heard

    def _put_up(self, until: float) -> None:
        """Keys first, since they are small, then payloads, until there is none left or it is time to ask again; one
        that was begun is brought to its end."""
        time, tried = self.node.time, set[Place]()
        try:
            for place, held in self._keys():
                assert held.reveal is not None
                self.mirror.copy_reveal(*place, held.reveal, timeout_seconds=self.node.transfer_seconds(1))
                with self._changed:
                    self._keys_up.add(place)
            while time.now() < until and (found := self._next(tried)) is not None:
                tried.add(found[0])
                self._copy(*found)
        except (StorageError, OSError) as fault:
            logger.warning("a copy does not get up, and is tried again: {fault}", fault=str(fault))

    def _keys(self) -> list[tuple[Place, Held]]:
        with self._changed:
            asked = self._asked
            return [
                (place, held)
                for place, held in sorted(self._held.items(), key=lambda one: one[0])
                if held.reveal is not None and place not in self._keys_up and (held.named or place in asked)
            ]

    def _next(self, tried: Collection[Place]) -> tuple[Place, Held] | None:
        """What to copy next: what somebody lacks, then our share, the newest round's first; where we were drawn first
        comes first, so that validators who are asked for the same do not all begin with the same. Whoever asks for
        everything makes us copy no more than a selection a round."""
        rules = self.node.run.first.gauntlet
        with self._changed:
            asked = self._asked if self._copied < rules.contributors + rules.reserve else set()
            due = [
                (place not in asked, -place[0], len(self._at_commit) if held.rank is None else held.rank, place, held)
                for place, held in self._held.items()
                if place not in self._up and place not in tried and (held.is_ours or place in asked)
            ]
        return min(due, key=lambda one: one[:4])[3:] if due else None

    @property
    def _asked(self) -> set[Place]:
        return set().union(*self._wanted.values())

    def _copy(self, place: Place, held: Held) -> None:
        node, mirror = self.node, self.mirror
        seconds = node.transfer_seconds(1)
        if not mirror.has(*place, node.run.first.object_bytes, timeout_seconds=seconds):
            path = node.held.sealed_file(*place, held.envelope)
            if path is None:
                return  # not fetched yet, or this disk has lost it
            with node.held.timeline.begin("mirror") as watch:
                mirror.copy(*place, path, timeout_seconds=seconds)
            with self._changed:
                self._copied += 1
                self._seconds += watch.seconds
        with self._changed:
            self._up.add(place)


def _key_alone(run: Digest, round: int, payload: Payload) -> bytes | None:
    """A reveal of which only the key is as its owner published it: it opens what the envelope pins, and counts as
    nobody's word (docs/protocol.md section 8)."""
    if payload.key is None:
        return None
    return Reveal(run, round, payload.peer, payload.key, Digest(bytes(DIGEST_BYTES))).encode()
