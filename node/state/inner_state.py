"""What a miner carries from round to round, on disk: its error feedback and the inner optimizer's state.

Three times the model, so no step of a round waits for it: it is written beside the rounds, from the memory in which it
lies, which does not change between two compressions. A crash loses what was not written yet. That costs quality, and
nobody else anything (docs/protocol.md section 2).
"""

import os
from pathlib import Path

from loguru import logger

from protocol.errors import CheckpointCorrupt
from protocol.ports import Task, Time
from protocol.types import DIGEST_BYTES, Digest
from training import checkpoint
from training.checkpoint import GivenUp, Saved
from training.replica import Replica

_LATEST = "latest"
"""The file that names the newest whole one: replaced when that is on the disk, so a process may be killed at any
line."""


class InnerState:
    """One miner's own state and its folder. Its methods belong to one thread; the writing has its own."""

    def __init__(self, folder: Path, replica: Replica, time: Time) -> None:
        self.folder = folder
        self._replica, self._time = replica, time
        self.sealed, self.returned = "", False
        """The sealed object, a file's name, whose update was taken out of the error feedback last; and whether that was
        given back since. Written with the rest: a restart finds out what the disk lacks (node/state/node_state.py)."""
        self._task: Task | None = None
        self._wanted = False

    def load(self) -> bool:
        """Take what was written last; False where nothing was. Raises CheckpointCorrupt."""
        try:
            text = (self.folder / _LATEST).read_text()
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as fault:
            raise CheckpointCorrupt(f"{self.folder / _LATEST} cannot be read ({type(fault).__name__})") from None
        found = checkpoint.load(self.folder, _digest(text), self._replica.own_shapes())
        self._replica.load_own(found)
        self.sealed, self.returned = str(found.facts.get("sealed", "")), found.facts.get("returned") is True
        return True

    def forget(self) -> None:
        """What is on the disk is of no use."""
        (self.folder / _LATEST).unlink(missing_ok=True)

    def save(self) -> None:
        """Begin to write what the replica carries now. Returns once the optimizer's tensors are in host memory."""
        self.hold()
        own = self._replica.own_state()
        saved = Saved(own.tensors, {**own.facts, "sealed": self.sealed, "returned": self.returned})
        self._wanted = True
        self._task = self._time.start(lambda: self._write(saved), "own state")

    def hold(self) -> None:
        """Before the error feedback changes: what is still being written is given up, what was written stays."""
        self._wanted = False
        task, self._task = self._task, None
        if task is not None:
            if task.is_alive():
                logger.warning(
                    "this disk needs more than a round to save error feedback and optimizer state, so the "
                    "earlier ones stay on it: a crash would lose more than one round's. A faster disk fixes it"
                )
            task.join()

    def _write(self, saved: Saved) -> None:
        try:
            digest = checkpoint.save(self.folder, saved, stopped=lambda: not self._wanted)
            fresh = self.folder / f"{_LATEST}.partial"
            fresh.write_text(digest.hex())
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(fresh, self.folder / _LATEST)
            kept = {path.name for _, path in checkpoint.blobs(self.folder, digest)} | {_LATEST}
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
        except GivenUp:
            return
        except (OSError, CheckpointCorrupt) as fault:
            logger.warning(
                "could not save error feedback and optimizer state: {fault}. The earlier ones stay on the "
                "disk, and the next round tries again",
                fault=str(fault),
            )


def _digest(text: str) -> Digest:
    try:
        digest = Digest(bytes.fromhex(text))
    except ValueError:
        digest = Digest(b"")
    if len(digest) != DIGEST_BYTES:
        raise CheckpointCorrupt("the name of the newest own state is not a digest")
    return digest
