"""A member's share in a round's mean (int8): it makes its own part, and those of owners that are gone or slow, and
awaits the rest (murmur/cluster/mean_parts.py)."""

from collections.abc import Callable
from math import inf

from loguru import logger

from murmur.cluster.decide import turns
from murmur.cluster.fetch import PayloadFetcher
from murmur.cluster.ledger import Ledger
from murmur.cluster.mean_parts import MeanMaker
from murmur.cluster.pace import look_seconds
from murmur.cluster.presence import STUCK_SILENCES
from murmur.cluster.recovery import LOST_SILENCES
from murmur.cluster.repair import Wants
from murmur.cluster.state import StoreAway
from murmur.cluster.view import ClusterView
from murmur.node.fetch.payloads import Lacking
from murmur.protocol.cluster import MeanPart, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import Digest, PeerId
from sparseloco.wire import plaintext_bytes

TOLD_SECONDS = 60.0


class MeanRound:
    """The parts of each round's mean, as one member makes and awaits them. on_piece: called after each piece of a part
    that `maker`, ours, makes."""

    def __init__(
        self,
        ledger: Ledger,
        maker: MeanMaker,
        layout: DenseLayout,
        fetcher: PayloadFetcher,
        view: ClusterView,
        wants: Wants,
        on_piece: Callable[[], None],
    ) -> None:
        self._ledger, self._maker, self._layout, self._fetcher = ledger, maker, layout, fetcher
        self._view, self._wants, self._on_piece = view, wants, on_piece
        self._lacking: dict[tuple[int, PeerId], float] = {}
        """Since when we ask for these members' payloads of the round."""

    def parts(self, round: int, record: Record) -> dict[PeerId, MeanPart]:
        """Return all parts of the round's mean by owner, once they are there; their objects are fetched meanwhile.
        Raises Lacking, StorageError."""
        ledger, time = self._ledger, self._ledger.time
        began, told = time.now(), TOLD_SECONDS
        link, owners = record.link(ledger.run, round), [update.member for update in record.updates]
        found, half = dict[PeerId, MeanPart](), inf
        try:
            while True:
                found |= ledger.mean_parts(round, link, [owner for owner in owners if owner not in found])
                self._fetch(round, owners, found)
                missing = [owner for owner in owners if owner not in found]
                if not missing:
                    self._fetcher.wait()
                    return found
                self._look()
                if self._is_over(round) and (lost := self._still_missing(round, link, missing)):
                    raise Lacking(round, lost, f"round {round}: the store has lost {len(lost)} parts of its mean")
                waited = time.now() - began
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
                if not ours or not self._make(round, record, ledger.me if ledger.me in ours else ours[0]):
                    time.sleep(look_seconds(self._view.rules, self._view.pace.records))
        finally:
            self._fetcher.stop()

    def make_again(self, round: int, record: Record, lost: dict[PeerId, MeanPart]) -> None:
        """Make parts again whose objects the store has lost, unless others have gone on from them. Raises Lacking,
        StorageError."""
        self._look()
        for owner, part in lost.items():
            if not self._is_over(round):
                self._make(round, record, owner, part)

    def _is_over(self, round: int) -> bool:
        """Whether a member has applied the round: its parts were there."""
        return self._view.value.presence.furthest() > round or self._ledger.closed_at(round + 1) is not None

    def _is_ours(self, owner: PeerId, link: Digest, waited: float, half: float) -> bool:
        """Whether we make this part: it is ours, or its owner is gone or slow and it is our turn. waited, half: seconds
        until now, and until half of the parts were there. A member that needs twice as long is slow."""
        me = self._ledger.me
        if owner == me:
            return True
        living, silent = self._view.value.presence.can_claim(), self._view.rules.silent_seconds
        order = turns(link, "mean " + owner.hex(), (living | {me}) - {owner})
        begins = 2 * max(half, silent) if owner in living else 0.0
        return waited >= begins + order.index(me) * silent

    def _make(self, round: int, record: Record, owner: PeerId, lost: MeanPart | None = None) -> bool:
        """Whether we have made this part; if payloads lack, other members are asked for them."""
        try:
            self._maker.make(round, record, owner, self._on_piece, self._without(round), lost)
        except Lacking as fault:
            try:
                self._wants.publish(fault.round, fault.peers)
            except StorageError:
                self._lacking = {}  # nobody was asked: we cannot know that they are lost
                raise
            now = self._ledger.time.now()
            asked = {(round, peer) for peer in fault.peers}
            self._lacking = {place: self._lacking.get(place, now) for place in asked}
            return False
        self._lacking = {}
        self._wants.clear()
        return True

    def _without(self, round: int) -> list[PeerId]:
        """Return the members whose payloads count as zeros if they are lost: asked for in vain, for longer if the
        member lives, since it alone has the whole payload."""
        now, silent = self._ledger.time.now(), self._view.rules.silent_seconds
        heard = self._view.value.presence.running()
        return [
            peer
            for (of, peer), since in self._lacking.items()
            if of == round and now - since >= silent * (STUCK_SILENCES if peer in heard else LOST_SILENCES)
        ]

    def _still_missing(self, round: int, link: Digest, owners: list[PeerId]) -> list[PeerId]:
        found = self._ledger.mean_parts(round, link, owners)
        return [owner for owner in owners if owner not in found]

    def _fetch(self, round: int, owners: list[PeerId], parts: dict[PeerId, MeanPart]) -> None:
        """Start to fetch the objects of these parts."""
        layouts = dict(zip(owners, self._layout.parts(len(owners)), strict=True))
        sizes = {owner: ENVELOPE_BYTES + plaintext_bytes(layouts[owner]) for owner in parts}
        self._fetcher.fetch(round, parts, sizes)

    def _look(self) -> None:
        """See which members live. Raises StorageError where the store does not show it."""
        fault = self._view.refresh().missing
        if isinstance(fault, StoreAway):
            raise fault.fault
