"""An object on its way to S3 in parts, none of which is copied to be sent."""

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from protocol.errors import ObjectMissing, StorageError
from protocol.ports import ObjectFacts
from storage import transport
from storage.client import may_pass, pause
from storage.refusals import asking, failures

_TRIES = 5
"""For a completion: about 5 s of an outage. Then the caller should have time left to do it another way."""

ReadAt = Callable[[int, int], bytes]
"""At most so many bytes from this position on."""


class Section:
    """Bytes first .. first + num_bytes - 1 of memory or of a file, as a body that botocore reads block by block, to
    sign it and to send it, again if it has to."""

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
    """Facts of the object that the parts will be; None when it is not there."""

    def __call__(self, *, timeout_seconds: float) -> ObjectFacts | None: ...


class Parts:
    """A multipart upload that was begun on an S3 server (Multipart). `names`: of the bucket, the key and the upload, as
    boto3 calls them. `before`: what stood under the key when the upload began."""

    def __init__(self, client: Any, names: dict[str, str], look: Look, before: ObjectFacts | None) -> None:
        self._client, self._names = client, names
        self._look, self._before = look, before
        self._stored: dict[int, tuple[str, int]] = {}
        """By number what the server calls each part, which the completion has to name, and its size."""

    def put(self, number: int, data: bytes | memoryview, *, timeout_seconds: float) -> None:
        """See Multipart."""
        self.send(number, Section(in_memory(data), 0, len(data)), timeout_seconds=timeout_seconds)

    def send(self, number: int, section: Section, *, timeout_seconds: float) -> None:
        """`put`, from where the bytes are."""
        with asking("upload", timeout_seconds):
            answer = self._client.upload_part(**self._names, PartNumber=number, Body=section)
            self._stored[number] = answer["ETag"], len(section)

    def complete(self, *, timeout_seconds: float) -> None:
        """See Multipart. An answer may be lost; so before it is asked again, the object is looked for."""
        parts = [{"PartNumber": number, "ETag": etag} for number, (etag, _) in sorted(self._stored.items())]
        with asking("upload", timeout_seconds):
            for attempt in count(1):
                try:
                    answer = self._client.complete_multipart_upload(**self._names, MultipartUpload={"Parts": parts})
                    # Servers send the status before the deed, and what became of it in the document.
                    _ = answer["ETag"]
                except failures() as error:
                    if self._stands():
                        return
                    if attempt == _TRIES or not may_pass(error):
                        raise
                else:
                    return
                pause(attempt)

    def abort(self, *, timeout_seconds: float) -> None:
        """See Multipart."""
        try:
            with asking("abort", timeout_seconds):
                self._client.abort_multipart_upload(**self._names)
        except ObjectMissing:
            return

    def _stands(self) -> bool:
        """Whether another object than before stands under the key, of our size: only its owner writes to a bucket."""
        try:
            found = self._look(timeout_seconds=transport.remaining_seconds())
        except StorageError:
            return False
        return (
            found is not None and found != self._before and found.size_bytes == sum(n for _, n in self._stored.values())
        )


def in_memory(data: bytes | memoryview) -> ReadAt:
    """Blocks of what is in memory."""
    view = memoryview(data)
    return lambda at, num_bytes: bytes(view[at : at + num_bytes])


def in_file(descriptor: int) -> ReadAt:
    """Blocks of an open file, for several threads."""
    return lambda at, num_bytes: os.pread(descriptor, num_bytes, at)
