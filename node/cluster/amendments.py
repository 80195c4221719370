"""A cluster's amendments: which hold is said by the records, alike for everybody.

An amendment is created once, under its number. Whoever closes a round looks for those that have come, and writes into
the record how many there are: they hold from the next round on. So no member has begun a round under another spec.
"""

from loguru import logger

from node.cluster.ledger import Ledger
from protocol.cluster import Amendment, ClusterSpec, amended
from protocol.errors import ConfigError, StorageError


class AmendedSpec:
    """A cluster's spec as its records' amendments leave it. count: of those that hold. closed: the run has had its last
    round."""

    def __init__(self, first: ClusterSpec, ledger: Ledger) -> None:
        self._first, self._ledger = first, ledger
        self.count, self.spec, self.closed = 0, first, False
        self._refused = 0

    def at(self, count: int) -> "AmendedSpec":
        """With so many amendments. Raises StorageError where one is not to be had, ConfigError for one that this
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
        """With one more. Raises ConfigError where it makes no valid spec."""
        following = AmendedSpec(self._first, self._ledger)
        following.count, following.spec = self.count + 1, amended(self.spec, amendment)
        following.closed = amendment.last
        return following

    def coming(self) -> int:
        """How many there are by now. One that makes no valid spec holds for nobody, nor what comes after it. Raises
        StorageError."""
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
