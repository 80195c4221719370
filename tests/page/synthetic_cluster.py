"""The run folder of a cluster's demo, made of events alone, as large and as hostile as a test wants it."""

import json
import time
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Any

from murmur.protocol.cluster import ClusterSpec, build_cluster
from tests.protocol.test_cluster import cluster_table

SECONDS = 40.0
"""From one round to the next."""
TRAINED = 36.0
STEPS = 4


def member_id(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def spec() -> ClusterSpec:
    return build_cluster(cluster_table(), "toy.toml")


class ClusterFolder:
    """`members` write events.jsonl. rounds: how many there will be; the last one has ended just now."""

    def __init__(self, path: Path, members: Collection[str] = ("lab-a", "lab-b", "lab-c"), rounds: int = 6) -> None:
        self.path, self.members = path, tuple(members)
        self.began = time.time() - rounds * SECONDS
        (path / "spec.json").write_bytes(spec().to_bytes())
        for name in self.members:
            home = path / "nodes" / name / "run"
            home.mkdir(parents=True)
            (home / "member").write_text(member_id(name))

    def write(self, name: str, event: str, round: int, /, **fields: Any) -> None:
        at = self.began + SECONDS * (round + 1)
        line = json.dumps({"time": at, "node": name, "event": event, "round": round} | fields)
        with (self.path / "nodes" / name / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def round(self, number: int, late: Collection[str] = (), away: Collection[str] = (), loss: float = 4.0) -> None:
        """All but `late` and `away` contribute; the first of them closes the round. Member i has a loss of
        `loss` + i / 10."""
        here = [name for name in self.members if name not in away]
        contributing = [name for name in here if name not in late]
        told = {"void": False, "contributing": sorted(map(member_id, contributing)), "theta": f"{number:064x}"}
        nothing = {"decided": None, "after": None, "guess": None}
        for name in here:
            own = loss + self.members.index(name) / 10
            self.write(name, "trained", number, loss=own, tokens=100, seconds={"compute": TRAINED})
            self.write(name, "published", number, payload_bytes=2560, seconds={"upload": 0.5})
            self.write(name, "claimed", number, steps=STEPS)
            if name == contributing[0]:
                self.write(name, "closed", number, ours=True, waited_for=[])
            self.write(name, "applied", number, **told, **nothing, seconds={"download": 1.0, "apply": 0.125})
            spent = [
                ("compute", 0.0, TRAINED),
                ("upload", TRAINED, 0.5),
                ("wait", TRAINED + 0.5, SECONDS - TRAINED - 0.5),
            ]
            phases = [{"phase": phase, "began": began, "seconds": lasted} for phase, began, lasted in spent]
            self.write(name, "phases", number, phases=phases)

    def end(self) -> None:
        (self.path / "report.json").write_text("{}")
