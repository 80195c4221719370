"""A node's last rounds, read from its own events: its position, the results of its work, its faults.

The file is read from its end, since it grows with the run. Apart from it only the disk is examined, so this works with
the network down.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

from murmur.node.config.run_file import LOCK, is_left, saved_runs
from murmur.node.telemetry.causes import About
from murmur.node.telemetry.events import last_events
from murmur.node.telemetry.trouble import Standing, Trouble, from_the_future, sentence
from murmur.protocol.run import Run

Event = Mapping[str, Any]

LATELY_ROUNDS = 5
"""A healthy node has contributed or judged in one of this many last rounds."""
SILENT_ROUNDS = 2.0
"""A healthy node reports a round within the planned time of this many rounds."""
FALLBACK_SECONDS = 3600.0
"""Length of a round if the run is unknown."""
FREE_BYTES = 2 << 30
WAITS_SECONDS = 600.0
"""A node that waits before its start says so every minute, as soon as its checks have run."""
TOLD = ("round_outcome", "judged")
BEGUN = ("started", "goes_on")
_FAULTS = {
    "damaged": "the disk has damaged saved files of round {round}: {lost}",
    "unobserved": "round {round} was not observed ({why})",
    "commitment_dropped": "a fork dropped the commitment of round {round}",
}
"""Texts for events of a round that went wrong, and is over."""


@dataclass(frozen=True)
class EventTail:
    """The recent events of one node. `rounds`: the last ones reported, oldest first. `faults`: faults since the oldest
    of them, newest last. `seconds`: planned length of a round. `word`: the newest one about its process. `standing`:
    the other troubles that it has said, as events. `held`: whether a process holds a state folder here; None where none
    ever has. `hotkey`: its SS58 address."""

    name: str
    run: Run | None
    newest: Event | None
    rounds: tuple[Event, ...]
    faults: tuple[str, ...]
    seconds: float
    free_bytes: int
    word: Event | None = None
    standing: tuple[Event, ...] = ()
    held: bool | None = None
    hotkey: str | None = None

    @property
    def stopped(self) -> Event | None:
        """How it stopped, unless it was started again."""
        return self.word if self.word is not None and self.word["event"] == "stopped" else None

    @property
    def on_request(self) -> bool:
        """Whether it was stopped on request."""
        return self.stopped is not None and self.stopped["fault"] is None

    @property
    def counted(self) -> bool:
        """Whether it contributed or judged in one of its last rounds."""
        return any(_counts(event) for event in self.rounds)

    def unwell(self, now: float) -> Iterator[Event]:
        """Yield why it is not healthy as of `now` (Unix seconds), as troubles' fields: it neither contributes nor
        judges, or reports nothing more."""
        if self.newest is None:
            yield Trouble("never_began").fields()
        elif (ended := self._ended(now)) is not None:
            yield ended
        else:
            yield from (trouble.fields() for trouble in self._idle(self.newest, now))

    @property
    def gone(self) -> bool:
        """Whether its process has ended without a word."""
        return self.held is False and (self.word is None or self.word["event"] in BEGUN)

    def _ended(self, now: float) -> Event | None:
        """Return why its process takes no part."""
        if self.stopped is not None:
            return Trouble("stopped", "on request" if self.on_request else str(self.stopped["fault"])).fields()
        if self.word is None or self.word["event"] in BEGUN:
            return Trouble("gone").fields() if self.gone else None
        old = self.word["cause"] == "waits" and now - self.word["time"] > WAITS_SECONDS
        return Trouble("gone").fields() if old and not self.held else self.word

    def _idle(self, newest: Event, now: float) -> Iterator[Trouble]:
        """Yield why it does nothing though its process may live."""
        if (ahead := from_the_future(newest["time"], now)) is not None:
            yield ahead
        # During a node's first training it has not reported a round: then any event is a sign of life. A round that was
        # told by a clock that was ahead ended before what was told after it.
        last = self.rounds[-1] if self.rounds else newest
        silent = now - min(last["time"], newest["time"])
        if silent > SILENT_ROUNDS * self.seconds:
            seen = f"no round has ended for {silent / 60:.0f} minutes, one takes {self.seconds / 60:.1f}"
            yield Trouble("silent", seen)
        if len(self.rounds) == LATELY_ROUNDS and not self.counted:
            outcomes = ", ".join(sorted({str(event.get("outcome", "not observed")) for event in self.rounds}))
            yield Trouble("not_counting", f"the last {LATELY_ROUNDS}: {outcomes}")

    def troubles(self, now: float) -> list[Event]:
        """Return what keeps it from its work as of `now`: what it says itself, and what only shows from outside."""
        found = list(self.standing)
        if not self.on_request:
            said = {one["cause"] for one in found}
            found += [one for one in self.unwell(now) if one["cause"] not in said]
        if self.free_bytes < FREE_BYTES and not any(one["cause"] == "disk_low" for one in found):
            found.append(Trouble("disk_low", f"{self.free_bytes / 1e9:.1f} GB left").fields())
        return found

    def wrong(self, now: float) -> Iterator[str]:
        """Yield all that is wrong as of `now`, one line each."""
        yield from map(sentence, self.troubles(now))
        yield from self.faults


def read_event_tail(home: Path) -> EventTail:
    """Read the last events of the node in `home`."""
    events = _of_one_run(last_events(home / "events.jsonl"))
    rounds = {event["round"]: event for event in events if event["event"] in TOLD}
    told = [rounds[round] for round in sorted(rounds)[-LATELY_ROUNDS:]]
    since = told[0]["round"] if told else -1
    faults = {
        (event["event"], event["round"]): _FAULTS[event["event"]].format(**event)
        for event in events
        if event["event"] in _FAULTS and event["round"] >= since
    }
    standing = Standing()
    for event in events:
        standing.take(event)
    begun = next((event for event in reversed(events) if event["event"] in BEGUN), None)
    word = next((event for event in reversed(events) if _is_of_process(event)), None)
    run = _followed(home, begun["run"] if begun is not None else None)
    locks = list(home.glob(f"*/{LOCK}"))
    clock = run.first.clock if run is not None else None
    return EventTail(
        str(events[-1]["node"]) if events else home.name,
        run,
        events[-1] if events else None,
        tuple(told),
        tuple(faults.values()),
        clock.round_blocks * clock.block_seconds if clock is not None else FALLBACK_SECONDS,
        disk_usage(home).free,
        word,
        tuple(one for one in standing.now() if one["about"] != About.PROCESS),
        any(not is_left(lock.parent) for lock in locks) if locks else None,
        begun["hotkey"] if begun is not None else None,
    )


def _is_of_process(event: Event) -> bool:
    kind = event["event"]
    return kind in BEGUN or kind == "stopped" or (kind == "trouble" and event["about"] == About.PROCESS)


def _followed(home: Path, run: str | None) -> Run | None:
    """Return the run of this id, if it is saved; if the node has not started yet, the one that begins last."""
    return next((saved for saved in saved_runs(home) if run is None or saved.id.hex() == run), None)


def _of_one_run(events: Iterable[Event]) -> list[Event]:
    """Return the events of the run that the node followed last: a home may have joined another run before."""
    found: list[Event] = []
    run = None
    for event in events:
        if event["event"] in BEGUN and (other := event["run"]) != run:
            # What was told before the first start is of the same run: it belongs to this start's checks.
            found, run = (found if run is None else []), other
        found.append(event)
    return found


def _counts(event: Event) -> bool:
    return event["unobserved"] is None if event["event"] == "judged" else event["outcome"] == "contributing"
