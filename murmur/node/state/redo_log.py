"""The redo log's payloads: sealed objects applied since the last snapshot of theta, as files by their envelope's digest
(docs/protocol.md section 8).

They are downloads that got another name. The disk is not trusted: a replay opens exactly the bytes that the chain
pinned, or raises Lost. Lost payloads can be fetched from other nodes.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from loguru import logger

from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.opening import Opened, open_payload
from murmur.node.fetch.payloads import downloads
from murmur.node.state.saved import Payload, Step
from murmur.protocol.errors import InvalidSubmission
from murmur.protocol.layout import Layout
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, PeerId
from murmur.training.checkpoint import Damaged
from murmur.training.memory import RECENT_ROUNDS
from sparseloco.update import Update
from storage.exchange import cached
from storage.resume import mapped
from storage.seal import matches


class Lost(Damaged):
    """The payload at `path` is missing or damaged."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is lost or damaged")
        self.path = path


class RedoLog:
    """The files in `folder`, of the run `run`."""

    def __init__(self, folder: Path, run: Digest, layout: Layout, trace_bytes: int) -> None:
        self.folder, self._run, self._layout, self._trace_bytes = folder, run, layout, trace_bytes
        self._given = folder.with_name("given")
        self.recent: dict[int, tuple[Payload, ...]] = {}
        """Payloads applied in the newest rounds since this process began."""

    def keep(self, cache: Path, round: int, opened: Iterable[Opened]) -> tuple[Payload, ...]:
        """Keep payloads that are about to be applied; the cache also has them until the step is saved. If the disk
        fails, a restart has to download them again."""
        payloads = tuple(Payload(each.peer, each.envelope, each.key) for each in opened)
        for payload in payloads:
            if payload.key is not None and not self._keep(cache, round, payload):
                logger.warning(
                    "round {round}: cannot keep a payload on this disk; a restart may have to fetch it again",
                    round=round,
                )
        self._keep_recent(round, payloads)
        return payloads

    def _keep_recent(self, round: int, payloads: tuple[Payload, ...]) -> None:
        """Link the round's payloads under another name, which snapshots do not delete. A payload applied just before a
        snapshot leaves the log at once, and nodes that lack it have had no time to ask for it."""
        first, folder = round - RECENT_ROUNDS + 1, self._given / f"{round:08d}"
        self.recent = {one: kept for one, kept in self.recent.items() if one >= first} | {round: payloads}
        with suppress(OSError):  # this disk is full, or has no links: other nodes have them too
            folder.mkdir(parents=True, exist_ok=True)
            for old in self._given.iterdir():
                if old.name < f"{first:08d}":
                    rmtree(old, ignore_errors=True)
            for payload in payloads:
                if payload.key is not None:
                    (folder / payload.envelope.hex()).unlink(missing_ok=True)
                    os.link(self._path(payload), folder / payload.envelope.hex())

    def find(self, cache: Path, round: int, peer: PeerId, envelope: Digest) -> Path | None:
        """Return the intact file of the sealed object that this digest pins, applied or still in the cache; None if
        this disk does not have it. Thread-safe: files are only renamed and deleted as wholes."""
        applied = (folder / envelope.hex() for folder in (self.folder, self._given / f"{round:08d}"))
        for path in (*applied, *self._downloads(cache, round, peer)):
            data = mapped(path)
            if data is not None and matches(envelope)(data):
                return path
        return None

    def _downloads(self, cache: Path, round: int, peer: PeerId) -> list[Path]:
        return [cached(cache, peer, name) for name in downloads(self._run, round)(peer)]

    def _keep(self, cache: Path, round: int, payload: Payload) -> bool:
        for path in self._downloads(cache, round, payload.peer):
            with suppress(OSError):
                if _envelope_digest(path) == payload.envelope:
                    _link(path, self._path(payload))
                    return True
        return self._path(payload).exists()

    def updates(self, step: Step, threads: int, time: Time) -> list[Update | None]:
        """Open the updates applied in this step, in `threads` threads. Raises Lost."""
        count = len(step.payloads)

        def open_one(at: int) -> Update | None:
            return self._update(step.round, step.payloads[at], self._layout.part(at, count))

        return parallel_map(open_one, range(count), threads, time)

    def _update(self, round: int, payload: Payload, layout: Layout) -> Update | None:
        if payload.key is None:
            return None
        data = mapped(self._path(payload))
        if data is None or not matches(payload.envelope)(data):
            raise Lost(self._path(payload))
        try:
            return open_payload(layout, payload.peer, round, payload.key, data, self._trace_bytes)
        except InvalidSubmission:
            raise Lost(self._path(payload)) from None

    def _path(self, payload: Payload) -> Path:
        return self.folder / payload.envelope.hex()


def _link(path: Path, to: Path) -> None:
    """Link the file as a second name: a process killed before the step is saved still finds the first. If the disk has
    no links, or has a file there already (it may be damaged), replace it."""
    try:
        os.link(path, to)
    except OSError:
        os.replace(path, to)


def _envelope_digest(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest(sha256(file.read(ENVELOPE_BYTES)).digest())
