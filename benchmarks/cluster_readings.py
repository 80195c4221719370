"""What processes that train together have written, read as outer steps and as inner steps that reached theta."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """Inner steps at `time` (Unix seconds). members: whose they are, as a number."""

    time: float
    steps: int
    members: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """reached: the inner steps of each outer step. lost: trained to the end of a round, and in no theta. returned: too
    late for their outer step, and carried over into the next update."""

    reached: Sequence[Steps] = ()
    lost: Sequence[Steps] = ()
    returned: Sequence[Steps] = ()

    def between(self, began: float, ended: float) -> "Reading":
        """The part after `began` and until `ended`."""
        return Reading(
            *([one for one in some if began < one.time <= ended] for some in (self.reached, self.lost, self.returned))
        )


def summary(reading: Reading, began: float, ended: float) -> dict[str, Any]:
    """What came of the time between `began` and `ended` (Unix seconds)."""
    within = reading.between(began, ended)
    times = [began, *sorted(one.time for one in within.reached), ended]
    steps = sum(one.steps for one in within.reached)
    return {
        "outer_steps": len(within.reached),
        "inner_steps": steps,
        "inner_steps_an_hour": round(3600 * steps / (ended - began), 1),
        "members_an_outer_step": round(fmean(one.members for one in within.reached), 2) if within.reached else 0.0,
        "steps_lost": sum(one.steps for one in within.lost),
        "steps_returned": sum(one.steps for one in within.returned),
        "longest_standstill_seconds": round(max(later - early for early, later in pairwise(times)), 2),
    }


# --- a cluster's members -----------------------------------------------------------------------------------------


def of_members(
    events: Mapping[str, Sequence[Event]], records: Mapping[int, Mapping[str, int]], tokens_a_step: int
) -> Reading:
    """events: each member's, by its id. records: by round, the inner steps of the members that the record names. A
    round ends when the first member has applied its record."""
    applied: dict[int, float] = {}
    for event in (event for some in events.values() for event in some if event["event"] == "applied"):
        applied[event["round"]] = min(event["time"], applied.get(event["round"], event["time"]))
    reached = [
        Steps(applied[round], sum(steps.values()), len(steps))
        for round, steps in sorted(records.items())
        if round in applied
    ]
    lost, returned = list[Steps](), list[Steps]()
    for member, some in events.items():
        late = {event["round"] for event in some if event["event"] == "update_returned"}
        trained: dict[int, list[Steps]] = {}
        for event in (event for event in some if event["event"] == "trained"):
            steps = Steps(event["time"], event["tokens"] // tokens_a_step)
            trained.setdefault(event["round"], []).append(steps)
        for round, tries in trained.items():
            *again, last = tries  # what a process that was killed has trained, the next one trains again
            lost += again
            if round in records and member not in records[round]:
                (returned if round in late else lost).append(last)
    return Reading(reached, lost, returned)


# --- torchft's replicas ------------------------------------------------------------------------------------------


def of_replicas(events: Mapping[str, Sequence[Event]]) -> Reading:
    """events: each replica's (cluster_replica.py), by its name. An outer step counts once it is committed by one of
    them, with the steps of all its participants but those whose state was replaced meanwhile by another's."""
    committed: dict[int, list[Event]] = {}
    lost: list[Steps] = []
    for some in events.values():
        ended = {event["sync"]: event for event in some if event["event"] == "synced"}
        for event in (event for event in ended.values() if event["committed"]):
            committed.setdefault(event["step"], []).append(event)
        last = some[-1] if some else None
        for event in (event for event in some if event["event"] == "trained"):
            outcome = ended.get(event["sync"])
            in_flight = outcome is None and event is last
            if not in_flight and (outcome is None or outcome["healed"] or not outcome["committed"]):
                lost.append(Steps(event["time"], event["steps"]))
    return Reading([_outer_step(some) for _, some in sorted(committed.items())], lost)


def _outer_step(events: Iterable[Event]) -> Steps:
    """One outer step, as those say who have committed it."""
    some = list(events)
    members = max(event["participants"] for event in some) - sum(event["healed"] for event in some)
    return Steps(min(event["time"] for event in some), members * some[0]["steps"], members)
