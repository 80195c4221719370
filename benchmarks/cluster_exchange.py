"""One outer step's exchange over shaped links: how long it takes real members, beside its bound and its plan."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench_links import measured_rates
from cluster_faults import supervise
from cluster_readings import Event

from murmur.cluster.group_keys import Token
from murmur.lab.localnet import cluster as demo
from murmur.lab.localnet.links import Links
from murmur.lab.localnet.processes import Processes
from murmur.lab.localnet.training_text import text_data
from murmur.node.telemetry.events import read_events
from murmur.owner.folder import to_toml
from murmur.plan.member import ClusterPlan
from murmur.plan.rates import Rate
from murmur.plan.requirements import link
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import ConfigError

Say = Callable[[str], None]

STALLED_SECONDS = 120.0
CALLS = 15
TABLE: Mapping[str, Any] = {
    "model": {
        "vocabulary": 264,
        "layers": 4,
        "width": 320,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 1280,
        "context": 128,
        "tie_embeddings": True,
    },
    "compression": {"k": 2048, "decay": 0.95},
    "inner": {"steps": 4, "sequences": 2, "peak_lr": 1e-3, "final_lr": 1e-4, "warmup_steps": 30, "decay_steps": 4000},
    "data": {"page_sequences": 8, "held_out_sequences": 4},
    "cluster": {},
}
"""A payload of 2 MB: half of all values are sent, so that few have to be trained. Few inner steps, so that members that
share processors end them at about the same time."""
INT8: Mapping[str, Any] = {**TABLE, "outer": {"alpha": 0.7, "momentum": 0.9}, "cluster": {"exchange": "int8"}}
TABLES = {"sparse": TABLE, "int8": INT8}
PHASES = ("compress", "seal", "save", "upload", "wait", "download", "apply")
ON_THE_LINK = ("upload", "wait", "download")
"""Others' payloads come while a member waits for the record."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A round's exchange. first, last: when the first and the last member had its compressed update. applied: when the
    last one had applied the record. All in Unix seconds. members: that the record names. phases: the members' median
    seconds of each."""

    round: int
    first: float
    last: float
    applied: float
    members: int
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.applied - self.last

    @property
    def spread(self) -> float:
        return self.last - self.first


def exchanges(events: Sequence[Sequence[Event]]) -> list[Exchange]:
    """Read the rounds that all members have played to the end, from each member's events."""
    of = [{(event["event"], event["round"]): event for event in some} for some in events]
    rounds = sorted({round for some in of for _, round in some})
    found = []
    for round in rounds:
        if not all((kind, round) in some for some in of for kind in ("trained", "phases", "applied")):
            continue
        compressed = [_compressed(some["trained", round], some["phases", round]["phases"]) for some in of]
        spent = [_spent(some["phases", round]["phases"]) for some in of]
        found.append(
            Exchange(
                round,
                min(compressed),
                max(compressed),
                max(some["applied", round]["time"] for some in of),
                len(of[0]["applied", round]["contributing"]),
                {name: round_median([one.get(name, 0.0) for one in spent]) for name in PHASES},
            )
        )
    return found


def _compressed(trained: Event, phases: Sequence[Mapping[str, Any]]) -> float:
    """Return when the update was compressed: `trained` is emitted where the phase `compute` ends."""
    ends = {phase["phase"]: phase["began"] + phase["seconds"] for phase in phases}
    return float(trained["time"] + ends["compress"] - ends["compute"])


def _spent(phases: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for phase in phases:
        spent[phase["phase"]] = spent.get(phase["phase"], 0.0) + phase["seconds"]
    return spent


def round_median(values: Sequence[float]) -> float:
    return round(median(values), 3)


def planned_seconds(plan: ClusterPlan) -> float:
    """Return what the plan says of the same time: from the compressed update to the applied record. A planned round
    begins with what applies the record before."""
    timed = {one.phase.name: one for one in plan.timeline}
    applying = timed["theta digest"].ends - timed["open payloads"].begins
    return timed["follow"].ends - timed["compress"].ends + applying


def measure(folder: Path, table: Mapping[str, Any], members: int, rounds: int, mbps: float, say: Say) -> dict[str, Any]:
    """Play so many rounds of this spec and compare them, but for the first, with bound and plan."""
    path = folder / "spec.toml"
    path.write_text(to_toml(table))
    at_once = min(members, os.cpu_count() or 1)
    say(f"measuring this machine, {at_once} processes at once")
    rates = measured_rates(path, at_once, "--members", str(members))
    processes, names = demo.prepare(folder), [f"member-{number}" for number in range(1, members + 1)]
    links: Links | None = None
    try:
        token, spec = demo.set_up(folder, processes, 0, dict(table), say)
        links, data = Links(token.endpoint, names), text_data(say)
        for name in names:
            links.slow(name, mbps * 1e6 / 8, mbps * 1e6 / 8)
            own = folder / f"token-{name}"
            demo.write_token(own, token.model_copy(update={"endpoint": links.endpoint(name)}))
            words = demo.program(folder, name, token=own, data=data)
            processes.start(name, words, words)
        _await_rounds(token, spec, rounds, processes, say)
        shown = token.model_copy(update={"endpoint": links.endpoint(names[0])})
        rates = replace(rates, call=_call_rate(shown, spec), up=link(mbps), down=link(mbps))
    finally:
        processes.stop()
        if links is not None:
            links.close()
    events = [list(read_events(folder / "nodes" / name / "events.jsonl")) for name in names]
    plan = ClusterPlan(spec, 1, 0, rates, on_gpu=False, has_data=True, members=members)
    return compared(exchanges(events)[1:], plan, mbps)


def _await_rounds(token: Token, spec: ClusterSpec, rounds: int, processes: Processes, say: Say) -> None:
    """Wait for the record of so many rounds, and until all members may have applied the last of them."""
    ledger, round, since = demo.reader(token, spec), 0, time.monotonic()
    while round < rounds:
        supervise(processes)
        if time.monotonic() > since + STALLED_SECONDS:
            raise ConfigError(f"round {round} has no record after {STALLED_SECONDS:.0f} s: see the members' logs")
        if ledger.record(round) is None:
            time.sleep(1.0)
            continue
        say(f"round {round} of {rounds}")
        round, since = round + 1, time.monotonic()
    time.sleep(4.0)


def _call_rate(token: Token, spec: ClusterSpec) -> Rate:
    """Measure exchanges with the store, over a member's link."""
    ledger, taken = demo.reader(token, spec), list[float]()
    for _ in range(CALLS):
        began = time.perf_counter()
        ledger.record(0)
        taken.append(time.perf_counter() - began)
    return Rate(1 / median(taken), 1 / median(taken))


def compared(rounds: Sequence[Exchange], plan: ClusterPlan, mbps: float) -> dict[str, Any]:
    """Return medians over the rounds in which all members contributed, beside bound and plan."""
    whole = [one for one in rounds if one.members == plan.members]
    if not whole:
        raise ConfigError("no round after the first has a record that names all members: see the members' logs")
    bound = (plan.upload_bytes + plan.download_bytes) / (mbps * 1e6 / 8)
    seconds = [one.seconds for one in whole]
    planned = planned_seconds(plan)
    return {
        "exchange": plan.spec.exchange,
        "payload_bytes": plan.payload_bytes,
        "bound_seconds": round(bound, 3),
        "planned_seconds": round(planned, 3),
        "seconds": round_median(seconds),
        "seconds_least": round(min(seconds), 3),
        "seconds_most": round(max(seconds), 3),
        "of_bound": round(median(seconds) / bound, 3),
        "of_plan": round(median(seconds) / planned, 3),
        "spread_seconds": round_median([one.spread for one in whole]),
        "link_seconds": round_median([sum(one.phases[name] for name in ON_THE_LINK) for one in whole]),
        "rounds": len(rounds),
        "whole_rounds": len(whole),
        "phases": {name: round_median([one.phases[name] for one in whole]) for name in PHASES},
        "planned_phases": {one.phase.name: round(one.seconds, 3) for one in plan.timeline if one.seconds >= 0.001},
    }
