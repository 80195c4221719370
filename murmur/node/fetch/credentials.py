"""Which published credentials servers accept. Anybody may point to another's bucket with a credential of his own
invention: each is another pointer, so it would be followed, and the bucket's server would have to refuse it each time.
"""

import threading
from collections.abc import Collection
from typing import TypeVar

from murmur.protocol.types import MAX_UIDS, PeerId, Pointer

T = TypeVar("T")
Address = tuple[str, str]
"""A bucket's endpoint and name."""
_MOST = 4 * MAX_UIDS
"""So many addresses, and pointers and peers of one address, are remembered."""


def address_of(pointer: Pointer) -> Address:
    return pointer.endpoint, pointer.bucket


class Credentials:
    """Pointers that were not refused when they were last followed, and whose they were first. Thread-safe."""

    def __init__(self) -> None:
        self._accepted: dict[Address, dict[Pointer, None]] = {}
        self._peers: dict[Address, dict[PeerId, None]] = {}
        self._lock = threading.Lock()

    def accepted(self, address: Address) -> frozenset[Pointer]:
        with self._lock:
            return frozenset(self._accepted.get(address, ()))

    def order(self, address: Address) -> list[PeerId]:
        """Return the peers whose pointers to this bucket were accepted and none refused since, the first first. Whoever
        copies another's pointer comes behind it."""
        with self._lock:
            return list(self._peers.get(address, ()))

    def note(self, pointer: Pointer, accepted: bool, peers: Collection[PeerId] = ()) -> None:
        """Remember what the server of this pointer, which `peers` publish, has said last."""
        address = address_of(pointer)
        with self._lock:
            there = self._accepted.pop(address, {})
            there.pop(pointer, None)
            known = self._peers.pop(address, {})
            for peer in peers:
                if not accepted:
                    known.pop(peer, None)
                elif len(known) < _MOST:
                    known.setdefault(peer)
            if accepted:
                there[pointer] = None
                if len(there) > _MOST:
                    there.pop(next(iter(there)))
            _put(self._accepted, address, there)
            _put(self._peers, address, known)


def _put(into: dict[Address, dict[T, None]], address: Address, these: dict[T, None]) -> None:
    """Store these, unless there are none, in place of the address that was stored longest ago."""
    if these:
        into[address] = these
        if len(into) > _MOST:
            into.pop(next(iter(into)))
