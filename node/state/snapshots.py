"""Snapshots of theta and the outer state, written beside the rounds from the memory in which they lie.

theta changes in outer steps only. A snapshot that is not whole when the next one comes is given up, or, where the redo
log must not grow further, waited for: a mixture of two states never gets a name (docs/protocol.md section 8).
"""

import os
from pathlib import Path
from shutil import rmtree

from loguru import logger

from node.state.saved import Snapshot
from protocol.errors import ConfigError
from protocol.ports import Task, Time
from protocol.types import Digest
from training import checkpoint
from training.checkpoint import GivenUp, Saved


class Snapshots:
    """The writer of one node's snapshots. Its methods belong to one thread; the writing has its own.

    Written in `aside`, which is emptied with every beginning, and moved to `folder` by `take`: whatever lies there
    unnamed is swept by the next commit.
    """

    def __init__(self, folder: Path, aside: Path, time: Time) -> None:
        self.folder, self.aside, self._time = folder, aside, time
        self._task: Task | None = None
        self._wanted = False
        self._of: tuple[int, Digest] | None = None
        self._written: Digest | None = None
        self._fault: OSError | None = None

    def begin(self, round: int, link: Digest, state: Saved) -> None:
        """Begin to write the state at the start of `round`; returns at once. Nobody may change its tensors before
        `hold` has returned."""
        self.hold()
        self._of, self._written, self._fault, self._wanted = (round, link), None, None, True
        self._task = self._time.start(lambda: self._write(state), "snapshot")

    def hold(self, *, wait: bool = False) -> None:
        """Before theta changes: what is still being written is given up, or, with `wait`, waited for. Raises
        ConfigError when that was waited for and the disk did not take it."""
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
                    "gave up the snapshot of theta: this disk needs more than a round for it. The earlier one "
                    "stays, so a restart replays more rounds; the next round tries again"
                )
        self._wanted = wait
        task.join()
        if wait:
            self._require_whole()

    def finish(self) -> None:
        """Wait until what was begun is on the disk. Raises ConfigError when the disk did not take it."""
        task, self._task = self._task, None
        if task is not None:
            task.join()
        self._require_whole()

    def _require_whole(self) -> None:
        if self._fault is not None:
            raise ConfigError(
                f"no snapshot of theta can be written to {self.folder} ({self._fault}): free disk space and "
                "start again; nothing is lost"
            )

    def drop(self) -> None:
        """What was begun is of no use: theta is replaced."""
        self.hold()
        self._written = None

    def take(self) -> Snapshot | None:
        """The snapshot that is whole by now, its files in `folder`; once."""
        if self._written is None or self._of is None:
            return None
        digest, self._written = self._written, None
        for _, path in checkpoint.blobs(self.aside, digest):
            os.replace(path, self.folder / path.name)
        checkpoint.sync(self.folder)
        return Snapshot(*self._of, digest)

    def _write(self, state: Saved) -> None:
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
