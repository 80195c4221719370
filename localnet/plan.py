"""What a local network is to be: how many of whom, and who they are by name."""

from dataclasses import dataclass
from pathlib import Path

from localnet.chaos import Injection, draw

NETUID = 1
BLOCK_SECONDS = 0.25
CALL_SECONDS = 15.0
NEWCOMER = "newcomer-"
TINY = "tiny"
PRESETS = {TINY: 30.0, "parts": 300.0}
"""Of configs/, those that train on a few cores. Seconds that each node may add to the start: all rehearse at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build. `faults`: kinds of localnet/faults.py, one miner each, beside `miners` honest ones. `newcomers`:
    honest miners that are registered, but run only from `Network.join` on. `ranks`: processes of each honest miner, in
    order; one where it ends. `chaos`: the seed of what goes wrong (localnet/chaos.py); None: nothing does. `store`: the
    credentials file (localnet/store.py) of an S3 server that runs already; None: the network starts its own.
    `preset`: what is trained. `block_seconds`: of the chain."""

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

    def names(self) -> dict[str, tuple[str, str | None]]:
        """name -> (role, fault), the owner first."""
        names: dict[str, tuple[str, str | None]] = {"owner": ("owner", None)}
        names |= {f"validator-{i}": ("validator", None) for i in range(1, self.validators + 1)}
        names |= {f"miner-{i}": ("miner", None) for i in range(1, self.miners + 1)}
        names |= {f"{NEWCOMER}{i}": ("miner", None) for i in range(1, self.newcomers + 1)}
        for kind in self.faults:
            count = 1 + sum(name.startswith(f"{kind}-") for name in names)
            names[f"{kind}-{count}"] = ("miner", kind)
        return names

    def injections(self) -> tuple[Injection, ...]:
        """All that is to go wrong, by time."""
        if self.chaos is None:
            return ()
        honest = [(name, role) for name, (role, fault) in self.names().items() if fault is None]
        newcomers = [name for name, _ in honest if name.startswith(NEWCOMER)]
        miners = [name for name, role in honest if role == "miner" and name not in newcomers]
        validators = [name for name, role in honest if role == "validator"]
        return draw(self.chaos, self.rounds, validators, miners, newcomers)

    def ranks_of(self, name: str) -> int:
        """Processes of the member with this name."""
        return {f"miner-{i}": ranks for i, ranks in enumerate(self.ranks, start=1)}.get(name, 1)
