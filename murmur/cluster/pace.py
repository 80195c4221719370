"""How long a cluster's members train, wait and look, from the times that the last records tell. Pure functions."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import median

from murmur.protocol.cluster import Claim, ClusterTable, Contribution, Record
from murmur.protocol.types import PeerId

ROUNDS = 4
"""Number of last rounds from which the durations of steps are taken."""
SPREAD = 1.1
"""A member at most this many times slower than the others is as fast as they: its speed varies from day to day."""

LOOK, SHORTEST_LOOK = 0.05, 0.1
"""Between two looks lies at most this share of a round's inner steps, and at least so many seconds."""
SLOWEST_BYTES = 125_000.0
"""Bytes per second of the slowest link that a member waits for: 1 Mb/s."""
LATE = 0.1
"""A member is late if this share of the others' usual time has passed when it begins a round."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long inner steps take. steps: of a round. records: of the last rounds, the newest last. step_seconds: of one
    step, in the last round that we trained."""

    steps: int
    records: Sequence[Record] = ()
    step_seconds: float | None = None


def grace_seconds(rules: ClusterTable, claims: Collection[Claim]) -> float:
    """Return how long the rest is waited for, from the times of the members that have claimed. It is two steps, since
    the rest is slower and in the middle of one; plus the time to send; plus the `grace` share of the training time, but
    at least two beats, so that claims can be seen."""
    if not claims:
        return 2 * rules.beat_seconds
    trained = median(claim.seconds for claim in claims)
    step = median(claim.seconds / claim.steps for claim in claims)
    return max(2 * rules.beat_seconds, rules.grace * trained) + 2 * step + median(claim.sending for claim in claims)


def seconds_left(
    rules: ClusterTable,
    steps: int,
    records: Sequence[Record],
    me: PeerId,
    passed: float,
    step_seconds: float | None = None,
) -> float | None:
    """Return the seconds that a slower member, or one that begins the round late, trains: so long that the others see
    its claim when the faster half of them usually end their inner steps, but at most `LATE` of that time less than
    they. Return None for any other member, which does all `steps` or ends when most have claimed, and where no record
    tells the others' time.

    records: the newest last. passed: seconds since most of the others began. step_seconds: duration of our last step,
    for a member that no record names."""
    updates = [update for record in records[-ROUNDS:] for update in record.updates]
    own, others = [u for u in updates if u.member == me], [u for u in updates if u.member != me]
    usual = usual_seconds(others, steps)
    if usual is None:
        return None
    mine = [whole_seconds(update, steps) for update in own]
    mine = mine or ([step_seconds * steps] if step_seconds is not None else [])
    slower = bool(mine) and median(mine) > SPREAD * usual
    if not slower and passed <= LATE * usual:
        return None
    claiming = median(update.sending for update in own or others) + rules.beat_seconds / 2
    # Where claiming takes most of a round, it still trains for the rest.
    return max(0.0, usual - passed - min(claiming, LATE * usual))


def usual_seconds(updates: Collection[Contribution], steps: int) -> float | None:
    """Return the seconds in which the faster half of these members do all steps: the median of their medians, so that
    fast machines do not wait for a slow majority. None if there are none."""
    seconds: dict[PeerId, list[float]] = defaultdict(list)
    for update in updates:
        seconds[update.member].append(whole_seconds(update, steps))
    usual = sorted(map(median, seconds.values()))
    return median(usual[: (len(usual) + 1) // 2]) if usual else None


def rounds_in(seconds: float, records: Sequence[Record], steps: int) -> float:
    """Return the number of rounds that so much time holds at most; infinite where no record tells."""
    usual = usual_seconds([update for record in records[-ROUNDS:] for update in record.updates], steps)
    return seconds / usual if usual else inf


def look_seconds(rules: ClusterTable, records: Sequence[Record]) -> float:
    """Return the seconds between two looks at a round's claims and record: half a beat, but a small share of a short
    round, since a member that sees the record late begins the next round late."""
    latest = [update.seconds for record in records[-ROUNDS:] for update in record.updates]
    half = rules.beat_seconds / 2
    return min(half, max(SHORTEST_LOOK, LOOK * median(latest))) if latest else half


def least_steps(rules: ClusterTable, steps: int) -> int:
    """Return the steps below which a member sends nothing: a share of all."""
    return max(1, ceil(rules.least_steps * steps))


def whole_seconds(update: Contribution, steps: int) -> float:
    """Return the seconds in which it would have done all steps."""
    return update.seconds * steps / update.steps
