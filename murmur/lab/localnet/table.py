"""Terminal output of a local network: one line for each step of the build-up, one row for each round.

Text is printed literally: names, paths and reasons are never parsed as markup.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shlex import quote
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table as Grid
from rich.text import Text

from murmur.lab.localnet.chaos import done
from murmur.lab.localnet.chaos_report import survived
from murmur.lab.localnet.members import LocalNode, address
from murmur.lab.localnet.network import Network
from murmur.lab.localnet.processes import Child
from murmur.lab.localnet.report import PHASES, round_report
from murmur.protocol.errors import ChainError, ConfigError

POLL_SECONDS = 0.25
INDENT = 8
MIN_NAMES_WIDTH = 24
REVEAL_SECONDS = 10.0
"""Time-out from the block that opens weights until they are seen on chain."""


class Table:
    """Prints rows as rounds end: they stay on the screen and in a log alike."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._began = time.monotonic()
        self._rows = 0

    def say(self, line: str, style: str = "") -> None:
        """Print one step, with the seconds since the start."""
        self._print(Text.assemble((f"{time.monotonic() - self._began:6.1f} s  ", "dim"), (line, style)))

    def status(self, line: str) -> AbstractContextManager[Status]:
        """Return a line below all others that shows activity; on terminals only."""
        return self._console.status(Text(line))

    def follow(self, network: Network, stall_rounds: float) -> None:
        """Show rounds until every honest node has played all of them. Raises ConfigError when the network is stuck."""
        names = {address(member): member.name for member in (*network.members.values(), *network.waiting)}
        round_seconds = network.round_seconds
        patience = stall_rounds * round_seconds + 30
        moved = time.monotonic() + network.lead_seconds
        with self.status("round 0") as status:
            while True:
                for line in network.disturb():
                    self.say(f"chaos: {line}", "magenta")
                restarts = _restarts(network.processes.children.values())
                dead = network.processes.watch()
                for name, count in _restarts(network.processes.children.values()).items():
                    if count != restarts[name]:
                        self.say(f"{name} died and was started again", "yellow")
                if dead:
                    raise ConfigError(f"{dead[0]} ended for good:\n{network.processes.last_lines(dead[0])}")
                network.look_at_weights()
                if self._show_finished(network, names):
                    moved = time.monotonic()
                if self._rows == network.plan.rounds:
                    return
                waited = time.monotonic() - moved
                status.update(
                    Text(
                        f"round {self._rows}, {self._rows} of {network.plan.rounds} done: {waited:.0f} s of about "
                        f"{round_seconds:.0f}"
                        if waited >= 0
                        else f"round 0 begins in {-waited:.0f} s"
                    )
                )
                if waited > patience:
                    raise ConfigError(
                        f"round {self._rows} did not end within {patience:.0f} s: see the logs in "
                        f"{network.processes.folder}"
                    )
                time.sleep(POLL_SECONDS)

    def await_votes(self, network: Network) -> None:
        """Wait for the last block in which a vote on the last round counts. The round was decided before, but only now
        can it be audited. Does not wait for a chain that makes no blocks."""
        with suppress(ChainError), self.status("the last round's votes"):
            left = network.blocks_left()
            until = time.monotonic() + 2 * left * network.plan.block_seconds
            while left > 0 and time.monotonic() < until:
                network.look_at_weights()
                time.sleep(POLL_SECONDS)
                left = network.blocks_left()

    def await_reveals(self, network: Network) -> None:
        """Wait until the last committed weights are opened. The chain does so at the end of an epoch, whose last blocks
        are made at once."""
        pending = network.paid()["weights_pending"]
        if not pending:
            return
        self.say(f"{_sets(pending)} sealed until the chain's epoch ends: stopping the nodes, making its last blocks")
        try:
            network.open_weights()
        except ChainError as fault:
            self.say(f"the chain makes no blocks ({fault}): {_sets(pending)} not opened", "yellow")
            return
        until = time.monotonic() + REVEAL_SECONDS
        with self.status("the last weights"):
            while pending and time.monotonic() < until:
                network.look_at_weights()
                pending = network.paid()["weights_pending"]
                time.sleep(POLL_SECONDS if pending else 0.0)
        if pending:
            self.say(f"{_sets(pending)} still sealed {REVEAL_SECONDS:.0f} s after the epoch: logs/devnet.log", "yellow")

    def _show_finished(self, network: Network, names: dict[str, str]) -> bool:
        """Print the next round's row when all honest nodes have its result; return whether they have."""
        index = self._rows
        if not all(_has_passed(member, network.events(member), index) for member in network.honest):
            return False
        row = round_report(network, {name: network.events(m) for name, m in network.members.items()}, index)
        if index == 0:
            self._row(Text(_header(), "bold"), Text("contributing | not", "bold"))
        if row is None:
            self.say(f"round {index}: every node skipped it by catch-up", "yellow")
        else:
            self._row(_numbers(row), _who(row, names))
        self._rows += 1
        return True

    def _row(self, left: Text, right: Text) -> None:
        """Print a row: in a file on one line; on a terminal, names that do not fit next to the numbers go below
        them."""
        width = self._console.width
        if not self._console.is_terminal or len(left) + len(right) <= width:
            self._print(Text.assemble(left, right))
            return
        self._print(left)
        for line in right.wrap(self._console, max(MIN_NAMES_WIDTH, width - INDENT)):
            line.rstrip()
            self._print(Text.assemble(" " * INDENT, line))

    def _print(self, line: Text) -> None:
        # Never wrapped by us: a narrow terminal folds long lines, a log keeps them greppable.
        self._console.print(line, soft_wrap=True)

    def close(self, report: dict[str, Any], folder: Path) -> None:
        """Print the result, and the paths of its files."""
        summary = report["summary"]
        grid = Grid(box=box.SIMPLE, pad_edge=False, show_edge=False)
        grid.add_column("miner", no_wrap=True)
        grid.add_column("fault", no_wrap=True)
        grid.add_column("contributed", justify="right")
        grid.add_column("weight", justify="right")
        rounds = len(report["rounds"])
        for peer in report["peers"].values():
            share = f"{peer['contributed']} of {rounds}"
            grid.add_row(Text(peer["name"]), Text(peer["fault"] or ""), share, f"{peer['weight']:.3f}")
        self._print(Text())
        self._console.print(grid)
        self._print(Text())
        if summary["loss_first"] is not None:
            self._print(Text(f"held-out loss {summary['loss_first']:.2f} -> {summary['loss_last']:.2f} nats a token"))
        same = summary["replicas_identical"]
        self._print(
            Text.assemble(
                ("all replicas identical" if same else "REPLICAS DIFFER", "green" if same else "red"),
                f", {summary['void_rounds']} of {rounds} rounds void, {summary['wall_seconds']:.0f} s in all",
            )
        )
        refused = summary["weights_refused"]
        self._print(
            Text.assemble(
                f"weights: {summary['weights_set']} sets, {summary['weights_standing']} are on chain, ",
                (f"{refused} refused", "red" if refused else ""),
                f", {summary['weights_pending']} not revealed yet",
            )
        )
        self._print(Text(f"a payload is {summary['payload_ratio']:.0f} times smaller than the model in fp32"))
        if report["chaos"] is not None:
            self._aftermath(report["chaos"])
        self._print(Text(f"report {folder / 'report.json'}"))
        self._print(Text(f"logs   {folder / 'logs'}"))
        self._print(Text(f"events {folder / 'nodes'}"))
        self._print(Text(f"page   murmur dashboard {quote(str(folder))}"))

    def _aftermath(self, chaos: dict[str, Any]) -> None:
        """Print the injections and their consequences."""
        self._print(Text())
        for entry in chaos["injected"]:
            what, back = done(entry["kind"], entry["node"], entry["seconds"]), entry["back_after_rounds"]
            self._print(
                Text.assemble(
                    f"round {entry['round']:>3}  {what}, ",
                    ("never back", "red") if back is None else f"back after {back} round{'' if back == 1 else 's'}",
                )
            )
        self._print(Text())
        sound = survived(chaos)
        self._print(
            Text.assemble(
                ("chaos did no lasting harm" if sound else "CHAOS DID HARM", "green" if sound else "red"),
                f": {chaos['void_rounds']} rounds void, {chaos['void_unexplained']} of them unexplained, "
                f"{chaos['ended_for_good']} processes ended for good, {chaos['honest_faults_booked']} faults booked on "
                f"honest peers, at most {chaos['longest_absence_rounds']} rounds away",
            )
        )
        for blame in chaos["blames"]:
            line = f"round {blame['round']}: {blame['validator']} booked {blame['reason']} on {blame['peer']}"
            self._print(Text(line, "yellow"))


def _sets(count: int) -> str:
    return f"{count} set{'' if count == 1 else 's'} of weights {'is' if count == 1 else 'are'}"


def _has_passed(member: LocalNode, events: list[dict[str, Any]], index: int) -> bool:
    """Whether the node has passed the round; a validator must also have measured the loss, unless it was down.

    `caught_up` names the round at whose start the node is: that round is not passed yet.
    """
    passed = any(
        e["round"] >= index if e["event"] == "applied" else e["event"] == "caught_up" and e["round"] > index
        for e in events
    )
    if member.role != "validator":
        return passed
    judged = any(e["event"] == "checked" and e["round"] == index for e in events)
    measured = any(e["event"] == "held_out" and e["round"] >= index for e in events)
    return passed and (measured or not judged)


def _restarts(children: Iterable[Child]) -> dict[str, int]:
    return {child.name: child.restarts for child in children}


def _header() -> str:
    return f"{'round':>5}{'loss':>8}{''.join(f'{phase:>9}' for phase in PHASES)}   "


def _numbers(row: dict[str, Any]) -> Text:
    """Return the loss and each phase's duration."""
    loss = f"{row['val_loss']:.3f}" if row["val_loss"] is not None else "-"
    seconds = (row["seconds"][phase] for phase in PHASES)
    phases = "".join(f"{'-' if value is None else f'{value:.2f} s':>9}" for value in seconds)
    return Text(f"{row['round']:>5}{loss:>8}{phases}   ")


def _who(row: dict[str, Any], names: dict[str, str]) -> Text:
    """Return the contributors, and the others with the reasons."""
    out = {names.get(peer, peer): reason for peer, reason in {**row["standing"], **row["rejected"]}.items()}
    who = ("void", "red") if row["void"] else ", ".join(sorted(names.get(peer, peer) for peer in row["contributing"]))
    text = Text.assemble(who, " |" if out else "")
    for number, (name, reason) in enumerate(sorted(out.items())):
        text.append(f"{';' if number else ''} {name} ").append(reason, "yellow")
    return text
