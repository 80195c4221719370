"""`murmur track`: a node's numbers in W&B, TensorBoard or Trackio."""

import argparse
from pathlib import Path

from murmur.homes import expanded
from murmur.node.program import process
from murmur.protocol.errors import ConfigError
from murmur.track.trackers import TRACKERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("home", type=Path, help="the node's --home, with its events.jsonl")
    parser.add_argument("--to", choices=TRACKERS, required=True, help="the tracker (the extra `track`)")
    parser.add_argument("--project", default="murmuration", help="its project (default %(default)s)")
    parser.add_argument("--name", help="the run's name there (default: the home's name)")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C; without it, show what is there")
    parser.add_argument("--node", type=int, metavar="PID", help=argparse.SUPPRESS)  # a node starts it so
    parser.add_argument("--first-byte", type=int, default=0, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Show a node's events in a tracker. Raises ConfigError."""
    from murmur.track.follow import Until, follow
    from murmur.track.trackers import open_tracker

    process.log_to_stderr("INFO")
    home = expanded(options.home)
    path = home / "events.jsonl"
    if not path.exists() and options.node is None:
        raise ConfigError(f"{path} is missing: name the --home of a node that has begun to play")
    until = Until(options.node)
    tracker = open_tracker(options.to, home / "track", options.project, options.name or home.name)
    try:
        goes_on = until if options.follow or options.node is not None else lambda: False
        shown = follow(path, tracker, goes_on, options.first_byte)
    finally:
        tracker.close()
    print(f"{shown} events shown in {options.to}")  # noqa: T201
    return 0
