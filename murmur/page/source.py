"""The page's data source: a run folder (murmur/page/folder.py), or a network or a cluster read from outside
(murmur/page/live/)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from murmur.page.cluster import ClusterNow
from murmur.page.rounds import Rounds
from murmur.protocol.spec import TrainingSpec

PORTION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A network's progress. `waits_for`: the condition for its first round, None once that is played. `silent_seconds`:
    time since its last progress. `trouble`: why no new data can be read. `stopped`: all of its nodes were stopped on
    request. `troubles`: what keeps which of its nodes from their work (murmur/node/telemetry/trouble.py). `heard`:
    seconds since the last event of each node that has not stopped, where nodes' own events are read."""

    waits_for: str | None = None
    ended: bool = False
    silent_seconds: float = 0.0
    trouble: str | None = None
    stopped: bool = False
    troubles: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    heard: Mapping[str, float] = field(default_factory=dict)


class PageSource(Protocol):
    """A run. `rounds` grows with `read`, one reader at a time; nothing else changes them."""

    rounds: Rounds

    def read(self, max_bytes: int = PORTION_BYTES) -> bool:
        """Read new data, up to about `max_bytes`, without blocking; return whether there is more."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """Hotkey -> name, where names are known."""
        ...

    @property
    def spec(self) -> TrainingSpec | None:
        """The constants in force; None while they are not known."""
        ...

    def stage(self) -> Stage:
        """Return the current progress."""
        ...

    def cluster(self) -> ClusterNow | None:
        """Return the members of a cluster and its amendments; None for a network on a chain."""
        ...

    def detail(self, number: int) -> dict[str, Any] | None:
        """Return one round in full; None for an unknown round.

        `peers`: by hotkey, each validator's report on it. `unread`: by validator, why its report is missing. `phases`:
        by node, in seconds after the first node began. `deadline`: of commitments on that scale, null where it is not
        known.
        """
        ...

    def close(self) -> None:
        """Stop reading."""
        ...
