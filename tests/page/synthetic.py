"""A run folder made of events alone, as large and as hostile as a test wants it."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.protocol.types import PeerId, hotkey
from tests.specs import toy_spec

SECONDS = 20.0
ROUND_BLOCKS, DECIDED = 40, 33
"""Of the toy run, whose first block D is 30; and where its round 0 is decided here."""


def key(name: str) -> str:
    """The hotkey of a member."""
    return hotkey(PeerId(sha256(name.encode()).digest()))


class Folder:
    """`nodes` write events.jsonl; a member is in wallets/ too."""

    def __init__(self, path: Path, nodes: tuple[str, ...] = ("miner-1", "miner-2", "garbage-1", "validator-1")) -> None:
        self.path = path
        for name in nodes:
            self.member(name)
            home = path / "nodes" / name
            home.mkdir(parents=True)
            (home / "node.toml").touch()

    def member(self, name: str) -> None:
        hotkeys = self.path / "wallets" / name / "hotkeys"
        hotkeys.mkdir(parents=True)
        (hotkeys / "defaultpub.txt").write_text(json.dumps({"ss58Address": key(name)}))

    def write(self, node: str, event: str, round: int, /, **fields: Any) -> None:
        fields = {"time": 1e9 + SECONDS * round, "node": node, "event": event, "round": round} | fields
        self.line(node, json.dumps(fields))

    def line(self, node: str, text: str) -> None:
        with (self.path / "nodes" / node / "events.jsonl").open("a") as file:
            file.write(text + "\n")

    def round(self, number: int, loss: float = 4.0, evaluations: int = 3, detail: str = "it has no part") -> None:
        """Two miners contribute, one sends garbage."""
        theta, both = sha256(bytes([number % 256])).hexdigest(), [key("miner-1"), key("miner-2")]
        for node in ("miner-1", "miner-2"):
            self.write(node, "trained", number, loss=loss - 1, tokens=100, seconds={"compute": 2.0})
            self.write(node, "published", number, payload_bytes=2560, seconds={"upload": 0.5})
        bad = key("garbage-1")
        self.write(
            "validator-1", "checked", number, active=3, passed=both, rejected={bad: "MALFORMED"}, seconds={"check": 1.0}
        )
        self.write("validator-1", "ranked", number, contributing=both, standing={})
        for node in ("miner-1", "miner-2", "validator-1"):
            told = {"theta": theta, "decided": DECIDED + ROUND_BLOCKS * number}
            told["seconds"] = {"download": 1.0, "apply": 0.125}
            self.write(node, "applied", number, void=False, contributing=both, **told)
            phases = [{"phase": "wait", "began": 0.0, "seconds": 1.0}, {"phase": "apply", "began": 1.5, "seconds": 0.5}]
            self.write(node, "phases", number, phases=phases)
        numbers = {"weight": 0.5, "contributing": True, "mu": 25.0, "sigma": 8.0, "evaluations": evaluations}
        peers = dict.fromkeys(both, numbers) | {
            bad: {"uid": 3, "weight": 0.0, "rejected": "MALFORMED", "detail": detail},
            key("owner"): {"uid": 0, "weight": 0.0},
        }
        self.write("validator-1", "reported", number, peers=peers)
        self.write("validator-1", "held_out", number, val_loss=loss)

    def spec(self) -> None:
        (self.path / "spec.json").write_bytes(toy_spec().to_bytes())

    def end(self) -> None:
        (self.path / "report.json").write_text("{}")
