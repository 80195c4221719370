"""How many inner steps a member plans, so that nobody waits for it."""

from collections.abc import Collection, Sequence
from math import ceil
from statistics import median

from protocol.cluster import ClusterTable, Contribution, Record
from protocol.types import PeerId

ROUNDS = 4
"""So many last rounds say what steps take."""
SPREAD = 1.1
"""Who is no slower than this many times the others plans all steps: it is the same machine on another day."""

LATE = 0.1
"""Who begins a round when the others have done this share of their steps is late."""


def planned_steps(steps: int, records: Sequence[Record], me: PeerId, step_seconds: float | None = None) -> int:
    """Of `steps` inner steps, as many as fit into the time in which the others would do all of them, by the last
    records; all where nobody can tell. records: the newest last. step_seconds: what a step of ours took the last time,
    for a member that no record names."""
    latest = records[-ROUNDS:]
    own = [whole_seconds(update, steps) for record in latest for update in record.updates if update.peer == me]
    own = own or ([step_seconds * steps] if step_seconds is not None else [])
    others = [whole_seconds(update, steps) for record in latest for update in record.updates if update.peer != me]
    if not own or not others:
        return steps
    mine, theirs = median(own), median(others)
    if mine <= SPREAD * theirs:
        return steps
    return max(1, min(steps, int(steps * theirs / mine)))


def seconds_left(
    steps: int, records: Sequence[Record], me: PeerId, planned: int, begun: Collection[int]
) -> float | None:
    """Until the others have done all their steps, for a member that is slower than they (it has planned fewer) or
    begins the round after them; None for any other, or where nobody can tell. Times vary, and a step of a slow machine
    may last longer than a round waits for it: so it ends a little before them.
    begun: steps that each of the others has done."""
    others = [
        whole_seconds(update, steps) for record in records[-ROUNDS:] for update in record.updates if update.peer != me
    ]
    done = median(begun) / steps if begun else 0.0
    if not others or (done < LATE and planned == steps):
        return None
    return max(0.0, 1.0 - done) * median(others) / SPREAD


def least_steps(rules: ClusterTable, planned: int) -> int:
    """Who has done fewer sends nothing: a share of those that were planned."""
    return max(1, ceil(rules.least_steps * planned))


def whole_seconds(update: Contribution, steps: int) -> float:
    """Seconds in which it would have done all steps."""
    return update.seconds * steps / update.steps
