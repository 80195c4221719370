"""A cluster of real processes for a long time under faults: killed, stopped, cut off, and the store killed."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from cluster_faults import ALL_KINDS, Fault, play, schedule
from cluster_readings import Event

from murmur.cluster.bootstrap import member_id
from murmur.configs import presets
from murmur.lab.localnet import cluster as demo
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.training_text import text_data
from murmur.node.telemetry.events import read_events
from murmur.protocol.errors import ConfigError

Say = Callable[[str], None]

MEMORY_SECONDS = 5.0
START_SECONDS = 120.0
LONG = 3.0
"""A wait for a record is long from so many usual rounds on."""


@dataclass(frozen=True, slots=True)
class Down:
    """`member`, or all if it is None, may have been unable to take part from `began` to `ended`, in Unix seconds."""

    member: str | None
    began: float
    ended: float

    def hits(self, began: float, ended: float) -> bool:
        return self.began < ended and began < self.ended


def measure(folder: Path, members: int, minutes: float, seed: int, per_hour: float, say: Say) -> dict[str, Any]:
    """Play the demo's cluster for so long under the faults of this seed; return what became of it."""
    names = [f"member-{number}" for number in range(1, members + 1)]
    faults = schedule(seed, members, 60 * minutes, per_hour, ALL_KINDS)
    processes, memory = demo.prepare(folder), Memory(names)
    links: Links | None = None
    try:
        token, spec = demo.set_up(folder, processes, seed, presets.table("tiny"), say)
        links, data = Links(token.endpoint, names), text_data(say)
        for name in names:
            own = folder / f"token-{name}"
            demo.write_token(own, token.model_copy(update={"endpoint": links.endpoint(name)}))
            words = demo.program(folder, name, token=own, data=data)
            processes.start(name, words, words)
        _await_all(folder, names)
        began = time.time()
        pids = {name: processes.children[name] for name in names}
        look = lambda: memory.look(time.time() - began, {name: one.process.pid for name, one in pids.items()})  # noqa: E731
        came = play(faults, 60 * minutes, processes, names, say, links, look)
        ended = time.time()
        processes.stop(spared=("store",))
        ledger, records = demo.reader(token, spec), list[Mapping[str, int]]()
        while (record := ledger.record(len(records))) is not None:
            records.append({one.member.hex(): one.steps for one in record.updates})
        ids = {name: member_id(spec.digest, name).hex() for name in names}
    finally:
        processes.stop()
        if links is not None:
            links.close()
    events = {ids[name]: list(read_events(folder / "nodes" / name / "events.jsonl")) for name in names}
    downs = [_down(fault, began + at, [ids[name] for name in names]) for fault, at in zip(faults, came, strict=False)]
    step_tokens = spec.inner.sequences * spec.model.context
    played = demo.results(folder, names, len(records), sum(fault.kind == "kill" for fault in faults), step_tokens)
    return {
        "faults": {kind: sum(fault.kind == kind for fault in faults[: len(came)]) for kind in ALL_KINDS},
        "identical": played["identical"],
        "repeated_steps": played["repeated_steps"],
        "loss_first": round(played["loss_first"], 3),
        "loss_last": round(played["loss_last"], 3),
        **summary(events, records, downs, began, ended),
        "restarts": {name: processes.children[name].restarts for name in names},
        **memory.summary(60 * minutes),
    }


def _await_all(folder: Path, names: Sequence[str]) -> None:
    until = time.monotonic() + START_SECONDS
    while not all(_has_applied(folder, name) for name in names):
        if time.monotonic() > until:
            raise ConfigError(f"after {START_SECONDS:.0f} s not all members have applied a record: see their logs")
        time.sleep(0.5)


def _has_applied(folder: Path, name: str) -> bool:
    path = folder / "nodes" / name / "events.jsonl"
    return path.exists() and any(event["event"] == "applied" for event in read_events(path))


def _down(fault: Fault, at: float, ids: Sequence[str]) -> Down:
    return Down(None if fault.kind == "store" else ids[fault.member], at, at + fault.over - fault.at)


def summary(
    events: Mapping[str, Sequence[Event]],
    records: Sequence[Mapping[str, int]],
    downs: Sequence[Down],
    began: float,
    ended: float,
) -> dict[str, Any]:
    """Read what became of the rounds between `began` and `ended`. events: of each member, by its id. records: by round,
    the inner steps of the members that the record names.

    participation: of the members that nothing hit in a whole round, the share that its record names. A round of a
    store's outage counts, since its record has to name all the living.
    """
    applied: dict[int, float] = {}
    for event in (event for some in events.values() for event in some if event["event"] == "applied"):
        applied[event["round"]] = min(event["time"], applied.get(event["round"], event["time"]))
    played = [one for one in sorted(applied) if began < applied[one] <= ended and one < len(records)]
    of_members = [down for down in downs if down.member is not None]
    lived = named = outages = whole_outages = 0
    waits: list[tuple[float, bool]] = []
    for before, now in pairwise(played):
        start, end = applied[before], applied[now]
        hit = {down.member for down in of_members if down.hits(start, end)}
        living = [member for member in events if member not in hit]
        lived += len(living)
        named += sum(member in records[now] for member in living)
        store = any(down.member is None and down.hits(start, end) for down in downs)
        outages += store
        whole_outages += store and all(member in records[now] for member in living)
        waits.append((end - start, store or bool(hit)))
    usual = median(seconds for seconds, _ in waits) if waits else 0.0
    return {
        "rounds": len(played),
        "round_seconds": round(usual, 2),
        "participation": round(named / lived, 4) if lived else 0.0,
        "outage_rounds": outages,
        "outage_rounds_that_name_all_living": whole_outages,
        "unexplained_waits": sum(seconds > LONG * usual and not near for seconds, near in waits),
        "longest_round_seconds": round(max((seconds for seconds, _ in waits), default=0.0), 1),
        "steps": sum(sum(records[one].values()) for one in played),
    }


class Memory:
    """What the members' processes hold: the greatest resident size in each half of the time."""

    def __init__(self, names: Sequence[str]) -> None:
        self.seen: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
        self._next = 0.0

    def look(self, passed: float, pids: Mapping[str, int]) -> None:
        if passed < self._next:
            return
        self._next = passed + MEMORY_SECONDS
        for name, pid in pids.items():
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            except (OSError, IndexError):
                continue  # it died
            self.seen[name].append((passed, pages * os.sysconf("SC_PAGE_SIZE")))

    def summary(self, seconds: float) -> dict[str, Any]:
        halves: tuple[list[int], list[int]] = [], []
        for passed, size in (one for some in self.seen.values() for one in some):
            halves[passed > seconds / 2].append(size)
        return {
            "megabytes_first_half": round(max(halves[0], default=0) / 1e6, 1),
            "megabytes_second_half": round(max(halves[1], default=0) / 1e6, 1),
        }
