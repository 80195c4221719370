"""Plan how many inner steps a member makes, so that no other member waits for it."""

from collections.abc import Collection, Sequence
from math import ceil
from statistics import median

from protocol.cluster import ClusterTable, Contribution, Record
from protocol.types import PeerId

ROUNDS = 4
"""Number of last rounds from which the durations of steps are taken."""
SPREAD = 1.1
"""A member at most this many times slower than the others plans all steps: its speed varies from day to day."""

LOOK, SHORTEST_LOOK = 0.05, 0.1
"""Between two looks lies at most this share of a round's inner steps, and at least so many seconds."""
LATE = 0.1
"""A member is late if the others have done this share of their steps when it begins a round."""


def planned_steps(steps: int, records: Sequence[Record], me: PeerId, step_seconds: float | None = None) -> int:
    """Return how many of `steps` inner steps fit into the time in which the others would do all of them, by the last
    records; all if that is unknown. records: the newest last. step_seconds: duration of our last step, for a member
    that no record names."""
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
    steps: int, records: Sequence[Record], me: PeerId, planned: int, begun: Collection[int], beat_seconds: float
) -> float | None:
    """Return the seconds until the others have done all their steps; None if that is unknown. It is for a member that
    is slower (it has planned fewer steps) or begins the round late; None for any other. Times vary, and a step of a
    slow machine may last longer than a round waits. So the result is a little less than the others' time, and less by a
    beat, in which they see our claim. begun: steps that each of the others has done."""
    others = [
        whole_seconds(update, steps) for record in records[-ROUNDS:] for update in record.updates if update.peer != me
    ]
    done = median(begun) / steps if begun else 0.0
    if not others or (done < LATE and planned == steps):
        return None
    usual = median(others)
    return max(0.0, (1.0 - done) * usual / SPREAD - min(beat_seconds, LATE * usual))


def look_seconds(rules: ClusterTable, records: Sequence[Record]) -> float:
    """Return the seconds between two looks at a round's claims and record: half a beat, but a small share of a short
    round, since a member that sees the record late begins the next round late."""
    latest = [update.seconds for record in records[-ROUNDS:] for update in record.updates]
    half = rules.beat_seconds / 2
    return min(half, max(SHORTEST_LOOK, LOOK * median(latest))) if latest else half


def least_steps(rules: ClusterTable, planned: int) -> int:
    """Return the steps below which a member sends nothing: a share of the planned ones."""
    return max(1, ceil(rules.least_steps * planned))


def whole_seconds(update: Contribution, steps: int) -> float:
    """Return the seconds in which it would have done all steps."""
    return update.seconds * steps / update.steps
