"""`murmur localnet`: its arguments, and a stop on request at any moment."""

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from murmur.lab.localnet.fault_kinds import FAULTS
from murmur.lab.localnet.plan import PRESETS, TINY, Link, Plan
from murmur.node.program.process import new_folder
from murmur.page.folder import open_page
from murmur.protocol.errors import ConfigError, MurmurError
from murmur.track.trackers import TRACKERS

CHAOS_ROUNDS = 8
"""The fewest rounds in which a fault can be injected and its recovery seen."""


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
        help="processes for each honest miner, in order (default 1 each): several processes share one model",
    )
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        default=TINY,
        help="size of the model: tiny, or one whose payloads travel in parts, for which every node needs 2 GB of "
        "memory (default %(default)s)",
    )
    parser.add_argument(
        "--up", type=float, metavar="Mb/s", help="uplink of every node, 10^6 bits a second, with --down (default: none)"
    )
    parser.add_argument("--down", type=float, metavar="Mb/s", help="downlink of every node: its rate from all buckets")
    parser.add_argument("--seed", type=int, default=0, help="seed of theta_0 (default %(default)s)")
    parser.add_argument(
        "--chaos",
        type=int,
        metavar="SEED",
        help="kill, freeze, wipe and cut off processes while the network runs, also the store and the chain, and "
        "let a newcomer join; the seed decides when",
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="READY.json",
        help="use a running S3 server, with the buckets and keys in this file, instead of our own "
        "(docs/local-network.md)",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="at the end print the last round that is not void in ten stations, with the data between them "
        "(docs/tour.md)",
    )
    parser.add_argument("--track", choices=TRACKERS, help="tracker of every node (the extra `track`; default: none)")
    parser.add_argument("--folder", type=Path, help="run folder (default runs/<time>)")
    parser.add_argument("--port", type=int, default=0, help="port of the run's page (default: any that is free)")
    parser.add_argument("--host", default="127.0.0.1", help="address of the run's page (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the command. The exit status is 0 when all rounds were played, every replica agrees and no weights were
    refused; 130 when it was stopped on request."""
    _check(options)
    folder = new_folder(options.folder)
    stop = Stop()
    page = open_page(folder, options.port, options.host)  # before the imports below, which take seconds
    from murmur.lab.localnet.session import STOPPED, play

    if page is not None:
        page.begin()
    plan = Plan(
        folder,
        options.rounds,
        options.miners,
        options.validators,
        tuple(options.fault),
        options.seed,
        newcomers=0 if options.chaos is None else 1,
        ranks=options.ranks,
        chaos=options.chaos,
        store=options.store,
        preset=options.preset,
        track=options.track,
        links={} if options.up is None else dict.fromkeys(("miner", "validator"), Link(options.up, options.down)),
    )
    try:
        status = play(plan, stop.check)
        if options.trace and status != STOPPED:
            _show_trace(plan)
        return status
    except MurmurError:
        stop.check()  # an interrupted library call may raise another error
        raise
    finally:
        if page is not None:
            page.close()


def _show_trace(plan: Plan) -> None:
    """Print the stations of the newest round that is not void."""
    from murmur.lab.localnet.trace import trace
    from murmur.node.program import process

    process.log_to_stderr("WARNING")
    round = _newest_applied(plan.folder)
    lines = trace(plan.folder, round) if round is not None else ("every round is void: there is none to trace",)
    for line in lines:
        sys.stdout.write(line + "\n")


def _newest_applied(folder: Path) -> int | None:
    """Return the newest round with an outer step, by the run's report; None where all are void."""
    rounds = json.loads((folder / "report.json").read_text())["rounds"]
    return max((row["round"] for row in rounds if not row["void"]), default=None)


def _check(options: argparse.Namespace) -> None:
    bounds = [
        ("rounds", 1, 100_000),
        ("miners", 1, 200),
        ("validators", 1, 8),
        ("seed", 0, 2**63 - 1),
        ("port", 0, 65535),
    ]
    if options.chaos is not None:
        bounds += [("chaos", 0, 2**63 - 1), ("rounds", CHAOS_ROUNDS, 100_000)]
    for name, least, most in bounds:
        if not least <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected {least} to {most}")
    if options.chaos is not None and options.store is not None:
        raise ConfigError("--chaos kills the network's own object store, but --store names another: leave one out")
    if options.up is not None or options.down is not None:
        given = [link for link in (options.up, options.down) if link is not None and 1e-6 <= link < 1e9]
        if len(given) < 2:
            raise ConfigError(
                f"--up is {options.up}, --down is {options.down}: expected two numbers above 0, in megabits a second"
            )
        if options.chaos is not None or options.store is not None:
            raise ConfigError(
                "--up and --down limit the network's own store, and --chaos has its own limits: choose one"
            )
    if len(options.ranks) > options.miners or not all(1 <= count <= 8 for count in options.ranks):
        raise ConfigError(
            f"--ranks {','.join(map(str, options.ranks))}: expected at most one number, 1 to 8, for each of the "
            f"{options.miners} honest miners"
        )


def _counts(text: str) -> tuple[int, ...]:
    """Parse "2,1" as (2, 1)."""
    return tuple(int(word) for word in text.split(","))


class Stop:
    """Ctrl-C, and SIGTERM (sent by containers and service managers), as KeyboardInterrupt.

    Python drops an exception that is raised while an import cleans up, and our imports take seconds. So the request is
    remembered, and `check` raises it again.
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
