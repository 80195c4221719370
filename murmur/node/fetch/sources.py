"""Sources of a round's objects. Digests pin the objects, so any copy will do."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256

from gauntlet.agreement import mirrors
from murmur.node.config.ports import Opener
from murmur.node.fetch.credentials import Address, Credentials, address_of
from murmur.protocol import keys
from murmur.protocol.errors import StorageError
from murmur.protocol.pointers import encode_pointer
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, PeerId, Pointer, PublicPointer
from storage.exchange import Source
from storage.s3 import RangedBucket


class Sources:
    """The buckets that may hold a round's objects: each peer's own, then the `mirrors` (gauntlet.agreement.mirrors), in
    order. Of the other credentials that are published for a bucket whose server takes one, only one is tried, and
    once: that of the peer who read there first, which may have made a new token."""

    def __init__(
        self,
        peers: Iterable[Peer],
        open_pointer: Opener,
        mirrors: Iterable[PeerId] = (),
        credentials: Credentials | None = None,
        draw: bytes = b"",
    ) -> None:
        """draw: whatever changes from round to round, so that another credential is tried."""
        self._peers = {peer.id: peer for peer in peers}
        self._mirrors = tuple(mirrors)
        self._open = open_pointer
        self._credentials = Credentials() if credentials is None else credentials
        self._publishers: dict[Pointer, list[PeerId]] = {}
        for one in self._peers:
            if isinstance(pointer := self.pointer_of(one), Pointer):
                self._publishers.setdefault(pointer, []).append(one)
        self._crowds = self._crowded()
        self._draw = draw
        self._trials: dict[Address, Pointer | None] = {}
        """Of a bucket, the credential to try; None once it was."""

    def bucket_of(self, peer: PeerId) -> Callable[[], RangedBucket] | None:
        """Return an opener of the bucket that `peer` published, None when there is none."""
        pointer = self.pointer_of(peer)
        return None if pointer is None else partial(self._follow, pointer)

    def pointer_of(self, peer: PeerId) -> Pointer | PublicPointer | None:
        """Return the pointer that `peer` has published; None when there is none."""
        found = self._peers.get(peer)
        return found.slot.pointer if found is not None and found.slot is not None else None

    def validators(self) -> list[PeerId]:
        """Return the mirrors with a published bucket."""
        return [peer for peer in self._mirrors if self.bucket_of(peer) is not None]

    def published(self) -> list[PeerId]:
        """Return all peers with a published bucket."""
        return [peer for peer in self._peers if self.bucket_of(peer) is not None]

    def others(self) -> list[PeerId]:
        """Return the peers with a bucket that are no mirrors: on request they publish copies too
        (murmur/rounds/repair_answers.py)."""
        return [peer for peer in self.published() if peer not in self._mirrors]

    def committed_in(self, peer: PeerId) -> int:
        """Return the round of the commitment that `peer` has posted last; -1 if its slot has none."""
        found = self._peers.get(peer)
        statement = found.slot.statement if found is not None and found.slot is not None else None
        return statement.round if isinstance(statement, Commitment) else -1

    def own(self, peer: PeerId, key: str) -> tuple[Source, ...]:
        """Return the peer's own bucket as the only source."""
        return self._places((peer, key))

    def of(self, peer: PeerId, own_key: str, mirror_key: str) -> tuple[Source, ...]:
        """Return the sources of one object, the peer's own bucket first."""
        return self._places((peer, own_key), *((validator, mirror_key) for validator in self.validators()))

    def _places(self, *places: tuple[PeerId, str]) -> tuple[Source, ...]:
        found = ((self.bucket_of(peer), key, self.pointer_of(peer)) for peer, key in places)
        return tuple(
            Source(opener, key, pointer.endpoint, place=pointer, answered=partial(self._note, pointer))
            for opener, key, pointer in found
            if opener is not None and pointer is not None
        )

    def _crowded(self) -> dict[Address, set[Pointer]]:
        """Return the buckets for which several credentials are published, with these."""
        found: dict[Address, set[Pointer]] = {}
        for pointer in self._publishers:
            found.setdefault(address_of(pointer), set()).add(pointer)
        return {address: pointers for address, pointers in found.items() if len(pointers) > 1}

    def _follow(self, pointer: Pointer | PublicPointer) -> RangedBucket:
        if isinstance(pointer, Pointer) and self._is_idle(pointer):
            raise StorageError("the bucket's server takes another credential: this one was not tried")
        return self._open(pointer)

    def _is_idle(self, pointer: Pointer) -> bool:
        """Whether this credential is not to be used: it is not known to be accepted, and another one is."""
        crowd = self._crowds.get(address := address_of(pointer))
        if crowd is None:
            return False
        accepted = self._credentials.accepted(address) & crowd
        if not accepted or pointer in accepted:
            return False
        if address not in self._trials:
            self._trials[address] = self._to_try(address, crowd - accepted)
        if self._trials[address] != pointer:
            return True
        self._trials[address] = None
        return False

    def _to_try(self, address: Address, pointers: set[Pointer]) -> Pointer:
        """Return the pointer of the peer that was accepted there first, if it is one of these; otherwise draw one."""
        for peer in self._credentials.order(address):
            pointer = self.pointer_of(peer)
            if isinstance(pointer, Pointer) and pointer in pointers:
                return pointer
        return min(pointers, key=self._drawn)

    def _drawn(self, pointer: Pointer) -> bytes:
        return sha256(self._draw + encode_pointer(pointer)).digest()

    def _note(self, pointer: Pointer | PublicPointer, accepted: bool) -> None:
        if isinstance(pointer, Pointer):
            self._credentials.note(pointer, accepted, self._publishers.get(pointer, ()))

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.payload(run, round), keys.mirror(run, round, peer))

    def reveal(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.reveal(run, round), keys.mirror_reveal(run, round, peer))


def sources_as_of(
    run: Run, block: int, peers: Sequence[Peer], open_pointer: Opener, credentials: Credentials | None = None
) -> Sources:
    """Return the sources of a run's objects, with the peers that are registered and the validators that count as of a
    final block."""
    return Sources(peers, open_pointer, mirrors(run, block, peers), credentials, block.to_bytes(8, "little"))
