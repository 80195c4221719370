"""A member's share in a round's mean (int8): it makes its own part, and those of owners that are gone or slow, and
awaits the rest (murmur/cluster/mean_parts.py)."""

from math import inf

from loguru import logger

from murmur.cluster.decisions import look_seconds, turns
from murmur.cluster.mean_parts import MeanMaker
from murmur.cluster.membership import Membership
from murmur.cluster.other_members import start_fetching
from murmur.cluster.presence import STUCK_SILENCES
from murmur.cluster.recovery import LOST_SILENCES
from murmur.node.fetch.payloads import Lacking
from murmur.node.state.saved import SealedRound
from murmur.protocol.cluster import MeanPart, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import Digest, PeerId
from sparseloco.wire import plaintext_bytes
from storage.collect import Collection
from storage.exchange import Wanted
from storage.seal import matches

TOLD_SECONDS = 60.0


class Mean:
    """The parts of each round's mean, as one member makes and awaits them."""

    def __init__(self, member: Membership, layout: DenseLayout) -> None:
        self._member, self._layout = member, layout
        self._maker = MeanMaker(member.ledger, member.state, layout, member.seconds_to_send)
        self._lacking: dict[tuple[int, PeerId], float] = {}
        """Since when we ask for these members' payloads of the round."""

    def publish_blocks(self, round: int, sealed: SealedRound) -> None:
        """Let others read parts of our sealed update."""
        self._maker.publish_blocks(round, sealed.object, sealed.key)

    def parts(self, round: int, record: Record) -> dict[PeerId, MeanPart]:
        """Return all parts of the round's mean by owner, once they are there; their objects are fetched meanwhile.
        Raises Lacking, StorageError."""
        member, began = self._member, self._member.time.now()
        link, owners = record.link(member.ledger.run, round), [update.member for update in record.updates]
        found, half = dict[PeerId, MeanPart](), inf
        fetching, told = list[Collection](), TOLD_SECONDS
        try:
            while True:
                new = member.ledger.mean_parts(round, link, [owner for owner in owners if owner not in found])
                found |= new
                fetching += self._fetch(round, owners, new)
                missing = [owner for owner in owners if owner not in found]
                if not missing:
                    for one in fetching:
                        one.outcome()
                    return found
                member.read_heartbeats_of_all()
                if self._is_over(round) and (lost := self._still_missing(round, link, missing)):
                    raise Lacking(round, lost, f"round {round}: the store has lost {len(lost)} parts of its mean")
                waited = member.time.now() - began
                if 2 * len(found) >= len(owners):
                    half = min(half, waited)
                ours = [owner for owner in missing if self._is_ours(owner, link, waited, half)]
                if waited >= told:
                    told += TOLD_SECONDS
                    logger.info(
                        "round {round}: {missing} of {count} parts of the mean are missing yet",
                        round=round,
                        missing=len(missing),
                        count=len(owners),
                    )
                if not ours or not self._make(round, record, member.me if member.me in ours else ours[0]):
                    member.time.sleep(look_seconds(member.spec.cluster, member.records))
        finally:
            for one in fetching:
                one.stop()

    def make_again(self, round: int, record: Record, lost: dict[PeerId, MeanPart]) -> None:
        """Make parts again whose objects the store has lost, unless others have gone on from them. Raises Lacking,
        StorageError."""
        self._member.read_heartbeats_of_all()
        for owner, part in lost.items():
            if not self._is_over(round):
                self._make(round, record, owner, part)

    def _is_over(self, round: int) -> bool:
        """Whether a member has applied the round: its parts were there."""
        return self._member.presence.furthest() > round or self._member.ledger.closed_at(round + 1) is not None

    def _is_ours(self, owner: PeerId, link: Digest, waited: float, half: float) -> bool:
        """Whether we make this part: it is ours, or its owner is gone or slow and it is our turn. waited, half: seconds
        until now, and until half of the parts were there. A member that needs twice as long is slow."""
        member = self._member
        if owner == member.me:
            return True
        living, silent = member.presence.can_claim(), member.spec.cluster.silent_seconds
        order = turns(link, "mean " + owner.hex(), (living | {member.me}) - {owner})
        begins = 2 * max(half, silent) if owner in living else 0.0
        return waited >= begins + order.index(member.me) * silent

    def _make(self, round: int, record: Record, owner: PeerId, lost: MeanPart | None = None) -> bool:
        """Whether we have made this part; if payloads lack, other members are asked for them."""
        member = self._member

        def on_piece() -> None:
            member.heartbeat.step += 1  # others see that we go on

        try:
            self._maker.make(round, record, owner, on_piece, self._without(round), lost)
        except Lacking as fault:
            try:
                member.maintenance.publish_wanted(fault.round, fault.peers)
            except StorageError:
                self._lacking = {}  # nobody was asked: we cannot know that they are lost
                raise
            now = member.time.now()
            asked = {(round, peer) for peer in fault.peers}
            self._lacking = {place: self._lacking.get(place, now) for place in asked}
            return False
        self._lacking = {}
        member.maintenance.clear_wanted()
        return True

    def _without(self, round: int) -> list[PeerId]:
        """Return the members whose payloads count as zeros if they are lost: asked for in vain, for longer if the
        member lives, since it alone has the whole payload."""
        member = self._member
        now, silent, heard = member.time.now(), member.spec.cluster.silent_seconds, member.presence.running()
        return [
            peer
            for (of, peer), since in self._lacking.items()
            if of == round and now - since >= silent * (STUCK_SILENCES if peer in heard else LOST_SILENCES)
        ]

    def _still_missing(self, round: int, link: Digest, owners: list[PeerId]) -> list[PeerId]:
        found = self._member.ledger.mean_parts(round, link, owners)
        return [owner for owner in owners if owner not in found]

    def _fetch(self, round: int, owners: list[PeerId], new: dict[PeerId, MeanPart]) -> list[Collection]:
        """Start to fetch the objects of these parts."""
        if not new:
            return []
        member, sources = self._member, self._member.ledger.payloads(new)
        layouts = dict(zip(owners, self._layout.parts(len(owners)), strict=True))
        wanted = [
            Wanted(
                owner,
                sources.payload(member.ledger.run, round, owner),
                ENVELOPE_BYTES + plaintext_bytes(layouts[owner]),
                matches(part.envelope),
            )
            for owner, part in new.items()
        ]
        return [start_fetching(member, wanted, len(new) * member.seconds_to_send())]
