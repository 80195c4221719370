"""An upload that starts before its object is whole: finished parts travel while the rest is being made or saved.

The first part waits for `finish`, and so does the completion; without both nobody sees any of the rest. A miner's
envelope stands in the first part, so nothing is published before it is saved (docs/protocol.md section 2). What a dead
process left behind is not resumed but aborted at the next start (Bucket.abort_unfinished), and the saved bytes go up
whole. May not decide what to do when it fails: the caller still has the bytes.
"""

from collections import deque
from contextlib import suppress

from protocol.errors import AccessDenied, ObjectMissing, StorageError
from protocol.ports import Multipart, Time
from storage.exchange import persist
from storage.realtime import REAL, seconds_until
from storage.s3 import PART_BYTES, UPLOAD_THREADS, RangedBucket

ABORT_SECONDS = 5.0
_TRIES = 5
"""For each call, the bucket's own repetitions apart: about a minute of an outage. Then the caller should have time left
to do it another way."""
_FINAL = (AccessDenied, ObjectMissing)
"""Trying again does not help: refused, or the server has forgotten this upload."""
_PROBE_BYTES = 4096


def has_parts(num_bytes: int) -> bool:
    """Whether an object of this size has anything that could travel before its first part."""
    return num_bytes > PART_BYTES


class Upload:
    """One object on its way under `key`, in parts of 16 MiB, on a few daemon threads.

    `data` is the buffer that the object is made in. It belongs to the upload until that has ended; only bytes that were
    not declared `ready` may change, and those of the first part until `finish`.
    """

    def __init__(
        self, bucket: RangedBucket, key: str, data: bytearray, *, timeout_seconds: float, time: Time = REAL
    ) -> None:
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

        Raises StorageError when that did not succeed in time; the upload is given up then.
        """
        until = self._time.now() + timeout_seconds
        self.ready(len(self._data))
        try:
            multipart = self._all_sent(until)
            try:
                persist(
                    lambda left: multipart.complete(timeout_seconds=left),
                    until,
                    final=_FINAL,
                    tries=_TRIES,
                    time=self._time,
                )
            except StorageError:
                # An answer may be lost, and asked again the server no longer knows the upload that it completed.
                if not self._stands(until):
                    raise
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
        """Send the first part too and wait for all."""
        with self._changed:
            self._queue.append(1)
            self._changed.notify_all()
            while self._open and self._failure is None and (left := seconds_until(until, self._time)) > 0:
                self._changed.wait(left)
            if self._failure is not None:
                raise self._failure
            if self._open or self._multipart is None:
                raise StorageError(f"upload: {self._open} of {self._num_parts} parts are not up in time")
            return self._multipart

    def _stands(self, until: float) -> bool:
        """Whether the object is there, by its size and its first bytes: an envelope is of one sealing only, and an
        object becomes visible whole or not at all."""
        with suppress(StorageError):
            facts = self._bucket.head(self._key, timeout_seconds=seconds_until(until, self._time))
            if facts is not None and facts.size_bytes == len(self._data):
                num_bytes = min(_PROBE_BYTES, len(self._data))
                found = self._bucket.get_range(
                    self._key,
                    first=0,
                    num_bytes=num_bytes,
                    etag=facts.etag,
                    timeout_seconds=seconds_until(until, self._time),
                )
                return found == self._data[:num_bytes]
        return False

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
        except Exception as error:  # noqa: BLE001 - raised where the upload is finished
            return self._fail(error)
        with self._changed:
            self._multipart = multipart
            closed = self._closed
        if closed:
            return self._abort()  # abandoned meanwhile
        for number in range(1, UPLOAD_THREADS):
            self._time.start(lambda: self._work(multipart), f"upload-{number}")
        self._work(multipart)

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
        data = bytes(memoryview(self._data)[first : first + PART_BYTES])
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
