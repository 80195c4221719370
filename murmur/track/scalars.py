"""What a tracker shows of an event: its numbers, by name. Pure functions."""

from collections import defaultdict
from collections.abc import Mapping
from math import isfinite
from typing import Any

_HEAD = {"time", "node", "event", "round"}
_NOT_TRACKED = {"started", "goes_on", "trouble", "mended", "subnet_changed"}


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the event's numbers as `EVENT/FIELD`. Flags are 0 or 1, lists are counted, and seconds of parts are
    `EVENT/seconds/PART`. `phases` gives each phase's seconds and `utilization`, the share of the round that trains.
    Null and what is no number is left out."""
    kind = event.get("event")
    if not isinstance(kind, str) or kind in _NOT_TRACKED:
        return {}
    if kind == "phases":
        return _phases(event.get("phases"))
    found = dict[str, float]()
    for name, value in event.items():
        if name not in _HEAD:
            found |= _numbers(f"{kind}/{name}", value)
    if kind == "round_outcome":
        found["round_outcome/contributing"] = float(event.get("outcome") == "contributing")
    compute = found.get("trained/seconds/compute", 0.0)
    if compute > 0 and "trained/tokens" in found:
        found["trained/tokens_per_second"] = found["trained/tokens"] / compute
    return found


def _numbers(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, (bool, int, float)):
        return {name: float(value)} if isfinite(value) else {}
    if isinstance(value, list):
        return {name: float(len(value))}
    if isinstance(value, dict):
        parts = (_numbers(f"{name}/{part}", one) for part, one in value.items() if not isinstance(one, (list, dict)))
        return {found: number for part in parts for found, number in part.items()}
    return {}


def _phases(phases: Any) -> dict[str, float]:
    """Return each phase's seconds in a round, and the share in which inner steps ran."""
    seconds, first, last = defaultdict[str, float](float), 0.0, 0.0
    for one in phases if isinstance(phases, list) else []:
        if isinstance(one, dict) and all(isinstance(one.get(part), (int, float)) for part in ("began", "seconds")):
            seconds[str(one.get("phase"))] += one["seconds"]
            first, last = min(first, one["began"]), max(last, one["began"] + one["seconds"])
    found = {f"phases/{name}": total for name, total in seconds.items()}
    if last > first and "compute" in seconds:
        found["utilization"] = min(1.0, seconds["compute"] / (last - first))
    return found
