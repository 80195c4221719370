"""A miner's inner state on disk: its error feedback and the inner optimizer's state, which it carries from round to
round.

It is three times the size of the model, so no step of a round waits for it. A thread writes it during the rounds,
directly from the tensors' memory, which does not change between two compressions. A crash loses the part that was not
written yet. That costs quality, and no other node anything (docs/protocol.md section 2).
"""

from contextlib import suppress
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.ports import Task, Time
from murmur.protocol.types import DIGEST_BYTES, Digest
from murmur.training import checkpoint
from murmur.training.checkpoint import GivenUp, TensorState
from murmur.training.replica import Replica

_LATEST = "latest"
"""The file that names the newest complete state. It is replaced after that state is on the disk, so a process may be
killed at any line."""


class InnerState:
    """One miner's inner state and its folder. One thread calls its methods; another one writes."""

    def __init__(self, folder: Path, replica: Replica, time: Time) -> None:
        self.folder = folder
        self._replica, self._time = replica, time
        self.sealed, self.returned = "", False
        """The file name of the sealed object whose update was last taken out of the error feedback, and whether it was
        given back since. Saved with the rest, so that a restart can tell which updates the disk lacks
        (murmur/node/state/node_state.py)."""
        self._task: Task | None = None
        self._wanted = False
        self._began, self._took = 0.0, 0.0
        """When the write began, and how many seconds the last complete one took."""

    def load(self) -> bool:
        """Load the last saved state; False if there is none. Raises CheckpointCorrupt."""
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
        """Discard the state on the disk."""
        (self.folder / _LATEST).unlink(missing_ok=True)

    def save(self) -> None:
        """Start to write the replica's inner state. Returns once the optimizer's tensors are in host memory."""
        self.hold()
        own = self._replica.own_state()
        saved = TensorState(own.tensors, {**own.facts, "sealed": self.sealed, "returned": self.returned})
        self._wanted, self._began = True, self._time.now()
        self._task = self._time.start(lambda: self._write(saved), "own state")

    def hold(self) -> None:
        """Cancel a write that is still running; the last complete state stays. Call it before the error feedback
        changes."""
        self._wanted = False
        task, self._task = self._task, None
        if task is not None:
            seconds = self._time.now() - self._began
            if task.is_alive() and seconds >= self._took:
                logger.warning(
                    "{seconds:.0f} s were not enough to save error feedback and optimizer state, so the earlier ones "
                    "stay on the disk: a crash would lose more than one round's. Where rounds are played to their "
                    "end, a faster disk fixes it",
                    seconds=seconds,
                )
            task.join()

    def _write(self, saved: TensorState) -> None:
        try:
            digest = checkpoint.save(self.folder, saved, stopped=lambda: not self._wanted)
            files.write(self.folder / _LATEST, digest.hex().encode())
            self._took = self._time.now() - self._began
        except GivenUp:
            pass
        except OSError as fault:
            logger.warning(
                "could not save error feedback and optimizer state: {fault}. The earlier ones stay on the "
                "disk, and the next round tries again",
                fault=str(fault),
            )
        with suppress(OSError, ValueError, CheckpointCorrupt):
            self._sweep()

    def _sweep(self) -> None:
        """Delete all files but those of the newest complete state: what was given up is as large."""
        latest = self.folder / _LATEST
        kept = {latest.name}
        if latest.exists():
            kept |= {path.name for _, path in checkpoint.blobs(self.folder, _digest(latest.read_text()))}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _digest(text: str) -> Digest:
    try:
        digest = Digest(bytes.fromhex(text))
    except ValueError:
        digest = Digest(b"")
    if len(digest) != DIGEST_BYTES:
        raise CheckpointCorrupt("the name of the newest own state is not a digest")
    return digest
