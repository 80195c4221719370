"""Whose turn it is to do what only one member has to do."""

from collections.abc import Collection

from protocol.assignment import Draw
from protocol.types import Digest, PeerId


def turns(link: Digest, what: str, members: Collection[PeerId]) -> list[PeerId]:
    """The members in the order in which they do `what` in the round after this link: who comes second does it where
    the first one does not."""
    return Draw(what, link).sample(sorted(members), len(members))
