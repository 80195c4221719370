"""`murmur arena`: play the attacks, show the table, write it to the run folder."""

import argparse
import json
import sys
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from arena.kinds import KINDS
from protocol.errors import ConfigError
from protocol.types import MAX_UIDS

if TYPE_CHECKING:
    from arena.suite import Table

FEWEST_MINERS = 24
"""A third of fewer would not hold the eight hotkeys of one sybil."""


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
    """Play the suite; 0 when it was played to the end, whatever the table says."""
    _check(options)
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "the arena draws its tables with matplotlib, which is not here: pip install 'murmuration[arena]'"
        )
    folder = _new_folder(options.folder)
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    began = time.monotonic()
    played = 0
    with console.status(Text("starting")) as status:
        import torch

        from arena.attacks import ATTACKS
        from arena.game import Scenario
        from arena.report import draw, markdown, summary
        from arena.suite import SUITES

        torch.set_num_threads(1)
        # A validator lies only where there are others, and only in a run of its own.
        liars_too = options.suite == "standard" and options.validators > 1
        possible = [attack for attack in ATTACKS if liars_too or attack.validator == "honest"]
        wanted = [attack for attack in possible if not options.attack or attack.kind in options.attack]
        policies = [options.policy] if options.policy else ["ours", "published"]
        num_runs = len(policies) * options.seeds * (1 + (len(wanted) if options.suite == "standard" else 1))
        miners = options.peers - options.validators
        base = Scenario(options.seed, options.rounds, miners, validators=options.validators)

        def tell(name: str, rounds: int, loss: float) -> None:
            nonlocal played
            where = f"run {played + 1} of {num_runs}: {name}"
            status.update(Text(f"{where}, round {rounds} of {options.rounds}, loss {loss:.4f}"))
            if rounds == options.rounds:
                played += 1
                console.print(f"{time.monotonic() - began:7.1f} s  {where}: loss {loss:.4f}")

        table = SUITES[options.suite](base, wanted, policies, options.seeds, tell)
        status.update(Text("drawing"))
        body = table.to_body()
        (folder / "arena.json").write_text(json.dumps(body, indent=2) + "\n")
        (folder / "arena.md").write_text(markdown(table))
        draw(table, folder / f"{options.suite}.png")
    if options.json:
        sys.stdout.write(json.dumps(body) + "\n")
    else:
        _show(table)
    for line in summary(table):
        console.print(line)
    console.print(f"{time.monotonic() - began:.0f} s; written to {folder}", soft_wrap=True)
    return 0


def _show(table: "Table") -> None:
    """The table on standard output, never narrower than its rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid

    from arena.report import HEADINGS, RIGHT, WIDTH, cells

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(HEADINGS):
        grid.add_column(heading, justify="right" if place in RIGHT else "left", no_wrap=True)
    for one in table.rows:
        grid.add_row(*cells(table, one))
    width = max(Console(file=sys.stdout).width, WIDTH)
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width).print(grid)


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
    alone = {"lying-validator", "withholding-validator"} & set(options.attack)
    if alone and options.validators == 1:
        raise ConfigError(
            f"--attack {min(alone)} with --validators 1: the only validator would be the liar; use 2 or more"
        )
    if alone and options.suite == "together":
        raise ConfigError(f"--attack {min(alone)} is not in the suite together: who judges is a fact about a whole run")


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
