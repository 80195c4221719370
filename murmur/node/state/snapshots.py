"""Snapshots of theta and the outer state, written by a thread of their own directly from the tensors' memory.

Outer steps alone change theta. A snapshot that is incomplete when the next outer step comes is cancelled, or awaited if
the redo log must not grow further. So a mixture of two states never gets a name (docs/protocol.md section 8).
"""

import os
from pathlib import Path
from shutil import rmtree

from loguru import logger

from murmur import files
from murmur.node.state.saved import Snapshot
from murmur.protocol.errors import ConfigError, DiskFull
from murmur.protocol.ports import Task, Time
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.checkpoint import GivenUp, TensorState


class Snapshots:
    """The writer of one node's snapshots. One thread calls its methods; another one writes.

    Files are written in `aside`, which every `begin` empties, and moved to `folder` by `take`. The next commit sweeps
    unnamed files there.
    """

    def __init__(self, folder: Path, aside: Path, time: Time) -> None:
        self.folder, self.aside, self._time = folder, aside, time
        self._task: Task | None = None
        self._wanted = False
        self._of: tuple[int, Digest] | None = None
        self._written: Digest | None = None
        self._fault: OSError | None = None
        self._began = 0.0

    def begin(self, round: int, link: Digest, state: TensorState) -> None:
        """Start to write the state at the start of `round`; returns at once. Its tensors must not change before `hold`
        has returned."""
        self.hold()
        self._of, self._written, self._fault, self._wanted = (round, link), None, None, True
        self._began = self._time.now()
        self._task = self._time.start(lambda: self._write(state), "snapshot")

    def hold(self, *, wait: bool = False) -> None:
        """Cancel a write that is still running, or with `wait` await it. Call it before theta changes. Raises
        ConfigError if it was awaited and the disk failed."""
        task, self._task = self._task, None
        if task is None:
            return
        if task.is_alive():
            if wait:
                logger.warning(
                    "waiting for the snapshot of theta: this disk has not finished one in many rounds, and "
                    "the log of payloads must not grow without limit. A faster disk keeps this node in time"
                )
            else:
                logger.warning(
                    "gave up the snapshot of theta: {seconds:.0f} s were not enough for it. The earlier one stays, "
                    "so a restart replays more rounds; the next round tries again",
                    seconds=self._time.now() - self._began,
                )
        self._wanted = wait
        task.join()
        if wait:
            self._require_whole()

    def finish(self) -> None:
        """Await the current write. Raises ConfigError if the disk failed."""
        task, self._task = self._task, None
        if task is not None:
            task.join()
        self._require_whole()

    def _require_whole(self) -> None:
        if self._fault is not None:
            raise (DiskFull if files.is_full(self._fault) else ConfigError)(
                f"no snapshot of theta can be written to {self.folder} ({self._fault}): free disk space and "
                "start again; nothing is lost"
            )

    def drop(self) -> None:
        """Discard the current snapshot: theta is replaced."""
        self.hold()
        self._written = None

    def take(self) -> Snapshot | None:
        """Return the snapshot that is complete by now, its files in `folder`; once."""
        if self._written is None or self._of is None:
            return None
        digest, self._written = self._written, None
        for _, path in checkpoint.blobs(self.aside, digest):
            os.replace(path, self.folder / path.name)
        files.sync(self.folder)
        return Snapshot(*self._of, digest)

    def _write(self, state: TensorState) -> None:
        try:
            rmtree(self.aside, ignore_errors=True)
            self.aside.mkdir(mode=0o700)
            self._written = checkpoint.save(self.aside, state, stopped=lambda: not self._wanted)
        except GivenUp:
            return
        except OSError as fault:
            self._fault = fault
            logger.warning(
                "could not save theta: {fault}. The earlier snapshot stays, and the next round tries again",
                fault=str(fault),
            )
