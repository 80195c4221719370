"""Whose updates a round has, of those that were claimed."""

from collections import Counter
from collections.abc import Mapping

from protocol.cluster import Claim, Contribution, Record
from protocol.types import Digest, PeerId


def choose(claims: Mapping[PeerId, Claim], previous: Digest, by: PeerId) -> Record | None:
    """The record that these claims make after the one with this link: those with the most frequent theta (of equally
    many the lower digest), in PeerId order. None where no claim goes on from there."""
    following = {member: claim for member, claim in claims.items() if claim.previous == previous.hex()}
    counts = Counter(claim.theta for claim in following.values())
    if not counts:
        return None
    theta = min(counts, key=lambda theta: (-counts[theta], theta))
    updates = tuple(
        Contribution(member=member.hex(), **following[member].model_dump())
        for member in sorted(following)
        if following[member].theta == theta
    )
    return Record(by=by.hex(), theta=theta, previous=previous.hex(), updates=updates)
