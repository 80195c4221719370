"""A multipart upload to S3 that sends its parts without copying them."""

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from murmur.protocol.errors import ObjectMissing, StorageError
from murmur.protocol.ports import ObjectFacts
from storage.client import may_pass, pause
from storage.deadline import remaining_seconds
from storage.refusals import asking, failures

_TRIES = 5
"""Tries of a completion: about 5 s of an outage. The caller should then have time left for another way."""

ReadAt = Callable[[int, int], bytes]
"""Returns at most that many bytes from this position on (position, number of bytes)."""


class Section:
    """Bytes first .. first + num_bytes - 1 of memory or a file, as a body that botocore reads block by block. It reads
    the body once to sign and once to send it, and again for retries."""

    def __init__(self, read_at: ReadAt, first: int, num_bytes: int) -> None:
        self._read_at, self._first, self._num_bytes = read_at, first, num_bytes
        self._at = 0

    def __len__(self) -> int:
        return self._num_bytes

    def read(self, num_bytes: int = -1) -> bytes:
        left = self._num_bytes - self._at
        wanted = left if num_bytes < 0 else min(num_bytes, left)
        block = self._read_at(self._first + self._at, wanted) if wanted else b""
        if len(block) < wanted:
            raise OSError("the file became shorter while it was sent")
        self._at += len(block)
        return block

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._num_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at


class Look(Protocol):
    """Returns the facts of the object under the upload's key; None when it is missing."""

    def __call__(self, *, timeout_seconds: float) -> ObjectFacts | None: ...


class Parts:
    """A multipart upload already begun on an S3 server (Multipart). `names`: of the bucket, the key and the upload, as
    boto3 calls them. `before`: the facts of the object under the key when the upload began."""

    def __init__(self, client: Any, names: dict[str, str], look: Look, before: ObjectFacts | None) -> None:
        self._client, self._names = client, names
        self._look, self._before = look, before
        self._stored: dict[int, tuple[str, int]] = {}
        """By part number: the server's ETag, which the completion has to name, and the size."""

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        """See Multipart."""
        self.send(number, Section(in_memory(data), 0, len(data)), timeout_seconds=timeout_seconds)

    def send(self, number: int, section: Section, *, timeout_seconds: float) -> None:
        """Do the work of `put` for a Section."""
        with asking("upload", timeout_seconds):
            answer = self._client.upload_part(**self._names, PartNumber=number, Body=section)
            self._stored[number] = answer["ETag"], len(section)

    def complete(self, *, timeout_seconds: float) -> None:
        """See Multipart. An answer may be lost, so the object is looked up before each retry."""
        parts = [{"PartNumber": number, "ETag": etag} for number, (etag, _) in sorted(self._stored.items())]
        with asking("upload", timeout_seconds):
            for attempt in count(1):
                try:
                    answer = self._client.complete_multipart_upload(**self._names, MultipartUpload={"Parts": parts})
                    # Servers send the status before they do the work; the document holds the outcome.
                    _ = answer["ETag"]
                except failures() as error:
                    if self._stands():
                        return
                    if attempt == _TRIES or not may_pass(error):
                        raise
                    pause(attempt, error)
                else:
                    return

    def abort(self, *, timeout_seconds: float) -> None:
        """See Multipart."""
        try:
            with asking("abort", timeout_seconds):
                self._client.abort_multipart_upload(**self._names)
        except ObjectMissing:
            return

    def _stands(self) -> bool:
        """Whether the key now holds another object than before, of our size: only its owner writes to a bucket."""
        try:
            found = self._look(timeout_seconds=remaining_seconds())
        except StorageError:
            return False
        return (
            found is not None and found != self._before and found.size_bytes == sum(n for _, n in self._stored.values())
        )


def in_memory(data: bytes | memoryview) -> ReadAt:
    """Return a reader of blocks of memory."""
    view = memoryview(data)
    return lambda at, num_bytes: bytes(view[at : at + num_bytes])


def in_file(descriptor: int) -> ReadAt:
    """Return a reader of blocks of an open file, usable by several threads."""
    return lambda at, num_bytes: os.pread(descriptor, num_bytes, at)
