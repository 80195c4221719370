"""Copies of payloads on this node's disk, published during the rounds (docs/protocol.md section 6).

No node waits for a copy: a validator that names a peer holds its payload. A validator copies two kinds of payloads.
First those for which it is drawn, among the ones that it names first or that are agreed. Second any that it holds and
another validator lists as wanted: neither the draw of mirrors nor a server's answer can prevent that. Anybody can
register hotkeys that want everything, so the lists of all others together count for at most a selection a round. Of
this round's payloads, validators copy what they want one after the other, and only what none before shows; of older
rounds, one drawn validator does. A miner's copies: murmur/rounds/repair_answers.py.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256

from loguru import logger

from gauntlet.agreement import COPIES, MEMORY_ROUNDS, answering, mirror_order
from gauntlet.checks import Gathered
from gauntlet.commitment import commitment
from murmur.node.fetch.selected import ASK_SECONDS, who_shows
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
        self._asked_by_others: list[Place] = []
        """Of these lists, what peers want that do not count as validators, as far as all nodes together give it."""
        self._up: set[Place] = set()
        """Payloads in our bucket, and below their keys."""
        self._keys_up: set[Place] = set()
        self._round, self._hash = -1, Digest(bytes(DIGEST_BYTES))
        """The round, and the hash of its commit deadline's block."""
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

    def _turn_to(self, round: int, commit_hash: Digest, sources: Sources, held: Mapping[Place, HeldPayload]) -> None:
        """Turn to this round, with these sources and held payloads. Call it with the lock."""
        self._round, self._hash, self._sources, self._held = round, commit_hash, sources, held
        self._up &= held.keys()
        self._keys_up &= held.keys()
        self._wanted, self._asked_by_others, self._looks = {}, [], 0
        self._copied, self._seconds = 0, 0.0

    @property
    def _share(self) -> int:
        """As many payloads as a round may select and keep in reserve."""
        rules = self.node.run.first.gauntlet
        return rules.contributors + rules.reserve

    @property
    def _asked_by_validators(self) -> set[Place]:
        assert self._sources is not None
        return set().union(*(self._wanted.get(one, ()) for one in self._sources.validators()))

    def _drawn_of_others(self) -> list[Place]:
        """Return what peers list that do not count as validators, at most a selection of all that they list. The peers
        have their turn in an order drawn for the round, each for one round's payloads: a node that lacks more comes
        again. A peer that has not committed lately is given this round's only: a joiner starts from a checkpoint."""
        assert self._sources is not None
        validators, found = set(self._sources.validators()), dict[Place, None]()
        since = self._round - MEMORY_ROUNDS
        for peer in sorted(self._wanted.keys() - validators, key=lambda one: sha256(self._hash + one).digest()):
            first = self._round if self._sources.committed_in(peer) < max(0, since) else 0
            held = sorted(place for place in self._wanted[peer] if place in self._held and place[0] >= first)
            found |= dict.fromkeys(place for place in held if place[0] == held[0][0])
        return list(found)[: self._share]

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
            self._asked_by_others = self._drawn_of_others()

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

    def _who_shows(self, place: Place, held: HeldPayload, asked: Sequence[PeerId]) -> list[PeerId]:
        """Return those of these peers that show a copy."""
        node, sources = self.node, self._sources
        assert sources is not None
        size = node.run.first.object_bytes
        return who_shows(node.run.id, *place, held.envelope, size, asked, sources, ASK_SECONDS, node.time)

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


class Asked(Enum):
    """Why a payload is copied that is not in our share. Each has as many copies a round as a selection has, but for
    what validators want of those named in the round: these are a selection or two."""

    STANDING = "a validator lacks it, and it is named in this round"
    THIS_ROUND = "a validator lacks it, and it is of this round"
    OLDER = "a validator lacks it, and it is of an older round"
    BY_OTHERS = "another peer lacks it, and it is our turn"


class ValidatorCopies(Copier):
    """One validator's copies. For earlier rounds it forgets only that it was drawn."""

    def __init__(self, node: Node, mirror: Mirror) -> None:
        super().__init__(node, mirror)
        self._held: dict[Place, HeldPayload] = {}
        self._at_commit = tuple[Peer, ...]()
        self._answers = False
        """Whether we are drawn to copy in this round what peers that do not count lack of older rounds."""
        self._everybody_asked = 0
        """How often in this round."""
        self._put_off: set[Place] = set()
        """What a validator before us has published in this round."""
        self._favours = Counter[Asked]()
        """Copies in this round made only because a peer asked."""

    def hold(self, round: int, at_commit: Sequence[Peer], items: Sequence[Gathered]) -> None:
        """Serve these submissions of `round`, which we have, and the payloads applied before. Starts copying and
        returns at once."""
        node, last, clock = self.node, self.node.clock.commit_deadline(round), self.node.run.first.clock
        sources, commit_hash, applied = node.sources(last), node.ports.chain.header(last).hash, self._applied()
        with self._changed:
            held = {place: _both(self._held.get(place), found) for place, found in applied.items()}
            self._turn_to(round, commit_hash, sources, held)
            self._at_commit, self._favours = tuple(at_commit), Counter()
            self._everybody_asked, self._put_off = 0, set()
            self._answers = answering(node.run, round, commit_hash, at_commit) == node.me
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
        everybody = self._looks % EVERYBODY_LOOKS == 0
        self._everybody_asked += everybody
        return sources.published() if everybody else sources.validators()

    @property
    def _asked_of_us(self) -> dict[Place, Asked]:
        """Return what peers want of us, each for the first reason that holds."""
        found = {place: Asked.BY_OTHERS for place in self._asked_by_others if self._has_turn(place)}
        for place in self._asked_by_validators & self._held.keys():
            now = place[0] == self._round
            standing = now and self._held[place].named
            found[place] = Asked.STANDING if standing else Asked.THIS_ROUND if now else Asked.OLDER
        return found

    def _has_turn(self, place: Place) -> bool:
        """Whether we copy it for peers that do not count. Of this round, the first validator after those that copy it
        unasked has its turn when everybody was asked twice: their copies are up by then."""
        if place[0] != self._round:
            return self._answers
        rank = self._held[place].rank
        return rank is not None and rank < COPIES - 1 + self._everybody_asked and place not in self._put_off

    def _keys_due(self) -> Iterable[Place]:
        asked = self._asked_of_us
        due = [(not held.named, -place[0], place) for place, held in self._held.items() if held.named or place in asked]
        return [place for *_, place in sorted(due)]

    def _next(self, tried: Collection[Place]) -> tuple[Place, HeldPayload] | None:
        """Return the payload to copy next. First payloads that validators list as wanted: of those first the ones named
        in this round, a selection or two; then others of this round; then applied ones, the newest first. Then what
        other peers want. Last our own share. Lower ranks come first, so that validators asked for the same do not all
        begin with the same payload. No reason takes the copies of another: a peer that asks for everything takes no
        place from a payload that is really missing."""
        with self._changed:
            asked, due = self._asked_of_us, []
            for place, held in self._held.items():
                if place in self._up or place in tried:
                    continue
                why = asked.get(place)
                favour = why is Asked.STANDING or (why is not None and self._favours[why] < self._share)
                if favour or held.is_ours:
                    rank = len(self._at_commit) if held.rank is None else held.rank
                    order = not favour, why is Asked.BY_OTHERS, -place[0], not held.named, rank
                    due.append((order, place, held))
        return min(due, key=lambda one: one[0])[1:] if due else None

    def _copy(self, place: Place, held: HeldPayload) -> None:
        with self._changed:
            doubted = not held.is_ours and place[0] == self._round and self._asked_of_us.get(place) is Asked.BY_OTHERS
        if doubted and self._who_shows(place, held, self._validators_before(place)):
            with self._changed:
                self._put_off.add(place)
        else:
            super()._copy(place, held)

    def _validators_before(self, place: Place) -> tuple[PeerId, ...]:
        order = mirror_order(self.node.run, self._round, self._hash, self._at_commit, [place[1]])[place[1]]
        return order[: order.index(self.node.me)] if self.node.me in order else order

    def _count(self, place: Place, held: HeldPayload) -> None:
        if not held.is_ours:
            self._favours[self._asked_of_us.get(place, Asked.BY_OTHERS)] += 1


def _both(known: HeldPayload | None, logged: HeldPayload) -> HeldPayload:
    """Merge two entries of an applied payload: it may have been named before we had it, and without its key."""
    return logged if known is None else replace(known, reveal=known.reveal or logged.reveal)


def _key_alone(run: Digest, round: int, payload: Payload) -> bytes | None:
    """Return a reveal of which only the key is as its owner published it. The key opens the object that the envelope
    pins; the rest is no statement of the peer (docs/protocol.md section 8)."""
    if payload.key is None:
        return None
    return Reveal(run, round, payload.peer, payload.key, Digest(bytes(DIGEST_BYTES))).encode()
