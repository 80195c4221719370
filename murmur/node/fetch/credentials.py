"""Which published credentials servers accept. Anybody may point to another's bucket with a credential of his own
invention: each is another pointer, so it would be followed, and the bucket's server would have to refuse it each time.
"""

import threading

from murmur.protocol.types import MAX_UIDS, Pointer

Address = tuple[str, str]
"""A bucket's endpoint and name."""
_MOST = 4 * MAX_UIDS
"""So many addresses, and pointers of one address, are remembered."""


def address_of(pointer: Pointer) -> Address:
    return pointer.endpoint, pointer.bucket


class Credentials:
    """Pointers that were not refused when they were last followed. Thread-safe."""

    def __init__(self) -> None:
        self._accepted: dict[Address, dict[Pointer, None]] = {}
        self._lock = threading.Lock()

    def accepted(self, address: Address) -> frozenset[Pointer]:
        with self._lock:
            return frozenset(self._accepted.get(address, ()))

    def note(self, pointer: Pointer, accepted: bool) -> None:
        """Remember what the server of this pointer has said last."""
        with self._lock:
            there = self._accepted.pop(address_of(pointer), {})
            there.pop(pointer, None)
            if accepted:
                there[pointer] = None
                if len(there) > _MOST:
                    there.pop(next(iter(there)))
            if there:
                self._accepted[address_of(pointer)] = there
                if len(self._accepted) > _MOST:
                    self._accepted.pop(next(iter(self._accepted)))
