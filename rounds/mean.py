"""A member's share in a round's mean (int8): it makes its own part, and those of owners that are gone, and awaits the
rest (node/cluster/mean_parts.py)."""

from math import inf
from typing import TYPE_CHECKING

from loguru import logger

from cluster.pace import look_seconds
from cluster.turns import turns
from node.cluster.mean_parts import MeanMaker
from node.fetch.payloads import Lacking
from node.state.saved import SealedRound
from protocol.cluster import MeanPart, Record, digest_of
from protocol.layout import DenseLayout
from protocol.messages import ENVELOPE_BYTES
from protocol.types import Digest, PeerId
from sparseloco.wire import plaintext_bytes
from storage.collect import Collection
from storage.exchange import Wanted
from storage.seal import matches

if TYPE_CHECKING:
    from rounds.member import Member

TOLD_SECONDS = 60.0
LOST_SILENCES = 6.0
"""After so many times `silent_seconds` a payload that nobody has counts as zeros in the mean."""


class Mean:
    """The parts of each round's mean, as one member makes and awaits them."""

    def __init__(self, member: "Member", layout: DenseLayout) -> None:
        self._member, self._layout = member, layout
        self._maker = MeanMaker(member.ledger, member.state, layout, member.seconds_to_send)

    def publish_blocks(self, round: int, sealed: SealedRound) -> None:
        """Let others read parts of our sealed update."""
        self._maker.publish_blocks(round, sealed.object, sealed.key)

    def parts(self, round: int, record: Record) -> dict[PeerId, MeanPart]:
        """Return all parts of the round's mean by owner, once they are there; their objects are fetched meanwhile.
        Raises Lacking, StorageError."""
        member, began = self._member, self._member.time.now()
        owners, found, half = [update.peer for update in record.updates], dict[PeerId, MeanPart](), inf
        fetching, told = list[Collection](), TOLD_SECONDS
        try:
            while True:
                new = member.ledger.mean_parts(round, [owner for owner in owners if owner not in found])
                found |= new
                fetching += self._fetch(round, owners, new)
                missing = [owner for owner in owners if owner not in found]
                if not missing:
                    for collection in fetching:
                        collection.outcome()
                    return found
                member.look_at_beats()
                if member.presence.furthest() > round and (lost := self._still_missing(round, missing)):
                    raise Lacking(round, lost, f"round {round}: the store has lost {len(lost)} parts of its mean")
                waited = member.time.now() - began
                if 2 * len(found) > len(owners):
                    half = min(half, waited)
                ours = [owner for owner in missing if self._is_ours(owner, member.state.saved.link, waited, half)]
                if waited >= told:
                    told += TOLD_SECONDS
                    logger.info(
                        "round {round}: {missing} of {count} parts of the mean are missing yet",
                        round=round,
                        missing=len(missing),
                        count=len(owners),
                    )
                if ours:
                    self._make(round, record, ours[0], waited)
                else:
                    member.time.sleep(look_seconds(member.spec.cluster, member.records))
        finally:
            for collection in fetching:
                collection.stop()

    def _is_ours(self, owner: PeerId, link: Digest, waited: float, half: float) -> bool:
        """Whether we make this part: it is ours, or its owner is gone or slow and it is our turn. waited, half: seconds
        until now, and until more than half of the parts were there. Who needs twice as long is slow."""
        member = self._member
        if owner == member.me:
            return True
        living = member.presence.living()
        order = turns(link, "mean " + owner.hex(), (living | {member.me}) - {owner})
        begins = 2 * half if owner in living else 0.0
        return waited >= begins + order.index(member.me) * member.spec.cluster.silent_seconds

    def _make(self, round: int, record: Record, owner: PeerId, waited: float) -> None:
        member = self._member

        def on_piece() -> None:
            member.pulse.step += 1  # others see that we go on

        lost = waited >= LOST_SILENCES * member.spec.cluster.silent_seconds
        try:
            self._maker.make(round, record, owner, on_piece, without=lost)
            member.upkeep.have()
        except Lacking as fault:
            member.upkeep.ask(fault.round, fault.peers)
            member.time.sleep(look_seconds(member.spec.cluster, member.records))

    def _still_missing(self, round: int, owners: list[PeerId]) -> list[PeerId]:
        found = self._member.ledger.mean_parts(round, owners)
        return [owner for owner in owners if owner not in found]

    def _fetch(self, round: int, owners: list[PeerId], new: dict[PeerId, MeanPart]) -> list[Collection]:
        """Start to fetch the objects of these parts."""
        if not new:
            return []
        member, sources = self._member, self._member.ledger.payloads(new)
        until = member.time.now() + len(new) * member.seconds_to_send()
        layouts = dict(zip(owners, self._layout.parts(len(owners)), strict=True))
        wanted = [
            Wanted(
                owner,
                sources.payload(member.ledger.run, round, owner),
                ENVELOPE_BYTES + plaintext_bytes(layouts[owner]),
                matches(digest_of(part.envelope)),
            )
            for owner, part in new.items()
        ]
        collection = Collection(
            wanted,
            seconds_left=lambda: max(0.0, until - member.time.now()),
            max_threads=len(wanted),
            cache=member.state.cache,
            time=member.time,
        )
        return [collection.start()]
