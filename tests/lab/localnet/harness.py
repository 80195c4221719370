"""`murmur localnet` as people start it, watched from outside: its screen, its processes, its run folder."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.lab.localnet.store import read_ready
from murmur.node.state.store import StateStore
from murmur.protocol.types import Digest

ROW = re.compile(r"^ {1,4}(\d+) +(?:\d+\.\d+|-) ", re.MULTILINE)


class Run:
    """One run of the command. `screen` is what it has written to stderr."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self._screen = folder.with_name(f"{folder.name}.screen")
        command = [sys.executable, "-m", "murmur", "localnet", "--folder", str(folder), *words]
        with self._screen.open("wb") as screen:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen, start_new_session=True
            )

    @property
    def screen(self) -> str:
        return self._screen.read_text()

    @property
    def rounds(self) -> int:
        """Number of rounds whose rows are shown."""
        return len(ROW.findall(self.screen))

    def wait_for(self, text: str, seconds: float = 900.0) -> None:
        self.wait_until(lambda: text in self.screen, seconds, text)

    def wait_for_round(self, index: int, seconds: float = 1200.0) -> None:
        """Wait until the round's row is shown."""
        self.wait_until(lambda: self.rounds > index, seconds, f"round {index}")

    def wait_until(self, happened: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.screen}"
            assert time.monotonic() < end, f"no {what}:\n{self.screen}"
            time.sleep(0.05)

    def pid(self, name: str) -> int:
        lines = (self.folder / "logs" / "pids").read_text().splitlines()
        return int(dict(map(str.split, lines))[name])

    def ranks(self, name: str) -> dict[str, int]:
        """Process of each rank, of a node that torchrun has started."""
        found = {}
        for pid in self.children(self.pid(name)):
            with suppress(OSError):
                environment = dict(
                    entry.partition(b"=")[::2] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                )
                if b"RANK" in environment:
                    found[environment[b"RANK"].decode()] = pid
        return found

    @staticmethod
    def children(parent: int) -> list[int]:
        """Processes that this one has started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(folder.name))
        return found

    @property
    def round_seconds(self) -> float:
        """How long a round is, once that is said."""
        said = re.search(r"a round has \d+ blocks \(([0-9.]+) s\)", self.screen)
        assert said, self.screen
        return float(said[1])

    def kill(self, name: str) -> None:
        """kill -9 of one node."""
        os.kill(self.pid(name), signal.SIGKILL)

    def finish(self, seconds: float = 900.0) -> int:
        return self.process.wait(seconds)

    @property
    def id(self) -> Digest:
        """The run's, once its spec is sealed."""
        return _run_id(self.folder)

    @property
    def report(self) -> dict[str, Any]:
        body = json.loads((self.folder / "report.json").read_text())
        assert isinstance(body, dict)
        return body


@contextmanager
def localnet(folder: Path, *words: str) -> Iterator[Run]:
    """A run that is over afterwards, whatever happens."""
    run = Run(folder, *words)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that work on the folder; those that only wait to be reaped are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def assert_nothing_runs(folder: Path, seconds: float = 120.0) -> None:
    """No process of the run is left, at the latest after a moment for those that the kernel tells."""
    end = time.monotonic() + seconds
    while left := processes_of(folder):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def secrets_of(folder: Path) -> dict[str, bytes]:
    """Everything of a finished run that must never be told: what it is -> its bytes as text."""
    secrets = {}
    for name, user in read_ready(folder / "store" / "ready.json").users.items():
        secrets |= {f"{name}'s write key": user.write_secret_key, f"{name}'s read key": user.read_secret_key}
    for path in (folder / "wallets").glob("*/hotkeys/default"):
        body = json.loads(path.read_text())
        secrets |= {f"{field} of {path}": body[field] for field in ("secretSeed", "secretPhrase") if body.get(field)}
    run = _run_id(folder)
    for home in (folder / "nodes").iterdir():
        store = StateStore(home, run)
        saved = store.load()
        store.close()
        if saved is not None and saved.sealed is not None:
            secrets[f"{home.name}'s sealing key"] = saved.sealed.key.hex()
    return {what: secret.encode() for what, secret in secrets.items()}


def _run_id(folder: Path) -> Digest:
    return Digest(sha256((folder / "spec.json").read_bytes()).digest())


def told(folder: Path) -> Iterable[Path]:
    """Files of a run that people pass on: logs, events, the report, the screen."""
    yield from (folder / "logs").iterdir()
    yield from (folder / "nodes").glob("*/events.jsonl")
    yield folder / "report.json"
    yield folder.with_name(f"{folder.name}.screen")
