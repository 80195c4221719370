"""A cluster's amendments; the records say which of them are in force, alike for all members.

An amendment is created once, under its number. The member that closes a round looks for new amendments, and writes
their total number into the record. They are in force from the next round on. So no member has begun a round under
another spec.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from loguru import logger

from murmur.cluster.ledger import Ledger
from murmur.cluster.on_disk import OnDisk
from murmur.protocol.cluster import Amendment, ClusterSpec, amended
from murmur.protocol.errors import ConfigError, StorageError


class AmendmentReader(Protocol):
    """Where amendments are read: the bucket (Ledger), or a member's bucket and disk (KeptAmendments)."""

    def amendment(self, number: int) -> Amendment | None:
        """Return the amendment; None if there is none yet. Raises StorageError."""
        ...


class AmendmentLost(StorageError):
    """A record names an amendment that the bucket does not show."""


class AmendedSpec:
    """A cluster's spec with the amendments of its records. taken: the amendments in force. closed: the run has had its
    last round."""

    def __init__(self, first: ClusterSpec, source: AmendmentReader) -> None:
        self._first, self._source = first, source
        self.taken: tuple[Amendment, ...] = ()
        self.spec, self.closed = first, False
        self._refused = 0

    @property
    def count(self) -> int:
        """Number of amendments in force."""
        return len(self.taken)

    def at(self, count: int) -> "AmendedSpec":
        """Return the spec with `count` amendments. Raises AmendmentLost for a missing one, ConfigError for one that
        this release cannot follow."""
        if count == self.count:
            return self
        found = self if count > self.count else AmendedSpec(self._first, self._source)
        while found.count < count:
            amendment = self._source.amendment(found.count + 1)
            if amendment is None:
                raise AmendmentLost(
                    f"a record names amendment {found.count + 1}, which the bucket has lost: a member that was there "
                    "puts it back within some rounds"
                )
            found = found.next(amendment)
        return found

    def next(self, amendment: Amendment) -> "AmendedSpec":
        """Return the spec with one more amendment. Raises ConfigError if that makes no valid spec."""
        following = AmendedSpec(self._first, self._source)
        following.taken, following.spec = (*self.taken, amendment), amended(self.spec, amendment)
        following.closed = amendment.last
        return following

    def coming(self, announced: Callable[[int], Amendment | None]) -> "AmendedSpec":
        """Return the spec with all valid amendments by now: those in force, and those that `announced` returns for the
        next numbers. One that makes no valid spec is ignored by all members, and so are all after it. Raises
        StorageError."""
        found = self
        while not found.closed and (amendment := announced(found.count + 1)) is not None:
            try:
                found = found.next(amendment)
            except ConfigError as fault:
                if self._refused <= found.count:
                    self._refused = found.count + 1
                    logger.error("amendment {number} is ignored: {why}", number=found.count + 1, why=str(fault))
                break
        return found


class KeptAmendments:
    """The amendments, also on our disk, in case the store loses one. Thread-safe."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._disk, self._ledger = OnDisk(Amendment, folder, ledger.run, ledger.group), ledger
        self._taken: tuple[Amendment, ...] = ()

    def amendment(self, number: int) -> Amendment | None:
        """Return the bucket's, else this disk's. Raises StorageError if neither has it, and the bucket's cannot be
        read."""
        kept = self._disk.find(number)
        try:
            return self._ledger.amendment(number) or kept
        except StorageError:
            if kept is None:
                raise
            return kept

    def keep(self, taken: tuple[Amendment, ...]) -> None:
        """Take these as the amendments in force."""
        self._save(taken)
        self._taken = taken

    def announced(self, amended: AmendedSpec) -> int:
        """Return how many valid amendments there are by now, for the next record to count. They are on this disk before
        a record names them. One that cannot be read now comes into force with a later record."""
        with suppress(StorageError):
            amended = amended.coming(self._ledger.amendment)
        self._save(amended.taken)
        return amended.count

    def restore(self) -> None:
        """Put back those that the store has lost or damaged. Raises StorageError."""
        for number, amendment in enumerate(self._taken, 1):
            self._ledger.restore_amendment(number, amendment)

    def _save(self, taken: tuple[Amendment, ...]) -> None:
        for number, amendment in enumerate(taken, 1):
            if amendment != self._disk.find(number):
                self._disk.keep(number, amendment)
