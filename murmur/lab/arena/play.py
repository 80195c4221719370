"""Playing the attacks: show the table, write it to the run folder."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from murmur.lab.arena.attacks import ATTACKS
from murmur.lab.arena.game import Scenario
from murmur.lab.arena.kinds import ALONE
from murmur.lab.arena.report import HEADINGS, RIGHT, WIDTH, cells, draw, markdown, summary
from murmur.lab.arena.suite import SUITES, Table


def play(options: argparse.Namespace, folder: Path) -> int:
    """Play the suite; return 0 when it was played to the end, whatever the results."""
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    began = time.monotonic()
    played = 0
    with console.status(Text("starting")) as status:
        torch.set_num_threads(1)
        # A lying validator needs other validators.
        possible = [attack for attack in ATTACKS if options.validators > 1 or attack.validator == "honest"]
        if options.suite == "together":
            possible = [attack for attack in possible if attack.kind not in ALONE]
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


def _show(table: Table) -> None:
    """Print the table on standard output, never narrower than its rows."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(HEADINGS):
        grid.add_column(heading, justify="right" if place in RIGHT else "left", no_wrap=True)
    for one in table.rows:
        grid.add_row(*cells(table, one))
    width = max(Console(file=sys.stdout).width, WIDTH)
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width).print(grid)
