"""The work of one round, on a chain or in a cluster: text, inner steps, an update, its sealed object and its upload."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import isfinite
from typing import Any

from loguru import logger

from murmur.data.shards import Shards
from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.opening import open_threads
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import SealedRound
from murmur.node.telemetry.events import Phase, round_seconds
from murmur.protocol import keys
from murmur.protocol.errors import MurmurError, StorageError
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.ports import Signer, Task, Time
from murmur.protocol.spec import InnerSpec
from murmur.protocol.types import Digest, Page
from murmur.training.inner import InnerReport, Stopped
from murmur.training.loader import sequences
from murmur.training.meter import Reading
from murmur.training.recorder import TraceOf
from sparseloco import wire
from sparseloco.floats import NonFinite
from sparseloco.trace import Trace
from sparseloco.trace import encode as encode_trace
from sparseloco.update import Update
from storage.exchange import publish
from storage.s3 import RangedBucket
from storage.seal import Sealing
from storage.upload import Upload, goes_ahead

LOOK_SECONDS = 5.0
PayloadKey = Callable[[int, bytes], str]
"""Returns the bucket's key for the round's object that this sealing key opens."""
SecondsLeft = Callable[[], float]
"""Seconds until a transfer could not count any more. May raise if the chain or the store does not answer."""


class Diverged(MurmurError):
    """Inner training left finite numbers: nothing can be sent this round; the next one starts from theta again."""


@dataclass
class _Ahead:
    """An upload that was started before its object was saved. `object`: its saved file, None until it is saved."""

    upload: Upload
    phase: Phase
    object: Digest | None = None


class RoundWork:
    """A node's training, sealing and sending. `bucket`: where other nodes look for its objects, under `payload_key`;
    `signer`: its identity there."""

    def __init__(
        self,
        state: NodeState,
        shards: Shards,
        bucket: RangedBucket,
        signer: Signer,
        time: Time,
        payload_key: PayloadKey | None = None,
    ) -> None:
        """payload_key: None in a bucket of our own, where a round has one object."""
        self.state, self.shards, self.bucket, self.signer, self.time = state, shards, bucket, signer, time
        self._key = payload_key or (lambda round, key: keys.payload(state.run_id, round))
        self.claims: dict[str, Any] = {}
        """Measurements of the last training."""
        self.steps, self.seconds = 0, 0.0
        self.trace: Trace | None = None
        """Of the last training, in a run that verifies work."""
        self._ahead: _Ahead | None = None
        """The upload of our sealed object, started before it was saved."""
        self._published: Digest | None = None
        """The saved file of the sealed object that we published last."""
        self._fetching: Task | None = None
        """Fetches the text of the next round."""

    # --- text and training -------------------------------------------------------------------------------------

    def fetch_ahead(self, pages: Callable[[], Sequence[Page]]) -> None:
        """Start to fetch the text of pages in the background, before they are trained on."""
        if self._fetching is not None and self._fetching.is_alive():
            return  # after an interrupted round
        if self.shards.train.is_fetched:
            self._fetching = self.time.start(partial(self._fetch, pages()), "data")

    def _fetch(self, pages: Sequence[Page]) -> None:
        try:
            self.shards.train.hold(pages)
        except MurmurError as fault:
            logger.warning("could not fetch text for the next round yet: {fault}; trying again then", fault=str(fault))

    def hold(self, pages: Sequence[Page]) -> None:
        """Wait for the text of these pages; fetch the part that `fetch_ahead` has not."""
        if not self.shards.train.is_fetched:
            return
        with self.state.timeline.begin("data"):
            if self._fetching is not None:
                self._fetching.join()
                self._fetching = None
            self.shards.train.hold(pages)

    def training(
        self, round: int, pages: Sequence[Page], inner: InnerSpec, trace_of: TraceOf | None = None
    ) -> "Training":
        """Return the round's inner steps on these pages, whose text is fetched first. trace_of: None in a run that does
        not verify work."""
        self.hold(pages)
        return Training(self, round, pages, inner, trace_of)

    def compress(self) -> Update:
        """Compress with error feedback, Top-k and 2 bits into the update that we send; the error feedback keeps the
        rest."""
        self.state.own.hold()
        try:
            with self.state.timeline.begin("compress"):
                return self.state.replica.compress()
        except NonFinite as fault:
            raise Diverged(f"training has diverged ({fault})") from None

    # --- sealing and sending -----------------------------------------------------------------------------------

    def seal(self, round: int, update: Update, left: SecondsLeft) -> SealedRound:
        """Encrypt, sign and save object and key: the one commit point of the round. A restart publishes exactly these
        bytes.

        Sealed sections are uploaded at once, except for the part with the envelope and the completion. Those are left
        to `publish`, so nothing becomes visible before it is saved. The inner state is written later, in a thread of
        its own.
        """
        state = self.state
        with state.timeline.begin("seal"):
            shown = b"" if self.trace is None else encode_trace(self.trace, state.first.trace)
            plaintext = memoryview(wire.encode(state.replica.digest(), update, shown))
            sealing = Sealing(plaintext, run=state.run_id, round=round, signer=self.signer)
            upload = self._begin_upload(self._key(round, sealing.key), sealing.object, left)

            def add(section: int) -> None:
                end = sealing.add(section)
                if upload is not None:
                    upload.ready(end)

            parallel_map(add, sealing.sections, open_threads(state.first), self.time)
            sealing.finish()
        with state.timeline.begin("save"):
            object, loss = state.store.write(sealing.object), self.claims.get("loss")
            saved = SealedRound(round, object, sealing.key, self.steps, self.seconds, loss=loss)
            state.save_sealed(saved)
        if self._ahead is not None:
            self._ahead.object = saved.object
        return saved

    def publish(self, round: int, sealed: SealedRound, left: SecondsLeft) -> bool:
        """Make the sealed bytes visible while that counts; return whether it still did. Finish the upload that was
        started; if that is not of these bytes or has failed, upload them whole. Once they are visible, another call
        costs nothing."""
        if self._published == sealed.object:
            return True
        if self._ahead is not None and self._ahead.object != sealed.object:
            self.abandon_upload()
        deadline = left()
        if deadline <= 0:
            self.abandon_upload()
            return False  # it was visible before we committed, or it is worthless
        phase = self._ahead.phase if self._ahead is not None else self.state.timeline.begin("upload")
        with phase:
            if not self._finish_upload(round, deadline):
                data = self.state.store.read(sealed.object)
                key, deadline = self._key(round, sealed.key), max(1.0, left())
                publish(self.bucket, key, data, timeout_seconds=deadline, time=self.time)
        self._published = sealed.object
        self.state.events.emit(
            "published",
            round,
            payload_bytes=self.state.store.path(sealed.object).stat().st_size,
            seconds={"upload": round_seconds(phase.seconds)},
        )
        return True

    def is_published(self, round: int, sealed: SealedRound) -> bool:
        """Whether the bucket has the sealed object: of an upload that failed, only the answer may be lost. The envelope
        pins the object."""
        key = self._key(round, sealed.key)
        try:
            facts = self.bucket.head(key, timeout_seconds=LOOK_SECONDS)
            if facts is None or facts.size_bytes != self.state.store.path(sealed.object).stat().st_size:
                return False
            envelope = self.bucket.get_range(
                key, first=0, num_bytes=ENVELOPE_BYTES, etag=facts.etag, timeout_seconds=LOOK_SECONDS
            )
        except (StorageError, OSError):
            return False
        return sha256(envelope).digest() == self.envelope_digest(sealed)

    def envelope_digest(self, sealed: SealedRound) -> Digest:
        """Return the sha256 of the sealed object's envelope, which pins the object."""
        return Digest(sha256(self.state.store.read_head(sealed.object, ENVELOPE_BYTES)).digest())

    def abandon_upload(self) -> None:
        """Abandon the early upload: it is not of the object that we publish, or comes too late."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.upload.abandon()
            ahead.phase.end()

    def _begin_upload(self, key: str, data: bytearray, left: SecondsLeft) -> Upload | None:
        """Start to upload an object while it is sealed; None if that saves nothing or is impossible."""
        self.abandon_upload()
        try:
            deadline = left()
        except MurmurError:
            return None  # not a reason to lose work that is not saved yet
        if not goes_ahead(self.bucket, len(data)) or deadline <= 0:
            return None
        upload = Upload(self.bucket, key, data, timeout_seconds=deadline, time=self.time)
        self._ahead = _Ahead(upload, self.state.timeline.begin("upload"))
        return upload

    def _finish_upload(self, round: int, deadline: float) -> bool:
        """Whether the early upload is now visible, whole."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return False
        try:
            ahead.upload.finish(timeout_seconds=deadline)
        except StorageError as fault:
            logger.warning(
                "round {round}: the upload that was begun early failed ({fault}); starting it again",
                round=round,
                fault=str(fault),
            )
            return False
        return True


class Training:
    """The inner steps of one round; they may be interrupted and continued."""

    def __init__(
        self, work: RoundWork, round: int, pages: Sequence[Page], inner: InnerSpec, trace_of: TraceOf | None
    ) -> None:
        self._work, self._inner, self.round, self._trace_of = work, inner, round, trace_of
        self.text = sequences(work.shards.train, pages, work.state.first.model.context)
        self._meter = work.state.replica.meter(inner, self._show)
        self.report = InnerReport((), 0, 0)
        self.seconds = 0.0

    def go_on(self, stopped: Stopped) -> int:
        """Run inner steps until `stopped` returns true, which is called after each step, or until all are done. Return
        how many steps are done."""
        state = self._work.state
        with state.timeline.begin("compute") as watch:
            self.report = state.replica.inner_round(
                self.text,
                inner=self._inner,
                on_step=self._meter,
                stopped=stopped,
                resume=bool(self.report.steps),
                trace_of=self._trace_of,
            )
        self.seconds += watch.seconds
        return self.report.steps

    def end(self) -> dict[str, Any]:
        """Emit the measurements and return them; they are `RoundWork.claims` from now on."""
        loss = self.report.mean_loss
        self._work.steps, self._work.seconds = self.report.steps, self.seconds
        self._work.trace = None if self._trace_of is None else self._work.state.replica.trace()
        self._work.claims = {
            "loss": loss if isfinite(loss) else None,
            "tokens": self.report.num_tokens,
            "seconds": {"compute": round_seconds(self.seconds)},
        }
        self._work.state.events.emit("trained", self.round, **self._work.claims)
        return self._work.claims

    def _show(self, reading: Reading) -> None:
        """Log the progress of long rounds; the last reading is in the round's line too."""
        last = reading.step == self._inner.steps - 1
        logger.log("DEBUG" if last else "INFO", "{reading}", reading=str(reading))
