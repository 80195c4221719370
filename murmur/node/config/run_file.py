"""The run that a node follows, as a file in its home: the first spec and every amendment that the node has adopted.

So a restart follows exactly the same run, and needs neither the owner's bucket nor any other node.
"""

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from loguru import logger

from murmur import files
from murmur.protocol.errors import ConfigError, InvalidMessage
from murmur.protocol.messages import canonical_json, parse_json
from murmur.protocol.run import Run, parse_amendment
from murmur.protocol.spec import parse_spec
from murmur.protocol.types import Digest

NAME = "run.json"
RUN_CHARACTERS = 16
"""Of a run's id, in the name of its folder."""
LOCK = "lock"
"""File in a run's folder that its process keeps locked (flock)."""


class RunFile:
    """`run.json` in the folder of one run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.read: dict[Digest, bytes] = {}
        """Amendments that were read but are not followed (yet): an interrupted look continues from here."""

    def load(self) -> Run | None:
        """Load the saved run. Return None if there is none, or if the file is damaged: then a warning is logged, and
        the run is read again from its owner's bucket."""
        try:
            return _decode(parse_json(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, InvalidMessage, ConfigError) as fault:
            logger.warning("{path} cannot be used: {fault}", path=str(self._path), fault=str(fault))
            return None

    def save(self, run: Run) -> None:
        """Save `run` as the one to follow; the file is replaced whole or not at all."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write(self._path, _encode(run))
        for amendment in run.amendments:
            self.read.pop(amendment.digest, None)


def folder_of(home: Path, run: Digest) -> Path:
    """Return a node's folder for one run."""
    return home / run.hex()[:RUN_CHARACTERS]


def is_left(folder: Path) -> bool:
    """Whether a process has played in a run's folder, and none holds its lock now."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def saved_runs(home: Path) -> list[Run]:
    """Return every run that was followed from this home, the one that began last first."""
    found = [run for path in home.glob(f"*/{NAME}") if (run := RunFile(path.parent).load()) is not None]
    return sorted(found, key=lambda run: (-run.clock.start_block, run.id))


def _encode(run: Run) -> bytes:
    body: dict[str, Any] = {
        "head": run.head.hex(),
        "spec": run.first.model_dump(mode="json"),
        "amendments": [amendment.model_dump(mode="json") for amendment in run.amendments],
    }
    return canonical_json(body)


def _decode(body: dict[str, Any]) -> Run:
    """Raises InvalidMessage, and ConfigError for a run that this release cannot read. The head pins everything else."""
    try:
        spec, *amendments = (canonical_json(table) for table in (body["spec"], *body["amendments"]))
        run = Run(parse_spec(spec, _digest(spec)))
        run = run.amended([parse_amendment(data, _digest(data)) for data in amendments])
        if run.head.hex() != body["head"]:
            raise InvalidMessage("the disk changed it")
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise InvalidMessage(f"not what was written ({type(fault).__name__})") from None
    return run


def _digest(data: bytes) -> Digest:
    return Digest(sha256(data).digest())
