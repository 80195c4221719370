"""Where a cluster's members put up their checkpoints, and whose turn it is (rounds/checkpoints.py)."""

from typing import TYPE_CHECKING

from cluster.turns import turns
from node.ledger import CALL_SECONDS
from node.rejoin import SLOWEST_BYTES, shown_by_members
from node.state import Snapshot
from storage.s3 import RangedBucket

if TYPE_CHECKING:
    from rounds.member import Member


class MemberShelf:
    """A member's part of the bucket, for its checkpoints. One member puts one up, drawn from its link; the next in that
    order does where nobody shows it a round later."""

    kept = 1

    def __init__(self, member: "Member") -> None:
        self._member = member
        ledger = member.ledger
        self.held, self.run, self.time = member.held, ledger.run, ledger.time
        self.bucket: RangedBucket = ledger.part(member.me)
        self.signer, self.verify = ledger.group.signer(member.me), ledger.group.verify

    def may_show(self) -> bool:
        return True  # whoever stands elsewhere has not applied the last record

    def is_due(self, snapshot: Snapshot) -> bool:
        member = self._member
        order = turns(snapshot.link, "checkpoint", {*member.presence.living(), member.me})
        place = order.index(member.me)
        if not place or self.held.saved.round < snapshot.round + place:
            return not place
        return not any(checkpoint.link == snapshot.link for _, checkpoint in shown_by_members(member.ledger))

    def document_seconds(self) -> float:
        return CALL_SECONDS

    def state_seconds(self) -> float:
        return CALL_SECONDS + 4 * self.held.first.layout.num_parameters / SLOWEST_BYTES
