"""`murmur localnet`: build the network, show its rounds as they happen, stop it, write the report."""

import argparse
import json
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from localnet.kinds import FAULTS
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from localnet.network import Network

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
    parser.add_argument(
        "--ranks",
        type=_counts,
        default=(),
        metavar="N,N,...",
        help="processes that each honest miner trains on, in order (default 1 each): several share one model",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of theta_0 (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="run folder (default runs/<time>)")


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit status is 0 when all rounds were played and every replica agrees, 130 when it was
    stopped on request."""
    _check(options)
    folder = _new_folder(options.folder)
    from localnet.network import Plan, open_network
    from localnet.table import Table

    plan = Plan(
        folder,
        options.rounds,
        options.miners,
        options.validators,
        tuple(options.fault),
        options.seed,
        ranks=options.ranks,
    )
    stop = _Stop()
    began = time.monotonic()
    table = Table(sys.stderr)

    def say(line: str) -> None:
        stop.check()
        table.say(line)

    try:
        with table.status("starting"):
            network = open_network(plan, say)
        try:
            table.follow(network, STALL_ROUNDS)
            report = _write_report(network, time.monotonic() - began)
        except BaseException as fault:
            if isinstance(fault, KeyboardInterrupt):
                table.say("stopping")
            # Whatever the report of a broken run stumbles over must not hide why the run broke.
            with suppress(Exception):
                _write_report(network, time.monotonic() - began)
                table.say(f"the report as far as it goes: {folder / 'report.json'}")
            raise
        finally:
            network.close()
    except KeyboardInterrupt:
        table.say("stopped")
        return 130
    table.close(report, folder)
    whole = len(report["rounds"]) == options.rounds
    return 0 if whole and report["summary"]["replicas_identical"] else 1


def _check(options: argparse.Namespace) -> None:
    for name, least, most in (("rounds", 1, 100_000), ("miners", 1, 200), ("validators", 1, 8), ("seed", 0, 2**63 - 1)):
        if not least <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected {least} to {most}")
    if len(options.ranks) > options.miners or not all(1 <= count <= 8 for count in options.ranks):
        raise ConfigError(
            f"--ranks {','.join(map(str, options.ranks))}: expected at most one number, 1 to 8, for each of the "
            f"{options.miners} honest miners"
        )


def _counts(text: str) -> tuple[int, ...]:
    """ "2,1" as (2, 1)."""
    return tuple(int(word) for word in text.split(","))


def _new_folder(wanted: Path | None) -> Path:
    """The run folder, made and empty."""
    folder = (wanted or Path("runs") / datetime.now().strftime("%Y-%m-%d-%H%M%S")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another --folder")
    except OSError as fault:
        raise ConfigError(f"cannot make the run folder {folder}: {fault.strerror}; choose another --folder") from None
    return folder


def _write_report(network: "Network", wall_seconds: float) -> dict[str, Any]:
    from localnet.report import build_report

    report = build_report(network, wall_seconds)
    (network.plan.folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


class _Stop:
    """Ctrl-C, and SIGTERM, which containers and service managers send, as KeyboardInterrupt.

    Python drops an exception that is raised while an import tidies up behind itself, and the start imports for
    seconds: so the wish is remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._asked = False
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._ask)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt
