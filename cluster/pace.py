"""How many inner steps a member plans, so that nobody waits for it."""

from collections.abc import Sequence
from math import ceil
from statistics import median

from protocol.cluster import ClusterTable, Contribution, Record
from protocol.types import PeerId

ROUNDS = 4
"""So many last rounds say what steps take."""
SPREAD = 1.1
"""Who is no slower than this many times the others plans all steps: it is the same machine on another day."""


def planned_steps(steps: int, records: Sequence[Record], me: PeerId) -> int:
    """Of `steps` inner steps, as many as fit into the time in which the others would do all of them, by the last
    records; all where nobody can tell. records: the newest last."""
    latest = records[-ROUNDS:]
    own = [whole_seconds(update, steps) for record in latest for update in record.updates if update.peer == me]
    others = [whole_seconds(update, steps) for record in latest for update in record.updates if update.peer != me]
    if not own or not others:
        return steps
    mine, theirs = median(own), median(others)
    if mine <= SPREAD * theirs:
        return steps
    return max(1, min(steps, int(steps * theirs / mine)))


def least_steps(steps: int, rules: ClusterTable, planned: int) -> int:
    """Who has done fewer sends nothing: the share of all steps, but never more than were planned."""
    return min(planned, max(1, ceil(rules.least_steps * steps)))


def whole_seconds(update: Contribution, steps: int) -> float:
    """Seconds in which it would have done all steps."""
    return update.seconds * steps / update.steps
