"""Where a cluster's members are, by their own events (docs/events.md), where the bucket's beats cannot be read."""

from collections.abc import Mapping
from typing import Any

from murmur.page.cluster import MemberNow, State

_PHASE_AFTER = {
    "joined": "train",
    "caught_up": "train",
    "trained": "send",
    "published": "send",
    "claimed": "wait",
    "closed": "wait",
    "diverged": "join",
    "interrupted": "idle",
}
"""What a member does after an event of its round."""
_NEXT_ROUND = ("applied", "phases", "update_returned")
"""Events after which it trains in the next round."""


class MemberEvents:
    """The place of each member, by name."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int, float]] = {}
        """Name -> phase, round, and the time of the last event (Unix seconds)."""
        self._left = set[str]()

    def take(self, name: str, event: Mapping[str, Any]) -> None:
        """Fold one event; one of another kind or form is passed over."""
        kind, round, time = (event.get(field) for field in ("event", "round", "time"))
        if type(round) is not int or not isinstance(time, int | float) or not isinstance(kind, str):
            return
        if kind in _NEXT_ROUND:
            self._places[name] = "train", round + 1, time
        elif kind in _PHASE_AFTER:
            self._places[name] = _PHASE_AFTER[kind], round, time
        elif kind == "stopped" and event.get("fault") is None:
            self._left.add(name)
        elif kind == "started":
            self._left.discard(name)

    def members(self, ids: Mapping[str, str], silent_before: float, *, ended: bool) -> tuple[MemberNow, ...]:
        """Return them by name. ids: by name. silent_before: a member without an event since then (Unix seconds) is
        silent. ended: the run is over."""

        def state(name: str, time: float) -> State:
            if ended or name in self._left:
                return "left"
            return "alive" if time >= silent_before else "silent"

        return tuple(
            MemberNow(ids.get(name, name), name, state(name, time), phase, round)
            for name, (phase, round, time) in sorted(self._places.items())
        )
