"""A trial of the key that a node publishes: it must be able to read the bucket and nothing else. Run before
publication, because a key on chain stays there for ever (docs/decisions/0034-public-pointers.md).

May not know where the keys come from or how the verdict is used.
"""

import secrets
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from murmur.protocol import keys
from murmur.protocol.errors import UNKNOWN_KEY, WRONG_SECRET, AccessDenied, ObjectMissing, ObjectTooLarge
from murmur.protocol.ports import Bucket, Time
from storage.realtime import REAL, seconds_until

_BYTES = 32
_REFUSED = (AccessDenied, ObjectMissing)
"""Answers that refuse a change: a server that allows no changes may answer 404."""


class Why(Enum):
    """Why a key must not be published."""

    NO_BUCKET = "there is no bucket of this name"
    OWNER_UNKNOWN = "the server does not know our own key"
    OWNER_SECRET = "our own secret is not the one of our key"
    OWNER_REFUSED = "our own key may not write, or not delete"
    SWAPPED = "our own key may not write, but the published one may"
    READER_UNKNOWN = "the server does not know the published key"
    READER_SECRET = "the published secret is not the one of the published key"
    UNREADABLE = "the published key may not read"
    ELSEWHERE = "the published key does not read what was just written"
    WRITABLE = "the published key may write, delete, or begin an upload"


_OWNER: dict[str | None, Why] = {UNKNOWN_KEY: Why.OWNER_UNKNOWN, WRONG_SECRET: Why.OWNER_SECRET}
_READER: dict[str | None, Why] = {UNKNOWN_KEY: Why.READER_UNKNOWN, WRONG_SECRET: Why.READER_SECRET}


@dataclass(frozen=True, slots=True)
class Unfit:
    """A key that must not be published. `detail`: the refusal that shows it, if there was one, in our own words."""

    why: Why
    detail: str = ""


def try_published(owner: Bucket, reader: Bucket, *, timeout_seconds: float, time: Time = REAL) -> Unfit | None:
    """Write an object as the owner, read it as `reader` (the published key), and check that the reader cannot change
    the bucket. None: the key may be published.

    The object is deleted again. Its key is fixed, so the next trial replaces an object that a killed process left.
    Raises StorageError when a server does not answer in time: that proves nothing.
    """
    return _Trial(owner, reader, time.now() + timeout_seconds, time).verdict()


class _Trial:
    def __init__(self, owner: Bucket, reader: Bucket, until: float, time: Time) -> None:
        self.owner, self.reader, self.until, self.time = owner, reader, until, time
        self.key, self.data = keys.trial(), secrets.token_bytes(_BYTES)

    def verdict(self) -> Unfit | None:
        # Read first: a cache before a public bucket that keeps an old object, or its absence, then serves that below.
        with suppress(AccessDenied, ObjectMissing, ObjectTooLarge):
            self._get()
        try:
            self.owner.put(self.key, self.data, timeout_seconds=self._left)
        except ObjectMissing as fault:
            return Unfit(Why.NO_BUCKET, str(fault))
        except AccessDenied as fault:
            why = _OWNER.get(fault.code) or (Why.SWAPPED if self._writes() else Why.OWNER_REFUSED)
            return Unfit(why, str(fault))
        unfit = self._reads()
        if unfit is None and (self._writes() or self._deletes() or self._begins()):
            unfit = Unfit(Why.WRITABLE)
        try:
            self.owner.delete(self.key, timeout_seconds=self._left)
        except AccessDenied as fault:
            return unfit or Unfit(Why.OWNER_REFUSED, str(fault))
        return unfit

    def _reads(self) -> Unfit | None:
        try:
            return None if self._get() == self.data else Unfit(Why.ELSEWHERE)
        except AccessDenied as fault:
            return Unfit(_READER.get(fault.code, Why.UNREADABLE), str(fault))
        except (ObjectMissing, ObjectTooLarge) as fault:
            return Unfit(Why.ELSEWHERE, str(fault))

    def _get(self) -> bytes:
        return self.reader.get(self.key, max_bytes=_BYTES, timeout_seconds=self._left)

    def _writes(self) -> bool:
        try:
            self.reader.put(self.key, self.data, timeout_seconds=self._left)
        except _REFUSED:
            return False
        with suppress(*_REFUSED):
            self.reader.delete(self.key, timeout_seconds=self._left)
        return True

    def _deletes(self) -> bool:
        with suppress(*_REFUSED):
            self.reader.delete(self.key, timeout_seconds=self._left)
        # A server may accept the request and keep the object all the same.
        return self.owner.head(self.key, timeout_seconds=self._left) is None

    def _begins(self) -> bool:
        try:
            upload = self.reader.begin(self.key, timeout_seconds=self._left)
        except _REFUSED:
            return False
        with suppress(*_REFUSED):
            upload.abort(timeout_seconds=self._left)
        return True

    @property
    def _left(self) -> float:
        return seconds_until(self.until, self.time)
