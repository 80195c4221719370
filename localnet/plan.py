"""What a local network is to be: how many of whom, and who they are by name."""

from dataclasses import dataclass
from pathlib import Path

NETUID = 1
BLOCK_SECONDS = 0.25
CALL_SECONDS = 15.0
NEWCOMER = "newcomer-"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build. `faults`: kinds of localnet/faults.py, one miner each, beside `miners` honest ones. `newcomers`:
    honest miners that are registered, but run only from `Network.join` on. `ranks`: processes of each honest miner, in
    order; one where it ends."""

    folder: Path
    rounds: int = 12
    miners: int = 4
    validators: int = 1
    faults: tuple[str, ...] = ()
    seed: int = 0
    newcomers: int = 0
    ranks: tuple[int, ...] = ()

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

    def ranks_of(self, name: str) -> int:
        """Processes of the member with this name."""
        return {f"miner-{i}": ranks for i, ranks in enumerate(self.ranks, start=1)}.get(name, 1)
