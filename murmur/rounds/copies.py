"""Copies of payloads on this node's disk, published during the rounds (docs/protocol.md section 6).

No node waits for a copy: a validator that names a peer holds its payload. A validator copies two kinds of payloads.
First those for which it is drawn, among the ones that it names first or that are agreed. Second any that it holds and
another node lists as wanted: neither the draw of mirrors nor a server's answer can prevent that. A miner's copies:
murmur/rounds/repair_answers.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loguru import logger

from gauntlet.agreement import COPIES, mirror_order
from gauntlet.checks import Gathered
from gauntlet.commitment import commitment
from murmur.node.fetch.sources import Sources
from murmur.node.node import Node
from murmur.node.state.saved import Payload
from murmur.node.sync.repair_requests import Place, hear_wanted
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.errors import StorageError
from murmur.protocol.messages import Reveal
from murmur.protocol.ports import Task
from murmur.protocol.types import DIGEST_BYTES, Digest, Peer, PeerId
from storage.mirror import Mirror

LOOK_BLOCKS = 2
"""Validators are asked for their wanted lists every this many blocks .."""
EVERYBODY_LOOKS = 8
""".. and all other peers in one of this many askings: a follower has a round's time, a validator with a vote to post
has not."""
HEAR_SECONDS = 5.0
"""Time limit of one asking: meanwhile nothing is copied, and some servers only stall."""
ROUNDS = 2
"""Copying of a round continues for this many rounds, unless the validator starts another round meanwhile."""


@dataclass(frozen=True, slots=True)
class HeldPayload:
    """A sealed object on our disk. envelope: the digest that pins it. reveal: as its owner published it, or with its
    key alone; None if there is none. rank: our place among the validators that copy it; None if we are not drawn, or if
    that is not known any more. named: whether we name it among the first, or it is agreed."""

    envelope: Digest
    reveal: bytes | None
    rank: int | None = None
    named: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether we copy it unasked."""
        return self.named and self.rank is not None and self.rank < COPIES


class Copier(ABC):
    """Copies payloads during a node's rounds. Its sources are on its disk: after a restart, too, it copies payloads
    applied since the last snapshot for nodes that lack them."""

    def __init__(self, node: Node, mirror: Mirror) -> None:
        self.node, self.mirror = node, mirror
        self._changed = node.time.condition()
        self._held: Mapping[Place, HeldPayload] = {}
        self._wanted: dict[PeerId, frozenset[Place]] = {}
        """The last wanted list of each peer."""
        self._up: set[Place] = set()
        """Payloads in our bucket, and below their keys."""
        self._keys_up: set[Place] = set()
        self._round = -1
        self._sources: Sources | None = None
        self._task: Task | None = None
        self._until = 0.0
        self._pause = LOOK_BLOCKS * node.run.first.clock.block_seconds
        """Seconds between two askings."""
        self._looks = 0
        self._copied, self._seconds = 0, 0.0

    def tell(self) -> None:
        """Emit how much was copied since the round's copies began."""
        with self._changed:
            copied, seconds = self._copied, self._seconds
        self.node.state.events.emit("mirrored", self._round, copies=copied, seconds={"mirror": round_seconds(seconds)})

    def _applied(self) -> dict[Place, HeldPayload]:
        """Return the payloads applied since our last snapshot, or shortly before."""
        state = self.node.state
        rounds = state.redo.recent | {step.round: step.payloads for step in state.saved.consensus.log}
        return {
            (round, payload.peer): HeldPayload(payload.envelope, _key_alone(self.node.run.id, round, payload))
            for round, payloads in rounds.items()
            for payload in payloads
        }

    def _turn_to(self, round: int, sources: Sources, held: Mapping[Place, HeldPayload]) -> None:
        """Turn to this round, with these sources and held payloads. Call it with the lock."""
        self._round, self._sources, self._held = round, sources, held
        self._up &= held.keys()
        self._keys_up &= held.keys()
        self._wanted, self._looks = {}, 0
        self._copied, self._seconds = 0, 0.0

    @property
    def _share(self) -> int:
        """As many payloads as a round may select and keep in reserve."""
        rules = self.node.run.first.gauntlet
        return rules.contributors + rules.reserve

    @property
    def _asked(self) -> set[Place]:
        return set().union(*self._wanted.values())

    @property
    def _asked_by_validators(self) -> set[Place]:
        assert self._sources is not None
        return set().union(*(self._wanted.get(one, ()) for one in self._sources.validators()))

    # --- background tasks --------------------------------------------------------------------------------------

    def _go_on(self, seconds: float) -> None:
        """Copy for `seconds` from now on."""
        self._until = self.node.time.now() + seconds
        if self._task is None or not self._task.is_alive():
            self._task = self.node.time.start(self._in_background, "copies")

    def _in_background(self) -> None:
        time = self.node.time
        while time.now() < self._until:
            self._hear(min(self._pause / 2, HEAR_SECONDS))
            look_again = time.now() + self._pause
            self._put_up(min(look_again, self._until))
            with self._changed:
                if (left := look_again - time.now()) > 0:
                    self._changed.wait(left)

    def _hear(self, seconds: float) -> None:
        """Read other nodes' wanted lists."""
        node, sources = self.node, self._sources
        assert sources is not None
        asked = [peer for peer in self._ask(sources) if peer != node.me]
        self._looks += 1
        heard = hear_wanted(node.run.id, asked, sources, node.ports.verify, seconds, node.time)
        with self._changed:
            self._wanted |= heard

    def _put_up(self, until: float) -> None:
        """Copy payloads until none is left or it is time to ask again; a copy that was started is finished. Keys go
        before each payload, since they are small."""
        time, tried = self.node.time, set[Place]()
        try:
            while True:
                self._put_up_keys()
                if time.now() >= until or (found := self._next(tried)) is None:
                    return
                tried.add(found[0])
                self._copy(*found)
        except StorageError as fault:
            logger.warning("could not upload a copy: {fault}; trying again", fault=str(fault))

    def _put_up_keys(self) -> None:
        """Publish keys that are due, at most as many as a selection has: a peer that asks for all our keys must not
        delay a payload for long."""
        with self._changed:
            due = [(place, self._held[place].reveal) for place in self._keys_due() if place not in self._keys_up]
        for place, reveal in [(place, reveal) for place, reveal in due if reveal is not None][: self._share]:
            self.mirror.copy_reveal(*place, reveal, timeout_seconds=self._upload_seconds())
            with self._changed:
                self._keys_up.add(place)

    def _copy(self, place: Place, held: HeldPayload) -> None:
        node, mirror = self.node, self.mirror
        if not mirror.has(*place, node.run.first.object_bytes, timeout_seconds=self._upload_seconds()):
            path = node.state.sealed_file(*place, held.envelope)
            if path is None:
                return  # not fetched yet, or lost on this disk
            with node.state.timeline.begin("mirror") as watch:
                try:
                    mirror.copy(*place, path, timeout_seconds=self._upload_seconds())
                except OSError as fault:  # moved meanwhile, or unreadable: other copies continue
                    logger.warning("could not upload a copy: {fault}; trying again later", fault=str(fault))
                    return
            with self._changed:
                self._copied += 1
                self._seconds += watch.seconds
                self._count(place, held)
        with self._changed:
            self._up.add(place)

    def _upload_seconds(self) -> float:
        """Return the time-out of one upload."""
        return self.node.transfer_seconds(1)

    # --- choice of copies --------------------------------------------------------------------------------------

    @abstractmethod
    def _ask(self, sources: Sources) -> Iterable[PeerId]:
        """Return the peers to ask in this look for their wanted lists."""

    @abstractmethod
    def _keys_due(self) -> Iterable[Place]:
        """Return the held payloads whose keys are to be published, the first to go first; published ones may be among
        them."""

    @abstractmethod
    def _next(self, tried: Collection[Place]) -> tuple[Place, HeldPayload] | None:
        """Return the payload to copy next, none of those tried in this look."""

    @abstractmethod
    def _count(self, place: Place, held: HeldPayload) -> None:
        """Count a finished copy. Called with the lock."""


class ValidatorCopies(Copier):
    """One validator's copies. For earlier rounds it forgets only that it was drawn."""

    def __init__(self, node: Node, mirror: Mirror) -> None:
        super().__init__(node, mirror)
        self._held: dict[Place, HeldPayload] = {}
        self._at_commit, self._hash = tuple[Peer, ...](), Digest(bytes(DIGEST_BYTES))
        self._favours = {True: 0, False: 0}
        """Copies in this round made only because a peer asked: of payloads of this round, and of older ones."""

    def hold(self, round: int, at_commit: Sequence[Peer], items: Sequence[Gathered]) -> None:
        """Serve these submissions of `round`, which we have, and the payloads applied before. Starts copying and
        returns at once."""
        node, last, clock = self.node, self.node.clock.commit_deadline(round), self.node.run.first.clock
        sources, commit_hash, applied = node.sources(last), node.ports.chain.header(last).hash, self._applied()
        with self._changed:
            held = {place: _both(self._held.get(place), found) for place, found in applied.items()}
            self._turn_to(round, sources, held)
            self._at_commit, self._hash = tuple(at_commit), commit_hash
            self._favours = {True: 0, False: 0}
        self.add(items)
        self._go_on(ROUNDS * clock.round_blocks * clock.block_seconds)

    def add(self, items: Sequence[Gathered]) -> None:
        """Serve these submissions too."""
        round, last = self._round, self.node.clock.commit_deadline(self._round)
        ranks = self._ranks([item.peer.id for item in items])
        with self._changed:
            for item in items:
                promise = commitment(item.peer, round, last)
                if promise is not None:
                    self._held[round, item.peer.id] = HeldPayload(
                        promise.envelope, item.reveal, ranks.get(item.peer.id)
                    )
            self._changed.notify_all()

    def name(self, round: int, pairs: Collection[tuple[PeerId, Digest]]) -> None:
        """Mark these payloads as named: we name them first, or they are agreed. Our share of them is copied unasked."""
        if round != self._round:
            return  # decided while we were away: nodes that lack it will ask
        ranks = self._ranks([peer for peer, _ in pairs])
        with self._changed:
            for peer, envelope in pairs:
                held = self._held.get((round, peer), HeldPayload(envelope, None, ranks.get(peer)))
                self._held[round, peer] = replace(held, named=True)
            self._changed.notify_all()

    def _ranks(self, peers: Collection[PeerId]) -> dict[PeerId, int]:
        """Return our place among the validators that copy each of these peers' payloads of this round."""
        drawn = mirror_order(self.node.run, self._round, self._hash, self._at_commit, peers)
        return {peer: order.index(self.node.me) for peer, order in drawn.items() if self.node.me in order}

    # --- choice of copies --------------------------------------------------------------------------------------

    def _ask(self, sources: Sources) -> Iterable[PeerId]:
        return sources.published() if self._looks % EVERYBODY_LOOKS == 0 else sources.validators()

    def _keys_due(self) -> Iterable[Place]:
        asked = self._asked
        due = [(not held.named, -place[0], place) for place, held in self._held.items() if held.named or place in asked]
        return [place for *_, place in sorted(due)]

    def _next(self, tried: Collection[Place]) -> tuple[Place, HeldPayload] | None:
        """Return the payload to copy next. First payloads that a node lists as wanted: of those first the ones named in
        this round, a selection or two; then others of this round that validators lack; then applied ones, the newest
        first. Last our own share. Lower ranks come first, so that validators asked for the same do not all begin with
        the same payload."""
        with self._changed:
            asked, early, due = self._asked, self._asked_by_validators, []
            for place, held in self._held.items():
                if place in self._up or place in tried:
                    continue
                favour = place in asked and (self._is_standing(place, held) or self._is_favoured(place, early))
                if favour or held.is_ours:
                    rank = len(self._at_commit) if held.rank is None else held.rank
                    due.append((not favour, -place[0], not held.named, rank, place, held))
        return min(due, key=lambda one: one[:5])[4:] if due else None

    def _is_standing(self, place: Place, held: HeldPayload) -> bool:
        """Whether it is named in this round."""
        return held.named and place[0] == self._round

    def _is_favoured(self, place: Place, early: Collection[Place]) -> bool:
        """Whether we copy it only because a peer asked. Of this round, at most as many as a selection has, and only
        those that a validator lacks: no other node can lack them yet. Of older rounds, the same number. Neither takes
        the other's places, nor those of named payloads: a peer that asks for everything takes no place from a payload
        that is really missing."""
        now = place[0] == self._round
        return self._favours[now] < self._share and (not now or place in early)

    def _count(self, place: Place, held: HeldPayload) -> None:
        if not (held.is_ours or self._is_standing(place, held)):
            self._favours[place[0] == self._round] += 1


def _both(known: HeldPayload | None, logged: HeldPayload) -> HeldPayload:
    """Merge two entries of an applied payload: it may have been named before we had it, and without its key."""
    return logged if known is None else replace(known, reveal=known.reveal or logged.reveal)


def _key_alone(run: Digest, round: int, payload: Payload) -> bytes | None:
    """Return a reveal of which only the key is as its owner published it. The key opens the object that the envelope
    pins; the rest is no statement of the peer (docs/protocol.md section 8)."""
    if payload.key is None:
        return None
    return Reveal(run, round, payload.peer, payload.key, Digest(bytes(DIGEST_BYTES))).encode()
