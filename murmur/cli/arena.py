"""`murmur arena`: its arguments; murmur/lab/arena/play.py plays the suite."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from murmur.lab.arena.kinds import ALONE, KINDS, LIARS
from murmur.node.program.process import new_folder
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import MAX_UIDS

FEWEST_MINERS = 24
"""A third of fewer hotkeys could not include the eight of one sybil."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        choices=("standard", "together"),
        default="standard",
        help="standard: every attack alone, a third of all hotkeys its own; together: all of them in one run "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--attack",
        action="append",
        default=[],
        choices=KINDS,
        metavar="KIND",
        help="only this attack; repeatable. Kinds: " + ", ".join(KINDS),
    )
    parser.add_argument(
        "--policy",
        choices=("ours", "published"),
        help="only this way of judging: our code, or the published formulas (default both)",
    )
    parser.add_argument(
        "--peers", type=int, default=36, help="hotkeys on the subnet, validators included (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=30, help="rounds of a run (default %(default)s)")
    parser.add_argument("--validators", type=int, default=3, help="validators of equal stake (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of everything, by seed (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON on standard output")
    parser.add_argument("--folder", type=Path, help="run folder (default runs/<time>)")


def run(options: argparse.Namespace) -> int:
    """Play the suite; return 0 when it was played to the end, whatever the results."""
    _check(options)
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "the arena draws with matplotlib, which is not here: pip install -c constraints.txt -e '.[arena]'"
        )
    folder = new_folder(options.folder)
    from murmur.lab.arena.play import play

    return play(options, folder)


def _check(options: argparse.Namespace) -> None:
    limits = (
        ("validators", 1, 8),
        ("peers", FEWEST_MINERS + options.validators, MAX_UIDS),
        ("rounds", 4, 100_000),
        ("seed", 0, 2**31 - 1),
        ("seeds", 1, 1000),
    )
    for name, least, largest in limits:
        if not least <= getattr(options, name) <= largest:
            raise ConfigError(f"--{name} is {getattr(options, name)}, expected {least} to {largest}")
    wanted = set(options.attack)
    if wanted & LIARS and options.validators == 1:
        raise ConfigError(
            f"--attack {min(wanted & LIARS)} with --validators 1: the only validator would be the liar; use 2 or more"
        )
    if wanted & ALONE and options.suite == "together":
        raise ConfigError(
            f"--attack {min(wanted & ALONE)} is not in the suite together: it makes a whole run what it is"
        )
