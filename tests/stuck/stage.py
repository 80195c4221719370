"""A run on a devnet with gates, played by real node programs, as an operator starts them: `murmur devnet --fault none`,
`murmur run create | publish`, `python neurons/..`."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from murmur.cli.main import main
from murmur.lab.localnet.gates.clock import build_clock
from murmur.lab.localnet.gates.kinds import write_faults
from murmur.node.telemetry.events import read_events
from murmur.page.folder import Folder
from murmur.page.health import health

ROOT = Path(__file__).parent.parent.parent
BLOCK_SECONDS = 0.5
ROUND_BLOCKS = 72
ROUND_SECONDS = BLOCK_SECONDS * ROUND_BLOCKS
SPEC = f"""
[model]
vocabulary = 264
layers = 1
width = 32
heads = 2
kv_heads = 1
ffn = 64
context = 64
[inner]
steps = 4
sequences = 4
optimizer = "muon"
peak_lr = 1.2e-2
final_lr = 1.2e-3
warmup_steps = 8
decay_steps = 4000
[data]
page_sequences = 16
[clock]
round_blocks = {ROUND_BLOCKS}
commit = 32
reveal = 42
words = 64
block_seconds = {BLOCK_SECONDS}
[gauntlet]
contributors = 4
reserve = 1
evaluations = 4
sample_sequences = 8
"""


class Stage:
    """A devnet, a published run, and its nodes. `folder` is the devnet's."""

    def __init__(self, path: Path, validators: int = 1, miners: int = 3) -> None:
        self.path, self.folder = path, path / "devnet"
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
        self.environment = {**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._faults: set[tuple[str, str]] = set()
        words = ["devnet", "--folder", str(self.folder), "--fault", "none", "--block-seconds", str(BLOCK_SECONDS)]
        self._start("devnet", "-m", "murmur", *words, "--validators", str(validators), "--miners", str(miners))
        self.wait_for("ready (Ctrl-C", lambda: "ready (Ctrl-C" in self.log("devnet"), 240)
        self.nodes = sorted(home.parent.name for home in self.folder.glob("nodes/*/node.toml"))

    # --- programs ----------------------------------------------------------------------------------------------

    def murmur(self, *words: str) -> str:
        """Run a command to its good end; return what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "murmur", *words], cwd=self.path, env=self.environment, capture_output=True,
            text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"murmur {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def publish(self, name: str = "run", start_in: int = 60, *words: str) -> None:
        """Build data, if there is none, create a run and publish it."""
        owner = str(self.folder / "owner.toml")
        (self.path / "spec.toml").write_text(SPEC)
        if not (self.path / "data").exists():
            self.murmur("shards", "build", "--from", "botocore", "--limit-bytes", "400000", "--out", "data")
        create = ["run", "create", name, "--config", owner, "--spec", "spec.toml", "--data", "data", "--local"]
        self.murmur(*create, "--device", "cpu")
        self.murmur("run", "publish", name, "--config", owner, "--start-in", str(start_in), *words)

    def start(
        self,
        node: str,
        *,
        program: str | None = None,
        config: Path | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        """Start a node's program; `program`: the name of this process, another one of the same node; `config`: its."""
        role = node.partition("-")[0]
        script = str(ROOT / "neurons" / f"{role}.py")
        self._start(program or node, script, "--config", str(config or self.config(node)), extra=extra)

    def stop(self, program: str, signum: int = signal.SIGINT) -> int:
        process = self.programs.pop(program)
        process.send_signal(signum)
        return process.wait(60)

    def close(self) -> None:
        for name in reversed(self.programs):
            process = self.programs[name]
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT if name == "devnet" else signal.SIGKILL)
        for process in self.programs.values():
            process.wait(60)

    def wrong_clock(self, node: str) -> dict[str, str]:
        """Return the environment in which the node's clock follows the faults file."""
        return build_clock(self.folder / "clocks" / "library", self.folder / "clocks" / node)

    def config(self, node: str) -> Path:
        return self.folder / "nodes" / node / "node.toml"

    def home(self, node: str) -> Path:
        return self.folder / "nodes" / node

    def log(self, program: str) -> str:
        path = self.path / f"{program}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- faults ------------------------------------------------------------------------------------------------

    def fault(self, *pairs: tuple[str, str]) -> None:
        """Begin these faults: node and kind."""
        self._faults |= {*pairs}
        write_faults(self.folder / "faults", sorted(self._faults))

    def mend(self, *pairs: tuple[str, str]) -> None:
        """End these faults, or all."""
        self._faults -= {*(pairs or self._faults)}
        write_faults(self.folder / "faults", sorted(self._faults))

    # --- what is seen ------------------------------------------------------------------------------------------

    def events(self, node: str, kind: str, since: float = 0.0) -> list[dict[str, Any]]:
        found = read_events(self.home(node) / "events.jsonl")
        return [event for event in found if event["event"] == kind and event["time"] >= since]

    def contributed(self, node: str, since: float = 0.0) -> list[int]:
        """Return the rounds to which a miner contributed, by the outcomes that it tells."""
        return [e["round"] for e in self.events(node, "round_outcome", since) if e["outcome"] == "contributing"]

    def surfaces(self, node: str) -> dict[str, str]:
        """Return what each surface says of this node now."""
        config = str(self.config(node))
        return {
            "log": self.log(node),
            "status": said("status", "--config", config),
            "doctor": said("doctor", "--fast", "--config", config, "--role", node.partition("-")[0]),
            "explain": said("explain", self.hotkey(node), "--config", config),
            "page": self.page(),
            "metrics": self.metrics(node),
        }

    def page(self) -> str:
        page = Folder(self.folder)
        while page.read():
            pass
        return health(page)[1]

    def metrics(self, node: str) -> str:
        port = tomllib.loads(self.config(node).read_text())["metrics_port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def hotkey(self, node: str) -> str:
        path = self.folder / "wallets" / node / "hotkeys" / "defaultpub.txt"
        return str(json.loads(path.read_text())["ss58Address"])

    def wait_for(self, what: str, happened: Callable[[], object], seconds: float) -> float:
        """Wait until it happened; return the seconds that it took."""
        began = time.monotonic()
        while not happened():
            assert time.monotonic() - began < seconds, f"no {what} within {seconds:.0f} s\n{self._ends()}"
            devnet = self.programs["devnet"]
            assert devnet.poll() is None, self.log("devnet")
            time.sleep(0.3)
        return time.monotonic() - began

    def _ends(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.programs)

    def _start(self, name: str, *arguments: str, extra: dict[str, str] | None = None) -> None:
        with (self.path / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.path, env=self.environment | (extra or {}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip


def said(*words: str) -> str:
    """Run a command in this process; return all that it writes."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), suppress(SystemExit):
        main(list(words))
    return told.getvalue()


def plain(text: str) -> str:
    """Return a text without line breaks and colours: words that a terminal's width has parted are whole again."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def names(surfaces: Iterable[tuple[str, str]], words: str) -> set[str]:
    """Return the surfaces that say these words."""
    return {name for name, text in surfaces if plain(words) in plain(text)}
