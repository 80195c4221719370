"""A cluster's decisions, from values: what a member does next, whose updates a round has, when it ends, and whose turn
a task is that only one member has to do. Pure functions."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from murmur.cluster.actions import Action, Apply, Create, Do, Leave, Sleep, Train
from murmur.cluster.pace import Pace, grace_seconds, seconds_left
from murmur.cluster.state import Elsewhere, Round, View
from murmur.protocol.assignment import Draw
from murmur.protocol.cluster import Claim, ClusterTable, Contribution, Record, Standing
from murmur.protocol.types import Digest, PeerId

CHECKPOINT_ROUNDS_KEPT = 2
"""The newest checkpoints are kept, of this many rounds: the newest may be from a member that computes wrongly."""


def needs_look(round: Round) -> bool:
    """Whether what a member does next depends on what the bucket shows now."""
    sends = round.standing is Standing.SENDING and round.sealed is not None and not round.unsent
    return round.missing is None and round.recalled and not (round.closed or round.drained or sends)


def next_action(round: Round, view: View, me: PeerId, rules: ClusterTable, pace: Pace) -> Action:
    """Return what a member does next in its round, by what the bucket showed."""
    if not needs_look(round):
        return _own_action(round)
    if view.missing is not None:
        return view.missing
    if view.twin:
        return Do.YIELD
    if view.record is not None:
        if (view.record.theta, view.record.previous) != (round.theta, round.link):
            return Elsewhere(f"the record of round {round.number} belongs to another state than ours")
        return Apply(view.record)
    if round.claimed or round.skips:
        return _wait(round, view, me, rules)
    if round.sealed is not None:
        return Do.SEND
    if round.spoken or me in view.claims:
        return Do.SKIP  # the payload of that claim is lost to us, and others may already apply it
    passed = view.presence.passed(round.number, me)
    return Train(seconds_left(rules, pace.steps, pace.records, me, passed, pace.step_seconds), passed)


def _own_action(round: Round) -> Action:
    """Return what a member does next whatever the bucket shows."""
    if round.missing is not None:
        return round.missing
    if not round.recalled:
        return Do.RECALL
    if round.closed:
        return Do.FINISH
    if round.drained is not None:
        return Leave(round.drained)
    return Do.SEND  # also where the round has ended meanwhile: the claim tells people that we came late


def _wait(round: Round, view: View, me: PeerId, rules: ClusterTable) -> Action:
    """Return what a member does that has no more to send in its round."""
    if view.presence.furthest() > round.number:
        return Do.FIND_RECORD
    claims, living = view.claims, view.presence.can_claim()
    stands = round_progress(claims, living)
    if claims and stands.ends(round.enough_for, grace_seconds(rules, claims.values())):
        record = choose(claims, living, (round.theta, round.link), me)
        if record is None:
            return Elsewhere(f"most of the claims of round {round.number} build on another record than ours")
        if record.theta != round.theta:
            return Elsewhere(f"most of the claims of round {round.number} name another theta")
        return Create(record, stands.waiting)
    if round.claimed and me not in claims:
        return Do.CLAIM_AGAIN
    if round.skips and not claims and not stands.waiting:
        return Do.TRAIN_AFTER_ALL
    return Sleep(len(stands.waiting))


def has_to_stop(round: Round, view: View, me: PeerId) -> bool:
    """Whether a member has to end its inner steps: the round is closed, or most have claimed and wait for it."""
    if view.twin:
        return True
    if view.number != round.number:
        return False
    if view.record is not None or view.presence.furthest() > round.number:
        return True
    stands = round_progress(view.claims, view.presence.can_claim())
    return bool(view.claims) and (stands.enough or stands.waiting == {me})


def counted(claims: Mapping[PeerId, Claim], link: Digest, alive: Collection[PeerId], me: PeerId) -> dict[PeerId, Claim]:
    """Return the claims that count. A member that is gone, or we, may have claimed on a record that the store has lost
    since: nobody goes on from there. alive: the members whose beat changes."""
    return {m: claim for m, claim in claims.items() if claim.previous == link or (m in alive and m != me)}


def choose(
    claims: Mapping[PeerId, Claim], living: Collection[PeerId], ours: tuple[Digest | None, Digest], by: PeerId
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


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A round's progress, as one member sees it. waiting: the living members that have not claimed. enough: whether
    more than half of the living members have claimed; from then on `grace` runs."""

    waiting: frozenset[PeerId]
    enough: bool

    def ends(self, enough_for: float, grace: float) -> bool:
        """Whether the round ends. enough_for: seconds since `enough`, counting only looks that the store answered."""
        return not self.waiting or (self.enough and enough_for > grace)


def round_progress(claimed: Collection[PeerId], living: Collection[PeerId]) -> RoundProgress:
    """Return the round's progress. claimed: the members that have; they count as living, whatever their beats say,
    since their updates are there."""
    everybody = {*claimed, *living}
    return RoundProgress(frozenset(everybody - {*claimed}), 2 * len(claimed) > len(everybody))


def turns(link: Digest, what: str, members: Collection[PeerId]) -> list[PeerId]:
    """Return the members in the order in which they do `what` in the round after this link: the second one does it if
    the first one does not."""
    return Draw(what, link).sample(sorted(members), len(members))
