"""What keeps a node from its work.

The node derives its troubles itself, once, and writes them as events. Log, `murmur status`, `doctor` and `explain`, the
page, metrics and alerts show the same words (murmur/node/telemetry/causes.py). An event carries them whole, so that a
reader needs no table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any, Protocol

from loguru import logger

from murmur.node.telemetry.causes import CAUSES, About, Cause, Owner
from murmur.protocol.errors import STATE_PRUNED, ChainError, StorageCause, StorageError, one_line
from murmur.protocol.ports import Time


class Emitter(Protocol):
    """What takes events: a node's Events."""

    def emit(self, event: str, round: int, **fields: Any) -> None: ...


class Nobody:
    """Takes events for nobody."""

    def emit(self, event: str, round: int, **fields: Any) -> None:
        pass


_REFUSALS = {
    "AccountNotAllowedCommit": "not_registered",
    "HotKeyNotRegisteredInSubNet": "not_registered",
    "SpaceLimitExceeded": "posts_used_up",
    "Payment": "no_money",
    STATE_PRUNED: "chain_pruned",
}
"""The chain's names of refusals -> our causes."""
_BY_STORE = {each: f"bucket_{each}" for each in StorageCause} | {StorageCause.NO_BUCKET: "bucket_missing"}
DETAIL_CHARACTERS = 2000
CLOCK_SECONDS = 60.0
"""Clocks are set right by less."""
"""A chain node may answer with a text of any length; all failed checks of a start, with what to do, have room."""
_WHOSE: Mapping[str, str] = {Owner.YOU: "yours to mend", Owner.EITHER: "yours or your provider's to mend"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble: a cause, and what was seen of it, in our own words and numbers."""

    cause: str
    detail: str = ""

    @property
    def of(self) -> Cause:
        return CAUSES[self.cause]

    def fields(self) -> dict[str, Any]:
        """Return it as an event's fields."""
        of = self.of
        fields = {
            "about": of.about,
            "cause": self.cause,
            "owner": of.owner,
            "says": of.says,
            "detail": one_line(self.detail, DETAIL_CHARACTERS),
            "costs": of.costs,
            "do": of.do,
        }
        return fields

    def __str__(self) -> str:
        return sentence(self.fields())


def of_own_bucket(fault: StorageError, where: str = "") -> Trouble:
    """Return the trouble that this fault of our own bucket shows. where: which bucket that is, in words."""
    cause = _BY_STORE[fault.cause] if fault.cause is not None else "bucket_fails"
    seen = fault.seen if fault.cause is not None and fault.seen else str(fault)
    return Trouble(cause, f"{seen}, {where}" if where else seen)


def of_chain(fault: ChainError) -> Trouble:
    """Return the trouble that this fault of the chain shows: a refusal by name, or no answer."""
    if fault.code is None:
        return Trouble(fault.cause or "chain_silent", str(fault))
    return Trouble(_REFUSALS.get(fault.code, "chain_refuses"), str(fault))


def seen(fields: Mapping[str, Any]) -> str:
    """Return what a trouble's fields say is so."""
    return f"{fields['says']} ({fields['detail']})" if fields["detail"] else str(fields["says"])


def sentence(fields: Mapping[str, Any]) -> str:
    """Return a trouble's fields as one line for people: what, whose, cost, remedy."""
    owner = str(fields["owner"])  # of a file that anything may have written
    whose = _WHOSE.get(owner, f"{owner}'s to mend, not yours")
    return f"{seen(fields)}; {whose}. It costs: {fields['costs']}. Do: {fields['do']}"


class Standing:
    """The troubles of one node, as its events tell them, one process after another."""

    def __init__(self) -> None:
        self._found: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event of any kind. A process that starts, waits or can't start begins anew: what still holds is
        said again. A node that was stopped on request is kept from nothing."""
        kind = event.get("event")
        if kind == "started" or (kind == "stopped" and event.get("fault") is None):
            self._found.clear()
        elif kind == "mended":
            self._found.pop(str(event.get("about")), None)
        elif kind == "trouble" and event.keys() >= FIELDS:
            if event["about"] == About.PROCESS:
                self._found.clear()
            self._found[str(event["about"])] = event
        elif kind == "stopped" and (fault := event.get("fault")) is not None:
            self._found[About.PROCESS] = {**event, **Trouble("stopped", str(fault)).fields()}

    def now(self) -> list[Mapping[str, Any]]:
        """Return them as their events, the one that was said first first."""
        return sorted(self._found.values(), key=lambda event: str(event.get("time")))


FIELDS = frozenset(Trouble("stopped").fields())


def write(events: Emitter, round: int, trouble: Trouble) -> None:
    """Write a trouble as an event."""
    fields = trouble.fields()
    events.emit("trouble", round, **fields)


class Troubles:
    """The troubles of a running node. Each is logged and emitted when it begins, and again once a planned round while
    it lasts; its end is, too. One that comes and goes is said to be mended once it has stayed away for a planned round.
    Thread-safe: what is said last is what is so, since it is said under the lock."""

    def __init__(self, events: Emitter, round_seconds: float, time: Time) -> None:
        self._events, self._again, self._time = events, round_seconds, time
        self._lock = Lock()
        self._here: dict[About, Trouble] = {}
        self._said: dict[tuple[About, str], float] = {}
        """When each cause was said last."""
        self._seen: dict[About, float] = {}
        """When there was trouble about this last, said or not."""
        self._ended: dict[About, float] = {}
        """When the last trouble about this was said to be mended."""
        self._returns = set[About]()
        """What came again within a planned round of its end."""

    def tell(self, round: int, trouble: Trouble) -> None:
        """Say that this is so now."""
        about, cause = trouble.of.about, trouble.cause
        with self._lock:
            now = self._time.now()
            begins = about not in self._here
            if begins and now < self._ended.get(about, -inf) + self._again:
                self._returns.add(about)
            self._here[about], self._seen[about] = trouble, now
            if not begins and now < self._said.get((about, cause), -inf) + self._again:
                return
            self._said[about, cause] = now
            write(self._events, round, trouble)
            level = "ERROR" if trouble.of.owner is Owner.YOU else "WARNING"
            logger.log(level, "round {round}: {trouble}", round=round, trouble=str(trouble))

    def mended(self, round: int, about: About, *causes: str) -> None:
        """Say that there is no trouble about this any more; with `causes`, none of these."""
        with self._lock:
            now, before = self._time.now(), self._here.get(about)
            if before is None or (causes and before.cause not in causes):
                return
            if about in self._returns and now < self._seen[about] + self._again:
                return
            self._returns.discard(about)
            del self._here[about]
            self._ended[about] = now
            self._events.emit("mended", round, about=about, cause=before.cause)
            logger.info("round {round}: mended: {says}", round=round, says=before.of.says)

    def look(self, round: int, about: About, trouble: Trouble | None) -> None:
        """Say which trouble there is about this now, or that there is none."""
        if trouble is None:
            self.mended(round, about)
        else:
            self.tell(round, trouble)

    def now(self) -> list[Trouble]:
        """Return what there is."""
        with self._lock:
            return list(self._here.values())

    def lately(self, *abouts: About) -> bool:
        """Whether there is trouble about one of these, or was within a planned round."""
        with self._lock:
            since = self._time.now() - self._again
            return any(about in self._here or self._seen.get(about, since) > since for about in abouts)


def from_the_future(when: float, now: float) -> Trouble | None:
    """Return the trouble of a last event of `when` as of `now` (Unix seconds): a clock that was set back. It shows no
    life."""
    if when - now <= CLOCK_SECONDS:
        return None
    seen = f"its last event lies {(when - now) / 60:.0f} minutes in the future, so the clock was set back"
    return Trouble("clock_wrong", seen)
