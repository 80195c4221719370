"""`murmur simulate`: whole networks of real nodes in modelled time; what broke, and how to see it again."""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING

from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from murmur.lab.simulation.cluster_witness import Result as ClusterResult
    from murmur.lab.simulation.result import Result

MEMORY = Path("/dev/shm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the run (default %(default)s)")
    parser.add_argument("--validators", type=int, default=3, help="validators (default %(default)s)")
    parser.add_argument("--miners", type=int, default=8, help="miners (default %(default)s)")
    parser.add_argument(
        "--faults-per-hour",
        type=float,
        help="faults in an hour of modelled time, everybody's together (default 125; on a fitted clock none)",
    )
    _add_attacks(parser)
    parser.add_argument(
        "--clock",
        choices=("wide", "fitted"),
        default="wide",
        help="wide: most of a round is idle; fitted: as short as the plan of --spec-clock allows, on the machines and "
        "lines that it names, with its number of places (default %(default)s)",
    )
    parser.add_argument(
        "--spec-clock",
        default="covenant-72b",
        metavar="SPEC",
        help="the preset, or TOML or JSON file, whose clock is fitted (default %(default)s)",
    )
    parser.add_argument(
        "--archive",
        choices=("yes", "no", "some"),
        default="yes",
        help="whether a public archive has what the nodes' chain nodes have pruned; some: not in most rounds of a "
        "storm (default %(default)s)",
    )
    parser.add_argument("--cluster", action="store_true", help="a cluster over one bucket, in place of a chain's run")
    parser.add_argument("--members", type=int, default=14, help="members of the cluster (default %(default)s)")
    parser.add_argument(
        "--exchange", choices=("sparse", "int8"), default="sparse", help="what members send (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="one seed is one history (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the history, one JSON line an event")
    parser.add_argument("--folder", type=Path, help="where the nodes' homes lie meanwhile (default: in memory)")


def _add_attacks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hostile-stake",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of all stake that validators hold who lie (default: there are none)",
    )
    parser.add_argument(
        "--two-faced",
        type=int,
        default=0,
        metavar="N",
        help="miners, of all, that work honestly only while a single validator reads their keys, and send garbage "
        "while the others do (default: none)",
    )
    parser.add_argument(
        "--withhold",
        type=int,
        default=0,
        metavar="N",
        help="miners, of all, that show their keys or payloads as late as they count, or to validators only "
        "(default: none)",
    )
    parser.add_argument(
        "--outage",
        action="store_true",
        help="in every round the bucket of one miner is dead for two minutes from the commit deadline on",
    )


def run(options: argparse.Namespace) -> int:
    """Simulate; 0 when every invariant held, 1 when one broke."""
    if options.faults_per_hour is None:
        options.faults_per_hour = 0.0 if options.clock == "fitted" and not options.cluster else 125.0
    _check(options)
    began = time.monotonic()
    result = simulate_cluster(options) if options.cluster else simulate(options)
    seconds = time.monotonic() - began
    if options.json:
        sys.stdout.write(json.dumps(asdict(result) | {"seconds": round(seconds, 1)}) + "\n")
    else:
        _show(result, seconds)
    if not result.broken:
        return 0
    sys.stderr.write(f"seed {options.seed} breaks what must hold; see it again with:\n  {_command(options)}\n")
    return 1


@dataclass(frozen=True)
class Stage:
    """Where one run is played: a folder for the nodes' homes, the file for its history, and who hears of rounds."""

    folder: Path
    trace: IO[str] | None
    on_round: Callable[[int], None]


@contextmanager
def staged(options: argparse.Namespace) -> Iterator[Stage]:
    """One thread, no log, and keys drawn from the seed while the run is played."""
    import torch
    from loguru import logger

    torch.set_num_threads(1)
    with ExitStack() as stack:
        logger.disable("")
        stack.callback(logger.enable, "")
        stack.enter_context(drawn_keys(options.seed))
        parent = options.folder or (MEMORY if MEMORY.is_dir() else None)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="murmur-simulate-", dir=parent)))
        trace = stack.enter_context(options.trace.open("w")) if options.trace is not None else None
        yield Stage(folder, trace, stack.enter_context(_progress(options.rounds)))


def simulate(options: argparse.Namespace) -> "Result":
    """One run, from its first block to its last round."""
    from murmur.lab.simulation.conditions import WIDE, fitted
    from murmur.lab.simulation.faults import Faults
    from murmur.lab.simulation.invariants import Witness
    from murmur.lab.simulation.network import Network

    with staged(options) as stage:
        witness = Witness(options.rounds, stage.trace)
        witness.on_round = stage.on_round
        network = Network(
            stage.folder,
            options.seed,
            validators=options.validators,
            miners=options.miners,
            tell=witness.told,
            hostile_stake=options.hostile_stake,
            two_faced=options.two_faced,
            withholding=options.withhold,
            conditions=fitted(options.spec_clock) if options.clock == "fitted" else WIDE,
        )
        faults = Faults(
            network, options.faults_per_hour, options.rounds, witness.fault, options.archive, options.outage
        )
        witness.watch(network, faults.calm)
        try:
            network.begin()
            faults.begin()
            while witness.round < options.rounds:
                network.clock.run(network.clock.now + 86_400.0)
        finally:
            network.close()
        return witness.finish()


def simulate_cluster(options: argparse.Namespace) -> "ClusterResult":
    """A cluster's run, to its last record."""
    from murmur.lab.simulation.cluster_faults import simulate

    with staged(options) as stage:
        play = options.seed, options.members, options.rounds, options.faults_per_hour, options.exchange
        return simulate(stage.folder, *play, trace=stage.trace, on_round=stage.on_round)


@contextmanager
def drawn_keys(seed: int) -> Iterator[None]:
    """Sealing keys drawn from the seed: names of files depend on them, and in a cluster whose turn it is."""
    from storage import seal

    real = vars(seal)["secrets"]
    vars(seal)["secrets"] = SimpleNamespace(token_bytes=random.Random(f"keys {seed}").randbytes)
    try:
        yield
    finally:
        vars(seal)["secrets"] = real


@contextmanager
def _progress(rounds: int) -> Iterator[Callable[[int], None]]:
    """A bar of the rounds that are over, with the time that is left, where somebody watches a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("rounds", total=rounds)
        yield lambda over: bar.update(task, completed=over)


def _show(result: "Result | ClusterResult", seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=None, show_header=False, pad_edge=False)
    for name, value in asdict(result).items():
        if name not in ("broken", "explained"):
            grid.add_row(name.replace("_", " "), str(value))
    for why, times in sorted(getattr(result, "explained", {}).items()):
        grid.add_row(f"void for {why}", str(times))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(grid)
    for what in result.broken:
        console.print(what, soft_wrap=True)
    console.print(f"{seconds:.0f} s")


def _command(options: argparse.Namespace) -> str:
    if options.cluster:
        return (
            f"murmur simulate --cluster --rounds {options.rounds} --members {options.members} "
            f"--faults-per-hour {options.faults_per_hour:g} --exchange {options.exchange} --seed {options.seed} "
            "--trace history.jsonl"
        )
    return (
        f"murmur simulate --rounds {options.rounds} --validators {options.validators} --miners {options.miners} "
        f"--faults-per-hour {options.faults_per_hour:g} --hostile-stake {options.hostile_stake:g} "
        f"--two-faced {options.two_faced} --withhold {options.withhold} {'--outage ' * options.outage}"
        f"--archive {options.archive} --clock {options.clock} --spec-clock {options.spec_clock} "
        f"--seed {options.seed} --trace history.jsonl"
    )


def _check(options: argparse.Namespace) -> None:
    limits: tuple[tuple[str, float, float], ...] = (
        ("rounds", 1, 1_000_000),
        ("validators", 1, 21),
        ("miners", 1, 128),
        ("members", 1, 64),
        ("faults_per_hour", 0, 100_000),
        ("hostile_stake", 0, 0.99),
        ("two_faced", 0, options.miners),
        ("withhold", 0, options.miners - options.two_faced),
        ("seed", 0, 2**31 - 1),
    )
    for name, least, largest in limits:
        if not least <= getattr(options, name) <= largest:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {getattr(options, name)}, expected {least:g} to {largest:g}")
    if options.hostile_stake and options.validators < 2:
        raise ConfigError("--hostile-stake with --validators 1: the only validator would be the liar; use 2 or more")
