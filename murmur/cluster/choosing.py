"""Choose whose updates a round has, of the claimed ones."""

from collections import Counter
from collections.abc import Collection, Mapping

from murmur.protocol.cluster import Claim, Contribution, Record
from murmur.protocol.types import Digest, PeerId


def choose(
    claims: Mapping[PeerId, Claim], living: Collection[PeerId], ours: tuple[Digest, Digest], by: PeerId
) -> Record | None:
    """Return the record that these claims make. It has the claims that build on our link and have the theta that most
    living members claim, in PeerId order. If several thetas have equally many, ours wins, else the lowest digest. Dead
    members do not decide: they could delay the living ones. Return None if most claims build on another link than ours:
    then the store has shown us another record than the others. ours: the theta and the link of our state."""
    held, previous = ours
    # A claim of ours from another theta than our present one does not count any more.
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
        Contribution(member=member, **following[member].model_dump())
        for member in sorted(following)
        if following[member].theta == theta
    )
    return Record(by=by, theta=theta, previous=previous, updates=updates)
