"""Read a hotkey's slot for a round: whether it committed, in time or late, and whether it counts as a miner."""

from collections.abc import Iterable

from murmur.protocol.types import Commitment, Peer, PeerId


def commitment(peer: Peer, round: int, commit_deadline: int) -> Commitment | None:
    """Return the commitment for `round` in the peer's slot, if it was written in block `commit_by` or before."""
    slot = peer.slot
    if slot is None or slot.block > commit_deadline or not isinstance(slot.statement, Commitment):
        return None
    return slot.statement if slot.statement.round == round else None


def who_committed(peers: Iterable[Peer], round: int, commit_deadline: int) -> set[PeerId]:
    """Return those of these peers whose slot has a `commitment` for `round`."""
    return {peer.id for peer in peers if commitment(peer, round, commit_deadline) is not None}


def is_judged(peer: Peer, owner: PeerId) -> bool:
    """Whether a hotkey counts as a miner. The chain gives validator permits by stake alone, so a hotkey with a permit
    is a miner too if it posts commitments. The run's owner, who need not mine, is one only then."""
    commits = peer.slot is not None and isinstance(peer.slot.statement, Commitment)
    return commits or not (peer.validates or peer.id == owner)


def is_late(at_commit: Peer, at_reveal: Peer | None, round: int, commit_deadline: int, reveal_deadline: int) -> bool:
    """Whether the peer has no commitment for the round at the commit deadline, but one by the reveal deadline.
    `at_commit`, `at_reveal`: the peer as of the commit and the reveal deadline."""
    if commitment(at_commit, round, commit_deadline) is not None or at_reveal is None:
        return False
    return commitment(at_reveal, round, reveal_deadline) is not None
