"""`murmur explain HOTKEY`: how a miner stands with the validators, why, what changed it and what to do next."""

import argparse

from murmur import where


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hotkey", metavar="HOTKEY", help="the miner's SS58 hotkey")
    where.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the account. Raises ConfigError when no validator says anything of this hotkey."""
    peer = where.named_peer(options.hotkey, "HOTKEY")
    from murmur.account import show

    return show(peer, options)
