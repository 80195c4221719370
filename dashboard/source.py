"""What the page is made of, wherever it comes from: a run folder (dashboard/folder.py), or a network that is read from
outside (murmur/dashboard/watcher.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dashboard.rounds import Rounds
from protocol.spec import RunSpec

PORTION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """How far a network has come. `waits_for`: what has to be before its first round, None once that is played;
    `silent_seconds`: since it was last heard of; `trouble`: why nothing new can be read."""

    waits_for: str | None = None
    ended: bool = False
    silent_seconds: float = 0.0
    trouble: str | None = None


class Source(Protocol):
    """A run. `rounds` grows with `read`, one reader at a time; nothing else changes them."""

    rounds: Rounds

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        """Take in what is new, up to about `max_bytes`, without waiting for anybody; whether there is more."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """Hotkey -> name, where names are known."""
        ...

    @property
    def spec(self) -> RunSpec | None:
        """The constants in force; None while they are not known."""
        ...

    def stage(self) -> Stage:
        """How far it has come, as of now."""
        ...

    def detail(self, number: int) -> dict[str, Any] | None:
        """One round in full: `peers`, by hotkey, what each validator says of it; `unread`, by validator, why it says
        nothing; `phases`, by node, in seconds after the first node began; `deadline` of commitments on that scale, null
        where it is not known. None for a round that is not known."""
        ...

    def close(self) -> None:
        """Nothing is read any more."""
        ...
