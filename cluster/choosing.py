"""Whose updates a round has, of those that were claimed."""

from collections import Counter
from collections.abc import Collection, Mapping

from protocol.cluster import Claim, Contribution, Record
from protocol.types import Digest, PeerId


def choose(
    claims: Mapping[PeerId, Claim], living: Collection[PeerId], ours: tuple[Digest, Digest], by: PeerId
) -> Record | None:
    """The record that these claims make: those that go on from the link, and have the theta, that most of the living
    claim, in PeerId order. Of equally many ours, then the lower digest. Who is dead does not decide: it could hold up
    those that live. None where most go on from another link than ours: a store has shown us another record than them.
    ours: the theta and the link that we hold."""
    held, previous = ours[0].hex(), ours[1].hex()
    # What we claimed from another theta than we hold by now counts no more.
    stale = {member for member, claim in claims.items() if member == by and claim.theta != held}
    current = {m: claim for m, claim in claims.items() if m not in stale}
    links = Counter(claim.previous for m, claim in current.items() if m in living) or Counter(
        claim.previous for claim in current.values()
    )
    if not links or links[previous] < max(links.values()):
        return None
    following = {m: claim for m, claim in current.items() if claim.previous == previous}
    counts = Counter(claim.theta for member, claim in following.items() if member in living) or Counter(
        claim.theta for claim in following.values()
    )
    if not counts:
        return None
    theta = min(counts, key=lambda theta: (-counts[theta], theta != held, theta))
    updates = tuple(
        Contribution(member=member.hex(), **following[member].model_dump())
        for member in sorted(following)
        if following[member].theta == theta
    )
    return Record(by=by.hex(), theta=theta, previous=previous, updates=updates)
