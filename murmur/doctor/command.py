"""`murmur doctor`: all of a node's requirements, tested before it is started, with a remedy for each fault."""

import argparse
from typing import get_args

from training.memory import Role


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Try everything that a node needs: its machine, wallet, chain, bucket and run, each with what to do about it. "
        "Both programs do the fast part at every start. Nothing is put on chain; what is written to the bucket is "
        "deleted again. The exit status is 1 when a check fails, 2 when the configuration is not complete."
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file of the node; the environment counts as well")
    parser.add_argument(
        "--role", choices=get_args(Role), default="miner", help="what the node is to be (default: miner)"
    )
    parser.add_argument(
        "--fast", action="store_true", help="only what a node tries at its start: seconds, not a minute"
    )
    parser.add_argument("--json", action="store_true", help='print one JSON object: {"checks": [..]}')


def run(options: argparse.Namespace) -> int:
    """Print each check's findings; the exit status is 1 when one fails. Raises ConfigError for an incomplete
    configuration."""
    from murmur.doctor.examination import examine  # torch and others, which --help must not wait for

    return examine(options)
