"""`murmur devnet`: a chain and an S3 server on this machine, for a run that is started and joined by hand.

Every member has a funded wallet, is registered, and has a bucket with two keys; validators have stake and a permit. On
a real chain an operator does that with btcli and a provider's console; the rest is the same. `owner.toml` and
`nodes/NAME/node.toml` in the folder are the configurations.
"""

import argparse
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from murmur.lab.localnet.gates.kinds import CLOCK, EVERYBODY, KINDS, parse_fault, write_faults
from murmur.node.program.process import new_folder
from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from murmur.cli.localnet import Stop
    from murmur.lab.localnet.plan import Plan
    from murmur.lab.localnet.processes import Processes

BLOCK_SECONDS = 0.5
FAULTS = "faults"
"""File in the folder: a line NODE KIND for each fault that there is now."""
MOST_RECORDED_BYTES = 64 << 20
"""Larger objects are not copied into the folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A development chain and an S3 server, with wallets, buckets and configurations for an owner, "
        "validators and miners that you start by hand (docs/start-a-run.md). It runs until you stop it, and "
        "every start is a new one."
    )
    parser.add_argument("--folder", type=Path, help="folder for everything (default runs/<time>)")
    parser.add_argument("--validators", type=int, default=1, help="(default %(default)s)")
    parser.add_argument("--miners", type=int, default=2, help="(default %(default)s)")
    parser.add_argument(
        "--block-seconds", type=float, default=BLOCK_SECONDS, help="time between blocks (default %(default)s)"
    )
    parser.add_argument(
        "--fault",
        action="append",
        metavar="NODE:KIND",
        help="rehearse a fault: what chain, store or clock do to one node. May be repeated. More begin and end "
        f"while it runs, in FOLDER/{FAULTS}; none: none yet. Kinds: " + ", ".join(KINDS),
    )


def run(options: argparse.Namespace) -> int:
    """Serve until stopped, with status 130; 1 when a server has ended for good."""
    for name, most in (("validators", 8), ("miners", 200)):
        if not 1 <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected 1 to {most}")
    if not 0.1 <= options.block_seconds <= 60:
        raise ConfigError(f"--block-seconds is {options.block_seconds}, expected 0.1 to 60")
    faults = None if options.fault is None else [parse_fault(text) for text in options.fault if text != "none"]
    counts = {"validator": options.validators, "miner": options.miners}
    numbered = (f"{role}-{i}" for role, count in counts.items() for i in range(1, count + 1))
    nodes = [EVERYBODY, "owner", *numbered]
    if unknown := [node for node, _ in faults or () if node not in nodes]:
        raise ConfigError(f"--fault names {unknown[0][:80]}, but the nodes are {', '.join(nodes)}")
    from murmur.cli.localnet import Stop
    from murmur.lab.localnet.infrastructure import prepare
    from murmur.lab.localnet.infrastructure import stop as stop_all
    from murmur.lab.localnet.plan import Plan

    folder = new_folder(options.folder)
    plan = Plan(folder, miners=options.miners, validators=options.validators, block_seconds=options.block_seconds)
    stop, processes = Stop(), prepare(plan)
    try:
        _serve(plan, processes, faults, stop)
    except KeyboardInterrupt:
        return 130
    finally:
        stop_all(processes)
    return 1


def _serve(plan: "Plan", processes: "Processes", faults: list[tuple[str, str]] | None, stop: "Stop") -> None:
    """Start the servers, write and say the configurations, and serve. Raises KeyboardInterrupt when it is stopped, and
    ConfigError when a server has ended for good. faults: None without gates."""
    from murmur.lab.localnet.gates.gates import Gates
    from murmur.lab.localnet.infrastructure import SERVERS, infrastructure
    from murmur.lab.localnet.members import configured, configured_owner, tell_metrics
    from murmur.lab.localnet.record import Recorder
    from murmur.lab.localnet.subnet import await_permits, skip_epoch

    def say(line: str) -> None:
        stop.check()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    folder = plan.folder
    with ExitStack() as stack:
        ground = infrastructure(plan, processes, say)
        url, store = ground.devnet.url, ground.store
        skip_epoch(ground.devnet, ground.wallets["owner"])
        await_permits(ground.devnet, ground.wallets, plan.names(), say, plan.block_seconds)
        roles = {name: role for name, (role, _) in plan.names().items() if role != "owner"}
        ways = dict.fromkeys(plan.names(), (url, store))
        if faults is not None:
            write_faults(folder / FAULTS, faults)
            gates = stack.enter_context(closing(Gates(url, store, [*ways], folder / FAULTS)))
            ways = {name: (gates.chain(name), gates.store(name)) for name in ways}
        owner = configured_owner(plan, *ways["owner"])
        nodes = [configured(plan, n, role, None, ground.wallets[n], *ways[n], None) for n, role in roles.items()]
        tell_metrics(plan, nodes)
        stack.enter_context(closing(Recorder(store, folder, MOST_RECORDED_BYTES)))
        say(f"chain {url}, store {store.endpoint}")
        say(f"owner        murmur run .. --config {quote(str(owner))}")
        for node in nodes:
            say(f"{node.name:<12} python neurons/{node.role}.py --config {quote(str(node.config))}")
        if faults is not None:
            _tell_faults(folder, faults, say)
        say("ready (Ctrl-C ends it)")
        while not (ended := set(processes.watch()) & set(SERVERS)):
            stop.check()
            time.sleep(0.2)
    raise ConfigError(f"{', '.join(sorted(ended))} ended for good: see {folder / 'logs'}")


def _tell_faults(folder: Path, faults: list[tuple[str, str]], say: "Callable[[str], None]") -> None:
    """Say which faults there are, and how they begin and end."""
    from murmur.lab.localnet.gates.clock import build_clock

    for node, kind in faults:
        say(f"{node:<12} FAULT {kind}: {KINDS[kind]}")
    say(f"faults begin and end with lines NODE KIND in {folder / FAULTS}, at once")
    for node in sorted({node for node, kind in faults if kind in CLOCK}):
        variables = build_clock(folder / "clocks" / "library", folder / "clocks" / node)
        before = " ".join(f"{name}={value}" for name, value in variables.items())
        say(f"{node:<12} start it with {before} before its command, or its clock stays right")
