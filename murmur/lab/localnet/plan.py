"""The plan of a local network: the number of members by role, and their names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from murmur.configs import presets
from murmur.lab.localnet.chaos import Injection, draw

NETUID = 1
BLOCK_SECONDS = 0.2
CALL_SECONDS = 15.0
NEWCOMER = "newcomer-"
TINY = "tiny"
PRESETS = {TINY: 30.0, "parts": 300.0}
"""Presets of murmur/configs/ that train on a few cores, and the seconds that each node may add to the start: all
rehearse concurrently."""


@dataclass(frozen=True, slots=True)
class Link:
    """A node's link to all buckets, in megabits (10^6) per second."""

    up_mbps: float
    down_mbps: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The network to build.

    - `faults`: kinds of murmur/lab/localnet/faults.py, one miner each, in addition to `miners` honest ones.
    - `newcomers`: honest miners that are registered, but start only in `Network.join`.
    - `ranks`: processes of each honest miner, in order; one for the rest.
    - `chaos`: the seed of the injected faults (murmur/lab/localnet/chaos.py); None: there are none.
    - `store`: the credentials file (murmur/lab/localnet/store.py) of a running S3 server; None: the network starts its
      own.
    - `preset`: the model to train, or a file of it. Its clock is used if it has one, else one is measured.
    - `block_seconds`: of the chain.
    - `links`: of the nodes of a role; without one a node is as fast as this machine.
    - `track`: the nodes' tracker.
    """

    folder: Path
    rounds: int = 12
    miners: int = 4
    validators: int = 1
    faults: tuple[str, ...] = ()
    seed: int = 0
    newcomers: int = 0
    ranks: tuple[int, ...] = ()
    chaos: int | None = None
    store: Path | None = None
    preset: str = TINY
    block_seconds: float = BLOCK_SECONDS
    links: Mapping[str, Link] = field(default_factory=dict)
    track: str | None = None

    @property
    def table(self) -> dict[str, Any]:
        """The preset's table, as it was written."""
        return presets.table(self.preset)

    @property
    def clock(self) -> Mapping[str, Any] | None:
        """The preset's clock; None where it has to be measured."""
        clock: Mapping[str, Any] | None = self.table.get("clock")
        return clock

    def names(self) -> dict[str, tuple[str, str | None]]:
        """Return name -> (role, fault), the owner first."""
        names: dict[str, tuple[str, str | None]] = {"owner": ("owner", None)}
        names |= {f"validator-{i}": ("validator", None) for i in range(1, self.validators + 1)}
        names |= {f"miner-{i}": ("miner", None) for i in range(1, self.miners + 1)}
        names |= {f"{NEWCOMER}{i}": ("miner", None) for i in range(1, self.newcomers + 1)}
        for kind in self.faults:
            count = 1 + sum(name.startswith(f"{kind}-") for name in names)
            names[f"{kind}-{count}"] = ("miner", kind)
        return names

    def injections(self) -> tuple[Injection, ...]:
        """Return all planned injections, by time."""
        if self.chaos is None:
            return ()
        honest = [(name, role) for name, (role, fault) in self.names().items() if fault is None]
        newcomers = [name for name, _ in honest if name.startswith(NEWCOMER)]
        miners = [name for name, role in honest if role == "miner" and name not in newcomers]
        validators = [name for name, role in honest if role == "validator"]
        return draw(self.chaos, self.rounds, validators, miners, newcomers)

    def ranks_of(self, name: str) -> int:
        """Return the number of processes of this member."""
        return {f"miner-{i}": ranks for i, ranks in enumerate(self.ranks, start=1)}.get(name, 1)
