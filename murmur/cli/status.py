"""`murmur status`: a node's current round, its last rounds' outcomes, the next weights, and problems."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from murmur.node.telemetry.event_tail import EventTail

_INDENT = "  "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="with --run: names of nodes (default: all)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run folder of a local network")
    parser.add_argument("--config", metavar="FILE", help="TOML file of a node, for its home")
    parser.add_argument("--home", help="folder of the node's state (default ~/.murmur)")
    parser.add_argument("--check", action="store_true", help="is it healthy: does it contribute, or judge?")


def run(options: argparse.Namespace) -> int:
    """Print the status. The exit status is 0 when nothing is wrong, or, with --check, when the node is healthy, else 1.
    Raises ConfigError where there is no node."""
    from murmur.node.telemetry.event_tail import read_event_tail
    from murmur.node.telemetry.trouble import sentence

    # A network that has ended is not expected to send signs of life.
    ended = options.run is not None and (options.run / "report.json").exists()
    found = []
    for home in _homes(options):
        tail = read_event_tail(home)
        now = tail.newest["time"] if ended and tail.newest is not None else time.time()
        found.append((home, tail, list(map(sentence, tail.unwell(now)) if options.check else tail.wrong(now))))
    if options.check:
        texts = [what for _, _, wrong in found for what in wrong]
    elif len(found) == 1:
        texts = _lines(*found[0], ended)
    else:
        texts = _table([(tail, wrong) for _, tail, wrong in found], ended)
    if options.run is not None and not options.check:
        texts += _evaluated(options.run)
    sys.stdout.write("".join(f"{line}\n" for line in texts))
    return int(any(wrong for _, _, wrong in found))


def _evaluated(folder: Path) -> list[str]:
    """Return the newest evaluated checkpoint (`murmur evaluate`)."""
    from murmur.export.rows import described, read_rows
    from murmur.page.evaluations import in_folder

    return [f"evaluated: {described(row)}" for row in read_rows(in_folder(folder))[-1:]]


def _homes(options: argparse.Namespace) -> list[Path]:
    if options.run is None:
        from murmur.node.config.settings import load_home

        if options.names:
            raise ConfigError("names of nodes need --run")
        flags = {name: value for name in ("config", "home") if (value := getattr(options, name)) is not None}
        home = load_home(flags, os.environ)
        if not home.is_dir():
            raise ConfigError(f"{home} is not a node's home: give --home, --config or --run")
        return [home]
    known = {path.parent.name: path.parent for path in sorted(options.run.glob("nodes/*/node.toml"))}
    if not known:
        raise ConfigError(f"{options.run} is not the run folder of a local network: it has no nodes/NAME/node.toml")
    unknown = [name for name in options.names if name not in known]
    if unknown:
        raise ConfigError(f"node {unknown[0][:80]!r} is not in {options.run}: its nodes are {', '.join(known)}")
    return [known[name] for name in options.names or known]


def _table(found: "list[tuple[EventTail, list[str]]]", ended: bool) -> list[str]:
    """Return a row for each node, and below it each node's problems; a single named node is shown in full."""
    from murmur.node.telemetry.round_line import outcome

    rows = [("node", "round", "last told", "became of it", "weights next", "")]
    for tail, wrong in found:
        newest, last = tail.newest, tail.rounds[-1] if tail.rounds else None
        due = next((event["next_set"] for event in reversed(tail.rounds) if event["next_set"] is not None), None)
        rows.append(
            (
                tail.name,
                "-" if newest is None else str(newest["round"]),
                "-" if newest is None else _heard(tail, ended),
                "-" if last is None else f"round {last['round']}: {outcome(last)}",
                "-" if due is None else f"block {due}",
                "WRONG" if wrong else "stopped" if tail.on_request and not ended else "ok",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["the run has ended"] if ended else []
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines + [f"WRONG, {tail.name}: {what}" for tail, wrong in found for what in wrong]


def _heard(tail: "EventTail", ended: bool) -> str:
    if ended or tail.newest is None:
        return "ended"
    return f"{_span(max(0.0, time.time() - (tail.stopped or tail.newest)['time']))} ago"


def _lines(home: Path, tail: "EventTail", wrong: list[str], ended: bool) -> list[str]:
    from murmur.node.telemetry.round_line import line

    run = f"run {tail.run.first.name}" if tail.run is not None else "no run yet"
    lines = [f"{tail.name} in {home}, {run}"]
    if tail.newest is not None:
        heard = _heard(tail, ended)
        told = f"stopped on request {heard}" if tail.on_request else f"last sign of life {heard}"
        lines.append(f"{_INDENT}round {tail.newest['round']}, {heard if ended else told}")
    lines += [_INDENT + line(event) for event in tail.rounds]
    due = next((event["next_set"] for event in reversed(tail.rounds) if event["next_set"] is not None), None)
    if due is not None:
        lines.append(f"{_INDENT}weights are set next about block {due}")
    lines += [f"{_INDENT}WRONG: {what}" for what in wrong] or [f"{_INDENT}nothing is wrong"]
    return lines


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
