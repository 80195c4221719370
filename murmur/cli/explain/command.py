"""`murmur explain MINER`: a miner's standing with the validators, the reasons, their certainty, the causes of changes,
and what to do next."""

import argparse

from murmur.cli import peer_options
from murmur.node.observe.opened_network import named_peer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("miner", metavar="MINER", help="its SS58 hotkey, or, with --run, its name")
    peer_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the account. Raises ConfigError when no validator reports on this hotkey."""
    peer_options.flags_of(options)
    if options.run is None:
        named_peer(options.miner, "MINER")
    from murmur.cli.explain.account import show  # torch, which a mistyped hotkey should not wait for

    return show(options.miner, options)
