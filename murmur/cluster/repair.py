"""Repair of a cluster's bucket: members ask for what it has lost, and those that hold it put it back.

A payload's key never changes (murmur/protocol/keys.py), so any member that holds it restores the identical bytes;
readers check them by digest. A record is created only if there is none; only an object that is no record is replaced.
"""

from collections import Counter
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path

from loguru import logger

from murmur.cluster.decide import turns
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.cluster.on_disk import OnDisk
from murmur.cluster.pace import SLOWEST_BYTES
from murmur.node.fetch.opening import open_threads
from murmur.node.state.node_state import NodeState
from murmur.node.sync.repair_requests import Place
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Claim, ClusterSpec, MeanPart, Record
from murmur.protocol.types import Digest, PeerId
from storage.resume import mapped
from storage.seal import blocks_of

AGAIN_LOOKS = 3
"""An object that was restored and is still asked for is restored again after this many looks, then after twice as many,
and so on: who asks may be gone."""
MOST_DOUBLINGS = 10


class Wants:
    """What we lack, as the other members read it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._published: frozenset[Place] | None = None
        """None if the list may be from an earlier start."""

    def publish(self, round: int, peers: Collection[PeerId]) -> None:
        """Publish that we lack the updates of these members in the round, or its record (GROUP); again at every try,
        since the store may lose that too. Raises StorageError."""
        wants = frozenset((round, peer) for peer in peers)
        if wants != self._published:
            logger.info(
                "round {round}: the bucket has lost {count} of its objects: asking other members for them",
                round=round,
                count=len(wants),
            )
        self._published = wants
        self._ledger.want(wants)

    def clear(self) -> None:
        """Empty our list: we have all that we lacked. Raises StorageError."""
        if self._published != frozenset():
            self._ledger.want(())
            self._published = frozenset()


class Repair:
    """Puts back what other members lack and we hold."""

    def __init__(
        self, spec: Callable[[], ClusterSpec], state: NodeState, ledger: Ledger, records: OnDisk[Record]
    ) -> None:
        self._spec, self._state, self._ledger, self._records = spec, state, ledger, records
        self._looks: dict[Place, int] = {}
        """In how many consecutive looks it was asked for."""
        self._restored = Counter[Place]()
        """How often we have restored what is still asked for."""
        self._again = set[tuple[Place, str]]()
        """Keys of objects that were asked for while the store showed them: they may be damaged there."""

    def answer(self, living: Collection[PeerId]) -> None:
        """Restore objects that a member lacks and we hold, one member after the other, in an order drawn for each
        object. living: the members whose programs run. Raises StorageError, OSError."""
        me = self._ledger.me
        asked = {place for places in self._ledger.wanted().values() for place in places}
        self._looks = {place: self._looks.get(place, 0) + 1 for place in asked}
        self._restored = Counter({place: times for place, times in self._restored.items() if place in asked})
        self._again = {one for one in self._again if one[0] in asked}
        for place, looks in sorted(self._looks.items()):
            drawn = Digest(sha256(place[0].to_bytes(4, "little") + place[1]).digest())
            turn = 0 if place[1] == me else turns(drawn, "repair", {*living, me}).index(me)
            if looks > turn and self._put_back(*place, first=not turn):
                self._looks[place] = -AGAIN_LOOKS * 2 ** min(self._restored[place], MOST_DOUBLINGS)
                self._restored[place] += 1

    def _put_back(self, round: int, peer: PeerId, *, first: bool) -> bool:
        """Restore the object; return whether to wait now for what that changes. first: whether it is our turn first."""
        record = self._records.find(round)
        if peer == GROUP:
            if record is not None:
                self._ledger.restore(round, record)
            return record is not None
        record = record or self._ledger.record(round)
        if record is None:
            return False
        claims: list[Claim | MeanPart] = [record.claims[peer]] if peer in record.claims else []
        if self._spec().exchange == "int8":
            claims += self._mean_part(round, peer, record)
        held = [self._put_object_back(round, peer, one, first=first) for one in claims]
        return any(held)

    def _mean_part(self, round: int, owner: PeerId, record: Record) -> list[MeanPart]:
        """Return the part of the record's mean, if it is there; if the store has lost the pointer, point to what we
        have applied since our start."""
        link = record.link(self._ledger.run, round)
        if found := self._ledger.mean_parts(round, link, [owner]):
            return [found[owner]]
        for payload in self._state.redo.recent.get(round, ()):
            if payload.peer == owner and payload.key is not None:
                wrapped = self._ledger.group.wrap(payload.key, payload.envelope).hex()
                part = MeanPart(record=link, envelope=payload.envelope, key=wrapped)
                self._ledger.create_part(round, owner, part)
                return [part]
        return []

    def _put_object_back(self, round: int, peer: PeerId, claim: Claim | MeanPart, *, first: bool) -> bool:
        """Restore a sealed object: a member's update, or its part of the round's mean. One that stands in its size is
        restored when it is asked for again: another member may have restored it, or the other one may be meant. Who is
        first looks again at once, since nobody has."""
        file = self._state.sealed_file(round, peer, claim.envelope)
        if file is None:
            return False
        key = self._ledger.payload_key(round, peer, self._ledger.key_of(claim))
        if self._spec().exchange == "int8" and peer == self._ledger.me and isinstance(claim, Claim):
            self._put_blocks_back(key, file)
        facts = self._ledger.bucket.head(key, timeout_seconds=CALL_SECONDS)
        shown = (round, peer), key
        if facts is not None and facts.size_bytes == file.stat().st_size and shown not in self._again:
            self._again.add(shown)
            return not first
        seconds = self._spec().cluster.silent_seconds + self._spec().object_bytes / SLOWEST_BYTES
        self._ledger.bucket.put(key, file, timeout_seconds=seconds)
        logger.info("round {round}: restored the payload of {peer}", round=round, peer=peer.hex()[:8])
        return True

    def _put_blocks_back(self, key: str, file: Path) -> None:
        """Restore what lets others read parts of our sealed update."""
        data = mapped(file)
        if data is not None:
            found = blocks_of(data, self._ledger.group.signer(self._ledger.me), open_threads(self._spec()))
            self._ledger.bucket.put(keys.blocks(key), found, timeout_seconds=CALL_SECONDS)
