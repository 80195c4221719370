"""`murmur devnet`: a chain and an S3 server on this machine, for a run that is started and joined by hand.

Every member has a funded wallet, is registered, and has a bucket with two keys; validators have stake and a permit. On
a real chain an operator does that with btcli and a provider's console; the rest is the same. `owner.toml` and
`nodes/NAME/node.toml` in the folder are the configurations.
"""

import argparse
import sys
import time
from pathlib import Path

from murmur.node.program.process import new_folder
from murmur.protocol.errors import ConfigError

BLOCK_SECONDS = 0.5
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


def run(options: argparse.Namespace) -> int:
    """Serve until stopped, with status 130; 1 when a server has ended for good."""
    for name, most in (("validators", 8), ("miners", 200)):
        if not 1 <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected 1 to {most}")
    if not 0.1 <= options.block_seconds <= 60:
        raise ConfigError(f"--block-seconds is {options.block_seconds}, expected 0.1 to 60")
    from murmur.cli.localnet import Stop

    folder = new_folder(options.folder)
    stop = Stop()

    def say(line: str) -> None:
        stop.check()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    from murmur.lab.localnet.infrastructure import SERVERS, infrastructure, prepare
    from murmur.lab.localnet.infrastructure import stop as stop_all
    from murmur.lab.localnet.members import configured, configured_owner, tell_metrics
    from murmur.lab.localnet.plan import Plan
    from murmur.lab.localnet.record import Recorder
    from murmur.lab.localnet.subnet import await_permits, skip_epoch

    plan = Plan(folder, miners=options.miners, validators=options.validators, block_seconds=options.block_seconds)
    processes = prepare(plan)
    try:
        ground = infrastructure(plan, processes, say)
        skip_epoch(ground.devnet, ground.wallets["owner"])
        await_permits(ground.devnet, ground.wallets, plan.names(), say, plan.block_seconds)
        owner = configured_owner(plan, ground.devnet.url, ground.store)
        nodes = [
            configured(plan, name, role, None, ground.wallets[name], ground.devnet.url, ground.store, None)
            for name, (role, _) in plan.names().items()
            if role != "owner"
        ]
        tell_metrics(plan, nodes)
        recorder = Recorder(ground.store, folder, MOST_RECORDED_BYTES)
        try:
            say(f"chain {ground.devnet.url}, store {ground.store.endpoint}")
            say(f"owner        murmur run .. --config {owner}")
            for node in nodes:
                say(f"{node.name:<12} python neurons/{node.role}.py --config {node.config}")
            say("ready (Ctrl-C ends it)")
            while not (ended := set(processes.watch()) & set(SERVERS)):
                stop.check()
                time.sleep(0.2)
            raise ConfigError(f"{', '.join(sorted(ended))} ended for good: see {folder / 'logs'}")
        finally:
            recorder.close()
    except KeyboardInterrupt:
        return 130
    finally:
        stop_all(processes)
