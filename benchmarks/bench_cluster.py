"""A cluster of real processes on slow links: its exchange beside the bound, and its inner steps beside torchft's under
the same faults.

    python benchmarks/bench_cluster.py exchange
    python benchmarks/bench_cluster.py torchft --seeds 3        # as root, with torchft==0.2.0
    python benchmarks/bench_cluster.py soak --minutes 30
    python benchmarks/bench_cluster.py table

*exchange*: members (neurons/member.py) behind proxies (murmur/lab/localnet/links.py) that give each an uplink and a
downlink of `--mbps`. Measured is the time from the compressed update of the member that is last with it until all
members have applied the record. The bound is what the links alone take where all members end at once, one transfer
after the other: W * S / rate for payloads of S bytes (one up, W - 1 down). With `--exchange int8` each sums a part for
all, which takes (3 - 1/W) * S / rate (1 + 1/W up, 2 (W - 1)/W down). The plan is `murmur plan --members`, by this
machine's own rates as one process on each processor finds them. Where the members end far apart (`spread_seconds`), the
last one finds the others' payloads here already. The exit status is 1 when the median is over 1.15 of the bound or more
than 10 % from the plan.

*torchft*: members of a cluster, and torchft's DiLoCo over gloo, one side after the other: same model, theta_0, data,
inner optimizer and number of inner steps, and the same faults at the same seconds, drawn from the seed (kill -9 and a
restart, SIGSTOP for some seconds). Each process has a network namespace with links that the kernel shapes to `--mbps`;
store and lighthouse are in the hub, whose links are not limited. One supervisor restarts the processes of both
(murmur/lab/localnet/processes.py). Measured, once all have taken part in an outer step, for `--minutes`: the inner
steps that reached theta an hour; steps that were trained to the end of a round and lost, or carried over; outer steps;
the longest time without one; and the held-out loss after the last outer step.

torchft's settings are those of its documents. README: `min_replicas` 1, `quorum_tick_ms` 100, `join_timeout_ms` 10000
(--join sets another one). Its example of DiLoCo: Manager's `timeout` 30 s and `min_replica_size` 1, outer SGD 0.7 with
Nesterov 0.9. Defaults: `quorum_timeout` 60 s; a process that does not beat is given up after 5 s, as a member is here.
Changed in its favour: gloo's time-out is the example's 5 s and what state transfer and all-reduce take on this link, or
no replica gets its state in time; `quorum_retries` is 10 in place of 0, `init_sync` off, and gradients go in one
bucket. Its int8 all-reduce needs a GPU.

*soak*: the demo's cluster for `--minutes`, under faults drawn from the seed: a member is killed or stopped, its link
passes nothing, or the store is killed. The exit status is 1 when two members hold different thetas, a surviving member
repeats a step, a wait has no fault near it, or fewer than 90 % of the members that nothing hit are in a record.

Results are rows of a file (--rows); what it has already is not run again. `table` prints them.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cluster_namespaces
from evidence import rows
from evidence.rows import Row

from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from cluster_sides import Side

ROWS = rows.ROOT / "benchmarks/results/cluster_here.jsonl"
MOST_OF_BOUND, MOST_OFF_PLAN = 1.15, 0.10
LEAST_PARTICIPATION = 0.9
START_SECONDS = 240.0
"""Until all members have taken part in an outer step."""


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def mark(table: Mapping[str, Any]) -> str:
    """A name for these values: of a run's settings, of a spec."""
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def ensure(
    path: Path, settings: dict[str, Any], run: Callable[[Path], dict[str, Any]], folder: Path | None = None
) -> Row:
    """The row of these settings: from the file, or run now and appended to it. folder: keeps the run's files."""
    name = mark(settings)
    known = {row["id"]: row for row in rows.read([path])}
    if name in known:
        say(f"{settings} is in {path} already")
        return known[name]
    with rows.writing(path) as writer, tempfile.TemporaryDirectory(prefix="bench-cluster-") as scratch:
        began, load = time.time(), os.getloadavg()[0]
        place = Path(scratch) if folder is None else folder / name
        place.mkdir(parents=True, exist_ok=folder is None)
        result = run(place)
        result["load"] = [round(one, 1) for one in (load, os.getloadavg()[0])]
        row = {"id": name, "settings": settings, "result": result, "seconds": round(time.time() - began, 1)}
        row |= {"commit": rows.commit(), "machine": rows.machine(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        writer.append(row)
    return row


# --- exchange ----------------------------------------------------------------------------------------------------


def exchange(options: argparse.Namespace) -> list[Row]:
    from cluster_exchange import TABLES, measure

    if options.members < 2 or options.rounds < 2:
        raise ConfigError("two members and two rounds are the least: the first round does not count")
    table = TABLES[options.exchange]
    settings = {"part": "exchange", "spec": mark(table), "members": options.members, "mbps": options.mbps}
    settings["rounds"] = options.rounds
    return [
        ensure(
            options.rows,
            settings,
            lambda folder: measure(folder, table, options.members, options.rounds, options.mbps, say),
            options.folder,
        )
    ]


def kept(row: Row) -> bool:
    """Whether the figures that were asked for are met."""
    result = row["result"]
    if row["settings"]["part"] == "soak":
        whole = result["identical"] and result["participation"] >= LEAST_PARTICIPATION
        return bool(whole and not result["repeated_steps"] and not result["unexplained_waits"])
    if row["settings"]["part"] != "exchange":
        return True
    return bool(result["of_bound"] <= MOST_OF_BOUND and abs(result["of_plan"] - 1) <= MOST_OFF_PLAN)


# --- soak --------------------------------------------------------------------------------------------------------


def soak(options: argparse.Namespace) -> list[Row]:
    from cluster_soak import measure

    settings = {"part": "soak", "members": options.members, "minutes": options.minutes, "seed": options.seed}
    settings |= {"faults_an_hour": options.faults_per_hour}
    play = partial(
        measure,
        members=options.members,
        minutes=options.minutes,
        seed=options.seed,
        per_hour=options.faults_per_hour,
        say=say,
    )
    return [ensure(options.rows, settings, play, options.folder)]


# --- beside torchft ----------------------------------------------------------------------------------------------


def beside_torchft(options: argparse.Namespace) -> list[Row]:
    cluster_namespaces.require()
    cluster_namespaces.enter()
    import torch
    from cluster_sides import SIDES, require_torchft, spec_table

    require_torchft()
    torch.set_num_threads(1)
    found = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        # Each side goes first as often as the other.
        for side in sorted(SIDES, reverse=bool(seed % 2)):
            settings = {
                "part": "torchft",
                "spec": mark(spec_table()),
                "side": side,
                "seed": seed,
                "members": options.members,
                "mbps": options.mbps,
                "minutes": options.minutes,
                "faults_an_hour": options.faults_per_hour,
            } | ({"join": options.join} if side == "torchft" else {})
            run = partial(one_side, settings=settings, join=options.join)
            found.append(ensure(options.rows, settings, run, options.folder))
    return found


def one_side(folder: Path, settings: Mapping[str, Any], join: float) -> dict[str, Any]:
    """Run one side under its faults; return what became of it."""
    from cluster_faults import play, schedule
    from cluster_readings import summary
    from cluster_sides import LIGHTHOUSE, SIDES, STORE, Setting

    setting = Setting(settings["members"], settings["mbps"], settings["seed"], join)
    seconds = 60 * settings["minutes"]
    faults = schedule(setting.seed, setting.members, seconds, settings["faults_an_hour"])
    say(f"{settings['side']}, seed {setting.seed}: {setting.members} processes, {len(faults)} faults")
    network = cluster_namespaces.Namespaces(setting.names, setting.mbps)
    side = SIDES[settings["side"]](folder, setting, network)
    try:
        spec = side.start(say)
        _await_all(side, setting.members)
        began = time.time()
        came = play(faults, seconds, side.processes, setting.names, say)
        ended = time.time()
        side.processes.stop(spared=(STORE, LIGHTHOUSE))
        result = summary(side.reading(), began, ended)
        result["loss"] = side.loss(spec)
        result["faults"] = [[fault.kind, fault.member, at] for fault, at in zip(faults, came, strict=False)]
        result |= {"restarts": {name: side.processes.children[name].restarts for name in setting.names}}
        return result | side.settings(spec)
    finally:
        side.close()
        network.close()


def _await_all(side: "Side", members: int) -> None:
    """Wait until all have taken part in an outer step. Raises ConfigError when that takes too long."""
    from cluster_faults import supervise

    until = time.monotonic() + START_SECONDS
    while (count := side.taken_part()) < members:
        supervise(side.processes)
        if time.monotonic() > until:
            raise ConfigError(f"after {START_SECONDS:.0f} s {count} of {members} have taken part in an outer step")
        time.sleep(0.5)


# --- output ------------------------------------------------------------------------------------------------------

Columns = Mapping[str, Callable[[Row], Any]]

EXCHANGE_COLUMNS: Columns = {
    "Mb/s": lambda row: row["settings"]["mbps"],
    "exchange": lambda row: row["result"].get("exchange", "sparse"),
    "members": lambda row: row["settings"]["members"],
    "payload, MB": lambda row: f"{row['result']['payload_bytes'] / 1e6:.2f}",
    "bound, s": lambda row: row["result"]["bound_seconds"],
    "plan, s": lambda row: row["result"]["planned_seconds"],
    "measured, s (range)": lambda row: "{seconds} ({seconds_least} - {seconds_most})".format(**row["result"]),
    "on the link, s": lambda row: row["result"]["link_seconds"],
    "of bound": lambda row: row["result"]["of_bound"],
    "of plan": lambda row: row["result"]["of_plan"],
    "apart at the end, s": lambda row: row["result"]["spread_seconds"],
    "rounds": lambda row: row["result"]["whole_rounds"],
    "load": lambda row: _load(row),
}
SOAK_COLUMNS: Columns = {
    name: (lambda row, name=name: row["result"][name])  # type: ignore[misc]
    for name in (
        "rounds",
        "faults",
        "identical",
        "participation",
        "outage_rounds",
        "outage_rounds_that_name_all_living",
        "unexplained_waits",
        "longest_round_seconds",
        "repeated_steps",
        "megabytes_first_half",
        "megabytes_second_half",
        "load",
    )
}
SIDE_COLUMNS: Columns = {
    "seed": lambda row: row["settings"]["seed"],
    "side": lambda row: _side(row),
    "steps an hour": lambda row: row["result"]["inner_steps_an_hour"],
    "steps": lambda row: row["result"]["inner_steps"],
    "lost": lambda row: row["result"]["steps_lost"],
    "carried over": lambda row: row["result"]["steps_returned"],
    "outer steps": lambda row: row["result"]["outer_steps"],
    "members in one": lambda row: row["result"]["members_an_outer_step"],
    "longest without, s": lambda row: row["result"]["longest_standstill_seconds"],
    "held-out loss": lambda row: row["result"]["loss"],
    "faults": lambda row: len(row["result"]["faults"]),
    "load": lambda row: _load(row),
}


def _load(row: Row) -> str:
    return " to ".join(map(str, row["result"]["load"]))


def _side(row: Row) -> str:
    join = row["settings"].get("join")
    return row["settings"]["side"] if join is None else f"torchft, join {join:g} s"


def table(found: Iterable[Row]) -> str:
    """The rows as tables in Markdown."""
    found = list(found)
    lines: list[str] = []
    for part, columns in (("exchange", EXCHANGE_COLUMNS), ("torchft", SIDE_COLUMNS), ("soak", SOAK_COLUMNS)):
        some = [row for row in found if row["settings"]["part"] == part]
        if some:
            lines += ["", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
            lines += [f"| {' | '.join(str(of(row)) for of in columns.values())} |" for row in some]
    return "\n".join(lines[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True, dest="part")

    def add(name: str, run: Callable[[argparse.Namespace], list[Row]], what: str) -> argparse.ArgumentParser:
        part = parts.add_parser(name, help=what, description=what)
        part.set_defaults(run=run)
        part.add_argument("--rows", type=Path, default=ROWS, help="file of results (default %(default)s)")
        part.add_argument("--json", action="store_true", help="a line for each row, for machines")
        return part

    first = add("exchange", exchange, "one outer step's exchange beside its bound and its plan")
    first.add_argument("--exchange", choices=["sparse", "int8"], default="sparse", help="(default %(default)s)")
    first.add_argument("--members", type=int, default=4, help="(default %(default)s)")
    first.add_argument("--rounds", type=int, default=9, help="the first does not count (default %(default)s)")
    third = add("soak", soak, "a long time under faults")
    third.add_argument("--members", type=int, default=4, help="(default %(default)s)")
    third.add_argument("--minutes", type=float, default=30.0, help="(default %(default)s)")
    third.add_argument("--seed", type=int, default=0, help="(default %(default)s)")
    third.add_argument("--faults-per-hour", type=float, default=125.0, help="(default %(default)s)")
    third.add_argument("--folder", type=Path, help="keep the run's files there (default: nowhere)")
    second = add("torchft", beside_torchft, "inner steps that reach theta under faults, beside torchft's")
    second.add_argument("--members", type=int, default=3, help="(default %(default)s)")
    second.add_argument("--minutes", type=float, default=2.0, help="of each side (default %(default)s)")
    second.add_argument("--seeds", type=int, default=1, help="(default %(default)s)")
    second.add_argument("--first-seed", type=int, default=0, help="(default %(default)s)")
    second.add_argument("--faults-per-hour", type=float, default=125.0, help="(default %(default)s)")
    second.add_argument("--join", type=float, default=10.0, help="torchft's join time-out, s (default %(default)s)")
    for part in (first, second):
        part.add_argument("--folder", type=Path, help="keep the runs' files there (default: nowhere)")
        part.add_argument("--mbps", type=float, default=32.0, help="each way of each link (default %(default)s)")
    add("table", lambda options: rows.read([options.rows]), "print the results that there are")
    options = parser.parse_args()
    try:
        found = options.run(options)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("".join(json.dumps(row) + "\n" for row in found) if options.json else table(found) + "\n")
    return 0 if all(map(kept, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
