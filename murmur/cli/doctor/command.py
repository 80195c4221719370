"""`murmur doctor`: all of a node's requirements, tested before it is started, with a remedy for each fault."""

import argparse
from typing import get_args

from murmur.training.memory import Role


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check everything that a node needs: machine, wallet, chain, bucket and run, and say how to fix each "
        "fault. Both programs make the fast checks at every start. Nothing is written on chain; test objects "
        "are deleted from the bucket. The exit status is 1 when a check fails, 2 when the configuration is "
        "not complete."
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file of the node; settings in the environment count too")
    parser.add_argument("--role", choices=get_args(Role), default="miner", help="role of the node (default: miner)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--fast", action="store_true", help="make only the checks of a node's start: seconds, not a minute"
    )
    kinds.add_argument(
        "--trace",
        nargs="?",
        const="",
        metavar="SPEC",
        help="instead of the checks, play one inner round several times on this machine, and show how far its steps "
        "are apart beside the limits of verified work. SPEC: a preset or spec file (default: the configured run, or "
        "tiny). The exit status is 1 beyond the limits",
    )
    parser.add_argument("--json", action="store_true", help='print one JSON object: {"checks": [..]} or {"trace": ..}')


def run(options: argparse.Namespace) -> int:
    """Print each check's findings; the exit status is 1 when one fails. Raises ConfigError for an incomplete
    configuration."""
    if options.trace is not None:
        from murmur.cli.doctor.trace import trace  # torch, likewise

        return trace(options)
    from murmur.cli.doctor.examination import examine  # torch and others, which --help must not wait for

    return examine(options)
