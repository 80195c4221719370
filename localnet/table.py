"""What a person sees of a local network: one line for each step of the build-up, one row for each round."""

import time
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table as Grid

from localnet.network import BLOCK_SECONDS, Member, Network, address
from localnet.processes import Child
from localnet.report import PHASES, round_report
from protocol.errors import ConfigError

POLL_SECONDS = 0.25


class Table:
    """Rows are printed as rounds end: they stay on the screen and in a log alike."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream, highlight=False)
        self._began = time.monotonic()
        self._rows = 0

    def say(self, line: str) -> None:
        """One step, with the seconds since the start."""
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {line}")

    def follow(self, network: Network, stall_rounds: float) -> None:
        """Show rounds until every honest node has played all of them. Raises ConfigError when the network is stuck."""
        names = {address(member): member.name for member in network.members.values()}
        clock = network.spec.clock
        patience = stall_rounds * clock.round_blocks * BLOCK_SECONDS + 30
        moved = time.monotonic()
        with self._console.status("") as status:
            while self._rows < network.plan.rounds:
                restarts = _restarts(network.processes.children.values())
                dead = network.processes.watch()
                for name, count in _restarts(network.processes.children.values()).items():
                    if count != restarts[name]:
                        self.say(f"[yellow]{name} died and was started again[/yellow]")
                if dead:
                    raise ConfigError(f"{dead[0]} ended for good:\n{network.processes.last_lines(dead[0])}")
                if self._show_finished(network, names):
                    moved = time.monotonic()
                waited = time.monotonic() - moved
                status.update(f"round {self._rows}: {waited:.0f} of about {clock.round_blocks * BLOCK_SECONDS:.0f} s")
                if waited > patience:
                    raise ConfigError(
                        f"round {self._rows} did not end within {patience:.0f} s: see the logs in "
                        f"{network.processes.folder}"
                    )
                time.sleep(POLL_SECONDS)

    def _show_finished(self, network: Network, names: dict[str, str]) -> bool:
        """Print the next round's row when all honest nodes have its result; True when it was printed."""
        events = {name: network.events(member) for name, member in network.members.items()}
        for member in network.honest:
            if not _has_passed(member, events[member.name], self._rows):
                return False
        row = round_report(network, events, self._rows)
        if row is None:
            return False
        if self._rows == 0:
            self._print(
                f"[bold]{'round':>5}{'loss':>8}{''.join(f'{p:>10}' for p in PHASES)}   contributing | not[/bold]"
            )
        self._print(_line(row, names))
        self._rows += 1
        return True

    def _print(self, line: str) -> None:
        # Never wrapped: a narrow terminal shows long lines folded, a log keeps them greppable.
        self._console.print(line, soft_wrap=True)

    def close(self, report: dict[str, Any], folder: Path) -> None:
        """The result, and where everything is."""
        summary = report["summary"]
        grid = Grid(title="peers", title_justify="left")
        for column in ("name", "fault", "rounds contributed", "weight"):
            grid.add_column(column)
        for peer in report["peers"].values():
            grid.add_row(peer["name"], peer["fault"] or "", str(peer["contributed"]), f"{peer['weight']:.3f}")
        self._console.print(grid)
        same = "all replicas identical" if summary["replicas_identical"] else "[red]replicas differ[/red]"
        loss = ""
        if summary["loss_first"] is not None:
            loss = f"held-out loss {summary['loss_first']:.2f} -> {summary['loss_last']:.2f}, "
        self._print(
            f"{loss}{same}, {summary['void_rounds']} void rounds, payloads {summary['payload_ratio']:.0f} times "
            "smaller than dense fp32"
        )
        self._print(f"report: {folder / 'report.json'}   logs: {folder / 'logs'}   events: {folder / 'nodes'}")


def _has_passed(member: Member, events: list[dict[str, Any]], index: int) -> bool:
    """Whether the node stands beyond the round; a validator has also measured the loss, unless it was down."""
    passed = any(e["event"] in ("applied", "caught_up") and e["round"] >= index for e in events)
    if member.role != "validator":
        return passed
    return passed and any(e["event"] == "held_out" and e["round"] >= index for e in events)


def _restarts(children: "Any") -> dict[str, int]:
    return {child.name: child.restarts for child in children if isinstance(child, Child)}


def _line(row: dict[str, Any], names: dict[str, str]) -> str:
    """One round as one line: what was learned, how long each phase took, who contributed and who did not, and why."""
    out = {names.get(peer, peer): reason for peer, reason in {**row["standing"], **row["rejected"]}.items()}
    contributing = ", ".join(sorted(names.get(peer, peer) for peer in row["contributing"]))
    loss = f"{row['val_loss']:.3f}" if row["val_loss"] is not None else "-"
    seconds = (row["seconds"][phase] for phase in PHASES)
    phases = "".join(f"{'-' if value is None else f'{value:.2f} s':>10}" for value in seconds)
    who = "[red]void[/red]" if row["void"] else contributing
    why = "; ".join(f"{name} [yellow]{reason}[/yellow]" for name, reason in sorted(out.items()))
    return f"{row['round']:>5}{loss:>8}{phases}   {who}{' | ' + why if why else ''}"
