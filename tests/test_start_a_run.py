"""docs/start-a-run.md: every command of it is one that there is, and all of them together do what it says."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from murmur.cli.main import parse
from murmur.node.telemetry.events import read_events
from tests.lab.localnet.harness import assert_nothing_runs

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/start-a-run.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """Commands of one terminal, or a file to save, and what the text then says to wait for: words on the screen, or a
    number of rounds."""

    terminal: int
    commands: tuple[str, ...]
    file: tuple[str, str] | None
    says: str | None
    rounds: int | None


def steps() -> Iterator[Step]:
    blocks = list(BLOCK.finditer(TEXT))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        after = TEXT[block.end() : following.start() if following else len(TEXT)]
        says, rounds = re.search(r"until it says `(.*?)`", after), re.search(r"Wait for (\d+) rounds", after)
        first, _, rest = block.group(2).partition("\n")
        waits = (says.group(1) if says else None, int(rounds.group(1)) if rounds else None)
        if block.group(1) == "toml":
            yield Step(1, (), (first.removeprefix("# "), block.group(2)), *waits)
        else:
            terminal = re.fullmatch(r"# terminal (\d+)", first)
            lines = rest if terminal else block.group(2)
            yield Step(int(terminal.group(1)) if terminal else 1, tuple(lines.splitlines()), None, *waits)


def test_every_command_of_the_tutorial_is_one_that_there_is() -> None:
    commands = [command for step in steps() for command in step.commands]
    assert len(commands) > 12
    actions = set()
    for command in commands:
        program, *words = shlex.split(command)
        if program == "murmur":
            parse(words)
            actions.add(" ".join(words[:2]))
        else:
            assert (program, words[1]) == ("python", "--config"), command
            assert (ROOT / words[0]).is_file(), command
    assert {f"run {action}" for action in ("create", "publish", "show", "amend", "void")} <= actions


class Terminals:
    """Programs of the tutorial in a folder of their own, with the words that it uses for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, start in (("murmur", "-m murmur"), ("python", "")):
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
            script.chmod(0o755)
        (folder / "neurons").symlink_to(ROOT / "neurons")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**ours, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.running: list[subprocess.Popen[bytes]] = []

    def log(self, terminal: int) -> Path:
        return self.folder / f"terminal-{terminal}.log"

    def run(self, command: str) -> None:
        """In the first one, until it ends well."""
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        with self.log(1).open("a") as log:
            log.write(f"$ {command}\n{done.stdout}{done.stderr}\n")

    def start(self, terminal: int, command: str) -> None:
        with self.log(terminal).open("ab") as log:
            self.running.append(
                subprocess.Popen(
                    shlex.split(command), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log,
                )
            )  # fmt: skip

    def wait_for(self, terminal: int, words: str) -> None:
        until = time.monotonic() + 300
        while words not in self.log(terminal).read_text():
            self.look()
            assert time.monotonic() < until, self.log(terminal).read_text()
            time.sleep(0.2)

    def losses(self) -> list[float]:
        """The validator's held-out loss after each round."""
        events = self.folder / "devnet/nodes/validator-1/events.jsonl"
        found = read_events(events) if events.exists() else []
        return [event["val_loss"] for event in found if event["event"] == "held_out"]

    def look(self) -> None:
        for process in self.running:
            assert process.poll() is None, "".join(path.read_text() for path in sorted(self.folder.glob("terminal-*")))

    def close(self) -> None:
        for process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)


@pytest.mark.slow
def test_the_tutorial_works_from_top_to_bottom(tmp_path: Path) -> None:
    terminals = Terminals(tmp_path)
    try:
        for step in steps():
            if step.file is not None:
                (tmp_path / step.file[0]).write_text(step.file[1])
            for command in step.commands:
                if step.terminal == 1:
                    terminals.run(command)
                else:
                    terminals.start(step.terminal, command)
            if step.says is not None:
                terminals.wait_for(step.terminal, step.says)
            until = time.monotonic() + 1200
            while step.rounds is not None and len(terminals.losses()) < step.rounds:
                terminals.look()
                assert time.monotonic() < until, terminals.losses()
                time.sleep(1)
        losses = terminals.losses()
        assert losses[-1] < losses[0] - 0.2, losses
        shown = terminals.log(1).read_text()
        assert "all correct" in shown
        assert "inner.peak_lr   0.012 -> 0.001" in shown
        assert "taken back: from round 200" in shown
    finally:
        terminals.close()
    assert_nothing_runs(tmp_path)
