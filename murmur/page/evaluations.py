"""Checkpoint evaluations (`murmur evaluate RUN`) for the page: lines of a file, written by the evaluating process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from murmur.page.round_events import EVALUATIONS
from murmur.page.rounds import Rounds
from murmur.page.tail import Tail
from murmur.protocol.types import Digest

_FILE = "evaluations.jsonl"


def in_folder(folder: Path) -> Path:
    """Return the file of a local network's evaluations: in its run folder."""
    return folder / _FILE


def in_home(home: Path, run: Digest) -> Path:
    """Return the file of any run's evaluations, on the machine that makes them."""
    return home / "evaluations" / f"{run.hex()}.jsonl"


class Evaluations:
    """The rows of a growing file, merged into the rounds that made the states."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)

    def read(self, rounds: Rounds) -> None:
        """Read the new rows into `rounds`."""
        for place, event in self._events():
            rounds.take(EVALUATIONS, event, place)

    def _events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for place, line in self._tail.lines():
            try:
                row = json.loads(line)
                event = {"event": "tested", **{name: row[name] for name in ("time", "loss", "tasks")}}
                # The state at the start of a round was made by the previous round.
                yield place, event | {"round": row["round"] - 1}
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
