"""An upload that starts before its object is whole: finished parts travel while the rest is being made or saved.

The first part waits for `finish`, and so does the completion; without both nobody sees any of the rest. A miner's
envelope stands in the first part, so nothing is published before it is saved (docs/protocol.md section 2). What a dead
process left behind is not resumed but aborted at the next start (Bucket.abort_unfinished), and the saved bytes go up
whole. May not decide what to do when it fails, but leaves the time for it: the caller still has the bytes.

A store that takes parts in order only holds on to every other part until it has the first, which here never comes. So
a part of one byte asks, before any real one travels.
"""

from collections import deque
from contextlib import suppress
from weakref import WeakKeyDictionary

from protocol.errors import AccessDenied, ObjectMissing, StorageError
from protocol.ports import Bucket, Multipart, Time
from storage.exchange import persist
from storage.realtime import REAL, seconds_until
from storage.s3 import PART_BYTES, UPLOAD_THREADS
from storage.transport import READ_SECONDS

ABORT_SECONDS = 5.0
_TRIES = 5
"""For each call, the bucket's own repetitions apart: about a minute of an outage. Then the caller should have time left
to do it another way."""
_FINAL = (AccessDenied, ObjectMissing)
"""Trying again does not help: refused, or the server has forgotten this upload."""
_PROBE_SECONDS = 10.0
"""For one byte, to a server that has just answered."""
_STILL_SECONDS = READ_SECONDS
"""A request that hangs is noticed, and asked again, only after that."""

_any_order: "WeakKeyDictionary[Bucket, bool]" = WeakKeyDictionary()
"""What the first upload has found out about each bucket."""


def goes_ahead(bucket: Bucket, num_bytes: int) -> bool:
    """Whether an object of this size has anything that could travel before its first part, and the store would take it,
    so far as is known."""
    return num_bytes > PART_BYTES and _any_order.get(bucket, True)


class Upload:
    """One object on its way under `key`, in parts of 16 MiB, on a few daemon threads.

    `data` is the buffer that the object is made in. It belongs to the upload until that has ended; only bytes that were
    not declared `ready` may change, and those of the first part until `finish`.
    """

    def __init__(self, bucket: Bucket, key: str, data: bytearray, *, timeout_seconds: float, time: Time = REAL) -> None:
        self._bucket, self._key, self._data, self._time = bucket, key, data, time
        self._until = time.now() + timeout_seconds
        self._num_parts = -(-len(data) // PART_BYTES)
        self._queue: deque[int] = deque()
        self._queued = 1
        """Parts up to this number are queued or up; the first is an exception until `finish`."""
        self._open = self._num_parts
        self._multipart: Multipart | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._changed = time.condition()
        time.start(self._begin, "upload-0")

    def ready(self, end: int) -> None:
        """The bytes before `end` are final (but for the first part's). Returns at once."""
        last = self._num_parts if end == len(self._data) else end // PART_BYTES
        with self._changed:
            self._queue.extend(range(self._queued + 1, last + 1))
            self._queued = max(self._queued, last)
            self._changed.notify_all()

    def finish(self, *, timeout_seconds: float) -> None:
        """Everything is final: send what is left, the first part last, and make the object visible.

        Raises StorageError when that did not succeed; the upload is given up then. Half of the time that was left when
        it last moved is then still there for another way, but for a link so slow that no part ends within 30 s.
        """
        until = self._time.now() + timeout_seconds
        self.ready(len(self._data))
        try:
            multipart = self._all_sent(until)
            multipart.complete(timeout_seconds=seconds_until(until, self._time) / 2)
        except BaseException:
            self.abandon()
            raise
        with self._changed:
            self._closed = True

    def abandon(self) -> None:
        """End the upload. Without a completion nothing of it is ever seen; its parts are deleted if the server answers,
        else at the next start."""
        with self._changed:
            ended, self._closed = self._closed, True
            self._changed.notify_all()
        if not ended:
            self._abort()

    def _abort(self) -> None:
        if self._multipart is not None:
            with suppress(StorageError):
                self._multipart.abort(timeout_seconds=ABORT_SECONDS)

    def _all_sent(self, until: float) -> Multipart:
        """Send the first part too and wait for all, as long as they move."""
        with self._changed:
            self._queue.append(1)
            self._changed.notify_all()
            num_open = self._open + 1
            while self._open and self._failure is None:
                if self._open < num_open:
                    num_open, moved = self._open, self._time.now()
                patience = max((until - moved) / 2, _STILL_SECONDS)
                if (left := seconds_until(min(moved + patience, until), self._time)) <= 0:
                    break
                self._changed.wait(left)
            if self._failure is not None:
                raise self._failure
            if self._open or self._multipart is None:
                raise StorageError(f"upload: {self._open} of {self._num_parts} parts were not uploaded in time")
            return self._multipart

    # --- threads -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        try:
            multipart = persist(
                lambda left: self._bucket.begin(self._key, timeout_seconds=left),
                self._until,
                final=_FINAL,
                tries=_TRIES,
                time=self._time,
            )
            with self._changed:
                self._multipart = multipart
                closed = self._closed
            if closed:
                return self._abort()  # abandoned meanwhile
            if self._num_parts > 1 and not self._takes_any_order(multipart):
                raise StorageError("upload: the store takes no part before the one in front of it")
        except Exception as error:  # noqa: BLE001 - raised where the upload is finished
            return self._fail(error)
        for number in range(1, UPLOAD_THREADS):
            self._time.start(lambda: self._work(multipart), f"upload-{number}")
        self._work(multipart)

    def _takes_any_order(self, multipart: Multipart) -> bool:
        """Whether the store answers to a second part without a first, so far as can be told. What it is sent for that
        is replaced by the real one."""
        if self._bucket not in _any_order:
            began, left = self._time.now(), seconds_until(self._until, self._time)
            patience = min(_PROBE_SECONDS, left / 4)
            try:
                multipart.put(2, b"?", timeout_seconds=patience)
                _any_order[self._bucket] = True
            except StorageError:
                # What fails at once fails for another reason, which the parts themselves will meet.
                if self._time.now() - began >= patience:
                    _any_order[self._bucket] = False
        return _any_order.get(self._bucket, True)

    def _work(self, multipart: Multipart) -> None:
        try:
            while (number := self._next()) is not None:
                self._send(multipart, number)
                with self._changed:
                    self._open -= 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised where the upload is finished
            self._fail(error)

    def _next(self) -> int | None:
        """The next part that is ready; None when there is nothing more to do. Raises StorageError at the deadline."""
        with self._changed:
            while not self._queue and self._goes_on and (left := seconds_until(self._until, self._time)) > 0:
                self._changed.wait(left)
            if not self._goes_on:
                return None
            if not self._queue:
                raise StorageError("upload: out of time")
            return self._queue.popleft()

    @property
    def _goes_on(self) -> bool:
        return self._open > 0 and self._failure is None and not self._closed

    def _send(self, multipart: Multipart, number: int) -> None:
        first = (number - 1) * PART_BYTES
        data = memoryview(self._data)[first : first + PART_BYTES]
        persist(
            lambda left: multipart.put(number, data, timeout_seconds=left),
            self._until,
            final=_FINAL,
            tries=_TRIES,
            time=self._time,
        )

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
