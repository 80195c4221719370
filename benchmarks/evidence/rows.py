"""The file of rows: one JSON line a run, appended whole. A run that is in the file is not made again.

One process writes at a time (a lock beside the file); what a killed one left half-written at the end is cut off when
the file is opened to be written. Rows of other machines can be appended by hand: a row says where it was made.
"""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""{"id", "settings", "points" or "result", "seconds", "commit", "machine"}."""

ROOT = Path(__file__).parents[2]


def read(paths: Iterable[Path]) -> list[Row]:
    """The whole rows of files that may lack, in order; of two rows of one run the first. A last line without an end is
    passed over."""
    found: dict[str, Row] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            row = json.loads(line)
            found.setdefault(row["id"], row)
    return list(found.values())


def begin(path: Path, found: Iterable[Row]) -> None:
    """A file of these rows, unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator["Writer"]:
    """The file, repaired and locked. BlockingIOError when another process writes to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        repair(path)
        yield Writer(file.fileno())


def repair(path: Path) -> None:
    """Cut off what stands behind the last whole line."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


class Writer:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, row: Row) -> None:
        """On the disk when this returns."""
        os.write(self._descriptor, (json.dumps(row) + "\n").encode())
        os.fsync(self._descriptor)


def commit() -> str:
    """The short commit, with a + where the tree differs from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def machine() -> str:
    """Processor, how many of them, and torch."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} CPUs, torch {torch.__version__}"
