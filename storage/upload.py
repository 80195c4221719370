"""A multipart upload that starts before its object is complete: finished parts are sent while the rest is being made or
saved.

The first part and the completion wait for `finish`; without both, no part becomes visible. A miner's envelope is in the
first part, so nothing is published before it is saved (docs/protocol.md section 2). An upload of a dead process is not
resumed: the next start aborts it (Bucket.abort_unfinished) and uploads the saved bytes whole. May not decide how to
handle a failure, but leaves time for it: the caller still has the bytes.

A store that takes parts only in order stalls on every other part until it has the first, which comes last here. So a
probe part of one byte tests this before any real part is sent.
"""

from collections import deque
from contextlib import suppress
from weakref import WeakKeyDictionary

from murmur.protocol.errors import AccessDenied, ObjectMissing, StorageError
from murmur.protocol.ports import Bucket, Multipart, Time
from storage.deadline import READ_SECONDS
from storage.exchange import persist
from storage.realtime import REAL, seconds_until
from storage.s3 import ABORT_SECONDS, PART_BYTES, UPLOAD_THREADS

_TRIES = 5
"""Tries of each call, besides the bucket's own retries: about a minute of an outage. The caller should then have time
left for another way."""
_FINAL = (AccessDenied, ObjectMissing)
"""Errors for which a retry is useless: access refused, or the server has forgotten this upload."""
_PROBE_SECONDS = 10.0
"""Time-out of the one-byte probe, to a server that has just answered."""
_STILL_SECONDS = READ_SECONDS
"""A request that hangs is noticed and retried only after this time."""

_any_order: "WeakKeyDictionary[Bucket, bool]" = WeakKeyDictionary()
"""By bucket, whether it takes parts in any order, as its first upload found out."""


def goes_ahead(bucket: Bucket, num_bytes: int) -> bool:
    """Whether an object of this size has parts that could be sent before the first one, and the store takes them as far
    as is known."""
    return num_bytes > PART_BYTES and _any_order.get(bucket, True)


class Upload:
    """The upload of one object under `key`, in parts of 16 MiB, on a few daemon threads.

    `data` is the buffer that the object is built in. It belongs to the upload until that has ended. Only bytes that
    were not declared `ready` may change, and those of the first part until `finish`.
    """

    def __init__(self, bucket: Bucket, key: str, data: bytearray, *, timeout_seconds: float, time: Time = REAL) -> None:
        self._bucket, self._key, self._data, self._time = bucket, key, data, time
        self._until = time.now() + timeout_seconds
        self._num_parts = -(-len(data) // PART_BYTES)
        self._queue: deque[int] = deque()
        self._queued = 1
        """Parts up to this number are queued or sent; the first is an exception until `finish`."""
        self._open = self._num_parts
        self._multipart: Multipart | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._changed = time.condition()
        time.start(self._begin, "upload-0")

    def ready(self, end: int) -> None:
        """Declare the bytes before `end` final (except the first part's). Returns at once."""
        last = self._num_parts if end == len(self._data) else end // PART_BYTES
        with self._changed:
            self._queue.extend(range(self._queued + 1, last + 1))
            self._queued = max(self._queued, last)
            self._changed.notify_all()

    def finish(self, *, timeout_seconds: float) -> None:
        """Send the remaining parts, the first one last, and make the object visible: all bytes are final now.

        Raises StorageError on failure; the upload is then abandoned. Then half of the time that was left at its last
        progress remains for another way. On a link so slow that no part ends within 30 s, less remains.
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
        """End the upload. Without a completion it never becomes visible; its parts are deleted now if the server
        answers, else at the next start."""
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
        """Queue the first part too and wait for all, as long as they make progress."""
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
        """Whether the store accepts a second part without a first, as far as can be determined. The real part replaces
        the probe."""
        if self._bucket not in _any_order:
            began, left = self._time.now(), seconds_until(self._until, self._time)
            patience = min(_PROBE_SECONDS, left / 4)
            try:
                multipart.put(2, b"?", timeout_seconds=patience)
                _any_order[self._bucket] = True
            except StorageError:
                # A quick failure has another reason, which the real parts will meet too.
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
        """Return the next part that is ready; None when no work is left. Raises StorageError at the deadline."""
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
