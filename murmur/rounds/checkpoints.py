"""A node's own checkpoints: published in the background, so that no upload delays a round (docs/protocol.md section 8).
Their readers: murmur/node/sync/checkpoints.py, murmur/node/sync/catchup.py."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from shutil import copyfile, rmtree
from typing import Protocol

from loguru import logger

from murmur.node.node import Node
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Snapshot
from murmur.node.sync.checkpoints import (
    CHECKPOINTS_KEPT,
    DOCUMENT_MAX_BYTES,
    FETCH_SECONDS,
    STATES_TOLD,
    Checkpoint,
    Shown,
    encode_shown,
    parse_shown,
    state_bytes,
)
from murmur.protocol import keys
from murmur.protocol.errors import (
    ChainError,
    CheckpointCorrupt,
    InvalidMessage,
    MurmurError,
    ObjectMissing,
    StorageError,
)
from murmur.protocol.ports import Signer, Task, Time, Verify
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from storage.exchange import publish
from storage.realtime import seconds_until
from storage.s3 import RangedBucket

States = tuple[tuple[Digest, Digest], ...]


class Shelf(Protocol):
    """Where and when one node publishes its checkpoints."""

    state: NodeState
    run: Digest
    bucket: RangedBucket
    document_key: str
    """Key in `bucket` of the document that lists our checkpoints."""
    signer: Signer
    verify: Verify
    time: Time
    kept: int
    """Number of checkpoints kept; each is as large as the model."""

    def files(self, round: int) -> RangedBucket:
        """Return the place of the files of the round's checkpoint, as blobs."""
        ...

    def may_show(self) -> bool:
        """Whether the run's state is ours: otherwise no node should start from it."""
        ...

    def is_due(self, snapshot: Snapshot) -> bool:
        """Whether it is our turn to publish this one. Raises ChainError, StorageError."""
        ...

    def left_over(self, loose: Collection[Digest]) -> Collection[Digest]:
        """Return the files that our document calls loose after a start and that it has to go on naming."""
        ...

    def clear(self, published: Shown) -> None:
        """Delete the files that are not needed any more, now that this document is published. It calls those loose that
        our earlier one named and it does not. Raises StorageError."""
        ...

    def document_seconds(self) -> float:
        """Time-out of a small object."""
        ...

    def state_seconds(self) -> float:
        """Time-out of a whole checkpoint."""
        ...


class ValidatorShelf:
    """A validator's own bucket. All validators have the same snapshots. Each waits another part of the interval, so
    that they do not all upload at once."""

    kept = CHECKPOINTS_KEPT

    def __init__(self, node: Node) -> None:
        self._node = node
        self.state, self.run, self.time = node.state, node.run.id, node.time
        self.bucket, self.signer, self.verify = node.ports.bucket, node.ports.signer, node.ports.verify
        self.document_key = keys.checkpoints(node.run.id)

    def files(self, round: int) -> RangedBucket:
        return self.bucket

    def may_show(self) -> bool:
        return self._node.at_tip

    def is_due(self, snapshot: Snapshot) -> bool:
        validators = sorted(self._node.sources().validators())
        place = validators.index(self._node.me) if self._node.me in validators else 0
        every = self._node.run.first.checkpoint_rounds
        return self.state.saved.round >= snapshot.round + place * every // max(1, len(validators))

    def left_over(self, loose: Collection[Digest]) -> Collection[Digest]:
        return loose  # so that we delete them later: no other node does

    def clear(self, published: Shown) -> None:
        for file in published.loose:
            self.bucket.delete(keys.blob(file), timeout_seconds=FETCH_SECONDS)

    def document_seconds(self) -> float:
        return self._node.transfer_seconds(1)

    def state_seconds(self) -> float:
        return self.document_seconds() + 4 * state_bytes(self._node) * 8e-6 / self._node.run.first.clock.upload_mbps


class Checkpoints:
    """The published checkpoints of one node. All calls of the bucket run in a thread of their own, one task at a time.
    A failure is logged, and retried in the next round.

    A process may be killed at any line. So the document is written last. Before a file is uploaded, the document names
    it as loose: a leftover is deleted some day, and the members of a cluster see who is publishing.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.shown: Shown | None = None
        """The document in our bucket; None until it has been read back."""
        self.folder = shelf.state.store.folder / "checkpoint"
        """Links to the files being published: the state moves on meanwhile, and deletes its own."""
        self._pinned: Checkpoint | None = None
        self._states: States = ()
        """(link, state) of our rounds since our start."""
        self._task: Task | None = None
        self._failures = 0
        """Consecutive failed tries."""

    @property
    def published(self) -> int:
        """The round of our newest checkpoint; 0 without one."""
        return self.shown.newest if self.shown is not None else 0

    def look(self) -> None:
        """Start the next task if one is due, at the start of a round; returns at once. Raises ConfigError."""
        node_state = self.shelf.state
        node_state.take_snapshot()
        if not self.shelf.may_show():
            return
        snapshot = node_state.saved.consensus.snapshot
        self._states = _latest([*self._states, (snapshot.link, snapshot.state)])
        if self._task is not None and self._task.is_alive():
            return
        try:
            work = self._work()
        except (ChainError, StorageError, CheckpointCorrupt, OSError) as fault:
            logger.warning("cannot make a checkpoint now: {fault}", fault=str(fault))
            return
        if work is not None:
            self._task = self.shelf.time.start(partial(self._in_background, work), "checkpoint")

    def settle(self, seconds: float) -> None:
        """Wait for the present task, at most so long."""
        if self._task is not None:
            self._task.join(seconds)

    def _work(self) -> Callable[[], None] | None:
        """Return the next task, None if there is none."""
        if self.shown is None:
            return self._read_back
        if self._due():
            self._pin()
            return self._publish
        states = _latest([*self.shown.states, *self._states])
        if self.shown.states != states:
            return partial(self._show, replace(self.shown, states=states))
        return None

    def _due(self) -> bool:
        """Whether our newest snapshot is to be published."""
        snapshot = self.shelf.state.saved.consensus.snapshot
        if snapshot.state.hex() == self.shelf.state.first.genesis_checkpoint or snapshot.round <= self.published:
            return False  # it is theta_0, or we have published it
        return self.shelf.is_due(snapshot)

    def _pin(self) -> None:
        """Keep the files of our snapshot until they are published. Pinned files of an interrupted upload are kept while
        their snapshot is the newest: the files already uploaded need not be sent again."""
        node_state, snapshot = self.shelf.state, self.shelf.state.saved.consensus.snapshot
        if self._pinned is not None and (self._pinned.link, self._pinned.state) == (snapshot.link, snapshot.state):
            return
        rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        files = checkpoint.blobs(node_state.store.snapshot, snapshot.state)
        for digest, path in files:
            try:
                os.link(path, self.folder / digest.hex())
            except OSError:  # a disk without links
                copyfile(path, self.folder / digest.hex())
        self._pinned = Checkpoint(snapshot.round, snapshot.link, snapshot.state, tuple(digest for digest, _ in files))

    # --- background tasks --------------------------------------------------------------------------------------

    def _in_background(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (MurmurError, OSError) as fault:
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, .. failure
                logger.warning(
                    "our checkpoints are not up to date, the newest is of round {round}: {fault}; tried "
                    "{times}, and again in every round",
                    round=self.published,
                    fault=str(fault),
                    times=f"{self._failures} times" if self._failures > 1 else "once",
                )
        else:
            if self._failures:
                logger.info("our checkpoints are published again, after {count} tries", count=self._failures)
            self._failures = 0

    def _read_back(self) -> None:
        """Read the document that we published before this start."""
        shelf = self.shelf
        try:
            raw = shelf.bucket.get(shelf.document_key, max_bytes=DOCUMENT_MAX_BYTES, timeout_seconds=FETCH_SECONDS)
            shown = parse_shown(raw, shelf.run, shelf.signer.peer, shelf.verify)
            self.shown = replace(shown, loose=tuple(shelf.left_over(shown.loose)))
        except (ObjectMissing, InvalidMessage):
            self.shown = Shown()

    def _publish(self) -> None:
        """Publish the pinned state: its files, unless they are there, then the document that names them. Files that no
        checkpoint names any more are deleted: every checkpoint is as large as the model."""
        pinned, shown = self._pinned, self.shown
        assert pinned is not None
        assert shown is not None
        time, bucket = self.shelf.time, self.shelf.files(pinned.round)
        began = time.now()
        until = began + self.shelf.state_seconds()
        named = {file for entry in shown.checkpoints for file in entry.files}
        loose = {*shown.loose, *pinned.files} - named
        self._show(replace(shown, loose=tuple(sorted(loose))))
        # The manifest first: a listing shows the round before a large upload begins.
        for file in sorted(pinned.files, key=lambda file: file != pinned.state):
            path = self.folder / file.hex()
            facts = bucket.head(keys.blob(file), timeout_seconds=seconds_until(until, time))
            if facts is None or facts.size_bytes != path.stat().st_size:
                publish(bucket, keys.blob(file), path, timeout_seconds=seconds_until(until, time), time=time)
        older = [entry for entry in shown.checkpoints if (entry.link, entry.state) != (pinned.link, pinned.state)]
        kept = (pinned, *older)[: self.shelf.kept]
        loose = (loose | named) - {file for entry in kept for file in entry.files}
        new = Shown(kept, _latest([*shown.states, *self._states]), tuple(sorted(loose)))
        self._show(new)
        logger.info(
            "the checkpoint of round {round} is published: {count} files in {seconds} s",
            round=pinned.round,
            count=len(pinned.files),
            seconds=int(time.now() - began),
        )
        self._pinned = None
        rmtree(self.folder, ignore_errors=True)
        self.shelf.clear(new)
        self.shown = replace(new, loose=())

    def _show(self, shown: Shown) -> None:
        shelf = self.shelf
        document, seconds = encode_shown(shown, shelf.run, shelf.signer), shelf.document_seconds()
        publish(shelf.bucket, shelf.document_key, document, timeout_seconds=seconds, time=shelf.time)
        self.shown = shown


def _latest(states: Iterable[tuple[Digest, Digest]]) -> States:
    """Return the last states, each link once, with its latest state."""
    found: dict[Digest, Digest] = {}
    for link, state in states:
        found.pop(link, None)
        found[link] = state
    return tuple(found.items())[-STATES_TOLD:]
