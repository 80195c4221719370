"""A network that never ran: members whose events files a test writes itself."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from murmur.lab.devnet.launch import Admin
from murmur.lab.localnet.members import LocalNode, address
from murmur.lab.localnet.network import Network
from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.processes import Processes
from murmur.lab.localnet.store import StoreReady
from murmur.protocol.types import PeerId
from tests.specs import toy_spec

THETA = {round: f"{round + 1:02x}" * 32 for round in range(100)}


class Recorded(Processes):
    """Processes that remember whom they spared each time when they were stopped."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        self.stopped: list[Collection[str]] = []

    def stop(self, spared: Collection[str] = ()) -> None:
        self.stopped.append(spared)
        super().stop(spared)


class Synthetic:
    """`network` as the report and the table see it, with a validator, two miners and a garbage miner."""

    def __init__(self, folder: Path, rounds: int = 2, *, validators: int = 1) -> None:
        (folder / "logs").mkdir(parents=True)
        self.folder = folder
        roles: dict[str, tuple[str, str | None]] = {
            f"validator-{i + 1}": ("validator", None) for i in range(validators)
        }
        roles |= {"miner-1": ("miner", None), "miner-2": ("miner", None), "garbage-1": ("miner", "garbage")}
        members = {}
        for number, (name, (role, fault)) in enumerate(roles.items(), 1):
            home = folder / "nodes" / name
            home.mkdir(parents=True)
            members[name] = LocalNode(name, role, fault, home, home / "node.toml", PeerId(bytes([number]) * 32))
        nowhere = "ws://127.0.0.1:1"
        devnet: Any = SimpleNamespace(url=nowhere, admin=lambda: Admin(nowhere))
        processes = Recorded(folder / "logs", {})
        self.stopped = processes.stopped
        plan = Plan(folder, rounds=rounds, miners=2, faults=("garbage",))
        self.network = Network(plan, processes, devnet, cast(StoreReady, None), toy_spec(), members)

    def hotkey(self, name: str) -> str:
        return address(self.network.members[name])

    def write(self, name: str, text: str) -> None:
        with (self.folder / "nodes" / name / "events.jsonl").open("a") as file:
            file.write(text)

    def emit(self, name: str, event: str, round: int, **fields: Any) -> None:
        line = {"time": 1.0, "node": name, "event": event, "round": round} | fields
        self.write(name, json.dumps(line) + "\n")

    def applied(
        self,
        name: str,
        round: int,
        *,
        theta: str | None = None,
        void: bool = False,
        apply: float = 0.1,
        time: float = 1.0,
    ) -> None:
        contributing = [] if void else [self.hotkey("miner-1"), self.hotkey("miner-2")]
        seconds = {"download": 0.02, "apply": apply}
        theta = theta or THETA[round]
        told = {"void": void, "contributing": contributing, "theta": theta, "decided": 7, "seconds": seconds}
        self.emit(name, "applied", round, time=time, **told)

    def judged(self, name: str, round: int, *, val_loss: float, **reasons: str) -> None:
        rejected = {self.hotkey(peer.replace("_", "-")): reason for peer, reason in reasons.items()}
        self.emit(name, "checked", round, active=3, passed=[], rejected=rejected, seconds={"check": 9.0})
        self.emit(name, "ranked", round, contributing=[], standing={})
        self.emit(name, "held_out", round, val_loss=val_loss)

    def round(self, round: int, *, val_loss: float = 5.0) -> None:
        """A round in which all went well."""
        for name in self.network.members:
            self.applied(name, round)
        for number, name in enumerate(("miner-1", "miner-2"), 1):
            self.emit(name, "trained", round, loss=4.0, tokens=100, seconds={"compute": float(number)})
            self.emit(name, "published", round, payload_bytes=10, seconds={"upload": 0.5})
        self.judged("validator-1", round, val_loss=val_loss, garbage_1="MALFORMED")
