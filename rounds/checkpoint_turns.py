"""A cluster's checkpoints: their place, the member whose turn it is to publish one, and which of them are kept
(rounds/checkpoints.py).

All files are in one place under their digests, so a state that two members publish is stored once.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from cluster.turns import turns
from node.cluster.ledger import CALL_SECONDS
from node.cluster.rejoin import SLOWEST_BYTES, newest_shown
from node.state.saved import Snapshot
from node.sync.checkpoints import Shown
from protocol import keys
from protocol.types import DIGEST_BYTES, Digest
from rounds.checkpoints import abort_uploads
from storage.s3 import RangedBucket
from training.cluster import CHECKPOINT_ROUNDS_KEPT

if TYPE_CHECKING:
    from rounds.member import Member

MOST_FILES = 100_000
"""Most files of a listing: a hundred terabytes."""


class MemberShelf:
    """A member's checkpoints. One member, drawn from the state's link, publishes the state. If no living member is
    publishing it a round later, the next member in that order does. After the run's last record it waits
    `silent_seconds` instead of a round."""

    kept = CHECKPOINT_ROUNDS_KEPT  # its turn may come twice in a row

    def __init__(self, member: "Member") -> None:
        self._member = member
        ledger = self._ledger = member.ledger
        self.state, self.run, self.time = member.state, ledger.run, ledger.time
        self.bucket: RangedBucket = ledger.bucket
        self.files: RangedBucket = ledger.states
        self.document_key = keys.members_checkpoints(ledger.run) + ledger.me.hex()
        self.signer, self.verify = ledger.group.signer(ledger.me), ledger.group.verify
        self._settled: Digest | None = None
        """The link of the newest state that another member has published already."""

    def may_show(self) -> bool:
        return True  # a member whose state differs has not applied the last record

    def is_due(self, snapshot: Snapshot) -> bool:
        if snapshot.link == self._settled:
            return False
        member, living, me = self._member, self._member.upkeep.living, self._member.me
        place = turns(snapshot.link, "checkpoint", {*living, me}).index(me)
        if member.ended_at is None:
            # A snapshot is complete in the round after its own at the earliest; then the first member begins.
            late = not place or self.state.saved.round > snapshot.round + place
        else:
            late = self.time.now() >= member.ended_at + place * member.spec.cluster.silent_seconds
        if not late:
            return False
        shown = self._ledger.shown()
        if any(checkpoint.round >= snapshot.round for _, checkpoint in newest_shown(shown)):
            self._settled = snapshot.link
            return False
        # Every state has a manifest of its own, so a member that publishes this state names its manifest as loose.
        return not any(snapshot.state in shown[other].loose for other in shown.keys() & living - {me})

    def unneeded(self, published: Shown) -> Collection[Digest]:
        """Return the files of older checkpoints, and those that a member that is gone was publishing. A file that no
        document names stays: its document may be hidden or damaged just now. Deletes documents of members that are
        gone, once their files are. Raises StorageError."""
        ledger, me = self._ledger, self._member.me
        shown = {**ledger.shown(), me: published}  # what the store says of us may be old or damaged
        newest = newest_shown(shown)
        here = {*ledger.members(), *self._member.upkeep.living, me, *(owner for owner, _ in newest)}
        needed = {file for _, checkpoint in newest for file in checkpoint.files}
        needed |= {file for member in shown.keys() & here - {me} for file in shown[member].loose}
        there = self._listed()
        unneeded = set[Digest]()
        for member, one in shown.items():
            named = there & {*one.loose, *(file for checkpoint in one.checkpoints for file in checkpoint.files)}
            unneeded |= named - needed
            if member not in here and not named:
                abort_uploads(self.files, one.loose)
                key = keys.members_checkpoints(self.run) + member.hex()
                self.bucket.delete(key, timeout_seconds=CALL_SECONDS)
        return unneeded

    def _listed(self) -> set[Digest]:
        """Return the files that are there, from any sender."""
        prefix = keys.blob(Digest(b""))
        listed = self.files.list(prefix, max_keys=MOST_FILES, timeout_seconds=CALL_SECONDS)
        whole = [key for key in listed if len(key) == len(prefix) + 2 * DIGEST_BYTES]
        return {Digest(bytes.fromhex(key.removeprefix(prefix))) for key in whole}

    def document_seconds(self) -> float:
        return CALL_SECONDS

    def state_seconds(self) -> float:
        return CALL_SECONDS + self.state.first.consensus_bytes / SLOWEST_BYTES
