"""Evaluations of a run's checkpoints: one line each in a file that only grows. No torch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError


def described(row: Mapping[str, Any]) -> str:
    """Return a row as text."""
    tasks = [
        f"{task} {name.partition(',')[0]} {value:.4f}"
        for task, metrics in row["tasks"].items()
        for name, value in metrics.items()
    ]
    return f"state at the start of round {row['round']}: " + ", ".join([f"held-out loss {row['loss']:.4f}", *tasks])


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line and flush it to disk. Raises ConfigError."""
    try:
        with path.open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # an earlier process was killed within a line
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as fault:
        raise ConfigError(f"cannot write {path}: {fault.strerror}") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows by round; for a state evaluated twice the last row. Invalid lines are skipped."""
    found: dict[int, dict[str, Any]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
            if isinstance(row["round"], int) and isinstance(row["loss"], float) and isinstance(row["tasks"], dict):
                found[row["round"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [found[round] for round in sorted(found)]
