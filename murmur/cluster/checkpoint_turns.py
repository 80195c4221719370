"""A cluster's checkpoints: their place, the member whose turn it is to publish one, and which of them are kept
(murmur/rounds/checkpoints.py).

A round's files are in one place under their digests, so a state that two members publish is stored once.
"""

from collections.abc import Collection, Mapping

from murmur.cluster.decide import CHECKPOINT_ROUNDS_KEPT, turns
from murmur.cluster.deletion import delete_states
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.cluster.pace import SLOWEST_BYTES
from murmur.cluster.view import ClusterView
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Snapshot
from murmur.node.sync.checkpoints import Checkpoint, Shown
from murmur.protocol import keys
from murmur.protocol.types import Digest, PeerId
from storage.s3 import RangedBucket


class MemberShelf:
    """A member's checkpoints. One member, drawn from the state's link, publishes the state. If no living member is
    publishing it a round later, the next member in that order does. After the run's last record it waits
    `silent_seconds` instead of a round."""

    kept = CHECKPOINT_ROUNDS_KEPT  # its turn may come twice in a row

    def __init__(self, state: NodeState, ledger: Ledger, view: ClusterView) -> None:
        self._ledger, self._view = ledger, view
        self.state, self.run, self.time = state, ledger.run, ledger.time
        self.ended_at: float | None = None
        """When we had applied the run's last record."""
        self.bucket: RangedBucket = ledger.bucket
        self.document_key = keys.members_checkpoints(ledger.run) + ledger.me.hex()
        self.signer, self.verify = ledger.group.signer(ledger.me), ledger.group.verify
        self._settled: Digest | None = None
        """The link of the newest state that another member has published already."""

    def files(self, round: int) -> RangedBucket:
        return self._ledger.states(round)

    def may_show(self) -> bool:
        return True  # a member whose state differs has not applied the last record

    def is_due(self, snapshot: Snapshot) -> bool:
        if snapshot.link == self._settled:
            return False
        living, me = self._view.value.presence.running(), self._ledger.me
        place = turns(snapshot.link, "checkpoint", {*living, me}).index(me)
        if self.ended_at is None:
            # A snapshot is complete in the round after its own at the earliest; then the first member begins.
            late = not place or self.state.saved.round > snapshot.round + place
        else:
            late = self.time.now() >= self.ended_at + place * self._view.rules.silent_seconds
        if not late:
            return False
        shown = self._ledger.shown()
        newest = newest_shown(shown, self._reached)
        ours = snapshot.link, snapshot.state
        if any((one.link, one.state) == ours or one.round > snapshot.round for _, one in newest):
            self._settled = snapshot.link
            return False
        # Every state has a manifest of its own, so a member that publishes this state names its manifest as loose.
        return not any(snapshot.state in shown[other].loose for other in sorted(shown.keys() & living - {me}))

    def left_over(self, loose: Collection[Digest]) -> Collection[Digest]:
        return ()  # files go with their round, whoever sent them

    def clear(self, published: Shown) -> None:
        """Delete the files of rounds before the newest two checkpoints, and documents of silent members that show older
        ones only. Where the store hides a document, more stays, never less."""
        ledger = self._ledger
        shown = {**ledger.shown(), ledger.me: published}  # what the store says of us may be old or damaged
        newest = newest_shown(shown, self._reached)
        rounds = {checkpoint.round for _, checkpoint in newest}
        if len(rounds) < CHECKPOINT_ROUNDS_KEPT:
            return
        delete_states(ledger, min(rounds))
        for other in sorted(shown.keys() - {*self._view.value.presence.running(), ledger.me}):
            if shown[other].newest < min(rounds):
                self.bucket.delete(keys.members_checkpoints(self.run) + other.hex(), timeout_seconds=CALL_SECONDS)

    @property
    def _reached(self) -> int:
        """A round that the run may have reached: others may be one ahead of us. After the bucket was put back from a
        backup, documents name later ones too, which are not the run's."""
        return self.state.saved.round + 1

    def document_seconds(self) -> float:
        return CALL_SECONDS

    def state_seconds(self) -> float:
        return CALL_SECONDS + self.state.first.consensus_bytes / SLOWEST_BYTES


def newest_shown(shown: Mapping[PeerId, Shown], reached: int) -> list[tuple[PeerId, Checkpoint]]:
    """Return the shown checkpoints of the newest rounds, as many as are kept, of those up to `reached`."""
    found = [
        (member, one) for member, document in shown.items() for one in document.checkpoints if one.round <= reached
    ]
    rounds = sorted({checkpoint.round for _, checkpoint in found}, reverse=True)[:CHECKPOINT_ROUNDS_KEPT]
    return [one for one in found if one[1].round in rounds]
