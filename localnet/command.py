"""`murmur localnet`: build the network, show its rounds as they happen, stop it, write the report."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from localnet.kinds import FAULTS
from protocol.errors import ConfigError

STALL_ROUNDS = 3.0
"""A network that has not moved for this many rounds' length is stuck: stop, and say where to look."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=12, help="rounds to run (default %(default)s)")
    parser.add_argument("--miners", type=int, default=4, help="honest miners (default %(default)s)")
    parser.add_argument("--validators", type=int, default=1, help="validators (default %(default)s)")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        choices=sorted(FAULTS),
        metavar="KIND",
        help="add a dishonest or broken miner; repeatable. Kinds: " + ", ".join(sorted(FAULTS)),
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of theta_0 (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="run folder (default runs/<time>)")


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit status is 0 when all rounds were played and every replica agrees."""
    _check(options)
    from localnet.network import Plan, open_network
    from localnet.report import build_report
    from localnet.table import Table

    folder = options.folder or Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(folder, options.rounds, options.miners, options.validators, tuple(options.fault), options.seed)
    began = time.monotonic()
    table = Table(sys.stderr)
    network = open_network(plan, table.say)
    try:
        table.follow(network, STALL_ROUNDS)
    except KeyboardInterrupt:
        table.say("stopping")
        return 130
    finally:
        report = build_report(network, time.monotonic() - began)
        network.close()
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    table.close(report, folder)
    summary = report["summary"]
    whole = len(report["rounds"]) == options.rounds
    return 0 if whole and summary["replicas_identical"] else 1


def _check(options: argparse.Namespace) -> None:
    for name, least, most in (("rounds", 1, 100_000), ("miners", 1, 200), ("validators", 1, 8)):
        if not least <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected {least} to {most}")


def main(argv: Sequence[str] | None = None) -> int:
    """For `python -m localnet.command`."""
    parser = argparse.ArgumentParser(prog="murmur localnet")
    add_arguments(parser)
    return run(parser.parse_args(argv))
