"""Draw the member that does a task which only one member has to do."""

from collections.abc import Collection

from murmur.protocol.assignment import Draw
from murmur.protocol.types import Digest, PeerId

CHECKPOINT_ROUNDS_KEPT = 2
"""The newest checkpoints are kept, of this many rounds: the newest may be from a member that computes wrongly."""


def turns(link: Digest, what: str, members: Collection[PeerId]) -> list[PeerId]:
    """Return the members in the order in which they do `what` in the round after this link: the second one does it if
    the first one does not."""
    return Draw(what, link).sample(sorted(members), len(members))
