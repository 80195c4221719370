"""A cluster's amendments; the records say which of them are in force, alike for all members.

An amendment is created once, under its number. The member that closes a round looks for new amendments, and writes
their total number into the record. They are in force from the next round on. So no member has begun a round under
another spec.
"""

from loguru import logger

from node.cluster.ledger import Ledger
from protocol.cluster import Amendment, ClusterSpec, amended
from protocol.errors import ConfigError, StorageError


class AmendedSpec:
    """A cluster's spec with the amendments of its records. count: number of amendments in force. closed: the run has
    had its last round."""

    def __init__(self, first: ClusterSpec, ledger: Ledger) -> None:
        self._first, self._ledger = first, ledger
        self.count, self.spec, self.closed = 0, first, False
        self._refused = 0

    def at(self, count: int) -> "AmendedSpec":
        """Return the spec with `count` amendments. Raises StorageError for a missing one, ConfigError for one that this
        release cannot follow."""
        if count == self.count:
            return self
        found = self if count > self.count else AmendedSpec(self._first, self._ledger)
        while found.count < count:
            amendment = self._ledger.amendment(found.count + 1)
            if amendment is None:
                raise StorageError(f"a record names amendment {found.count + 1}, which is not in the bucket")
            found = found.next(amendment)
        return found

    def next(self, amendment: Amendment) -> "AmendedSpec":
        """Return the spec with one more amendment. Raises ConfigError if that makes no valid spec."""
        following = AmendedSpec(self._first, self._ledger)
        following.count, following.spec = self.count + 1, amended(self.spec, amendment)
        following.closed = amendment.last
        return following

    def coming(self) -> int:
        """Return how many valid amendments there are by now. One that makes no valid spec is ignored by all members,
        and so are all after it. Raises StorageError."""
        found = self
        while not found.closed and (amendment := self._ledger.amendment(found.count + 1)) is not None:
            try:
                found = found.next(amendment)
            except ConfigError as fault:
                if self._refused <= found.count:
                    self._refused = found.count + 1
                    logger.error("amendment {number} is ignored: {why}", number=found.count + 1, why=str(fault))
                break
        return found.count
