"""Sources of a round's objects. Digests pin the objects, so any copy will do."""

from collections.abc import Callable, Iterable, Sequence

from gauntlet.agreement import mirrors
from murmur.node.config.ports import Opener
from murmur.protocol import keys
from murmur.protocol.run import Run
from murmur.protocol.types import Digest, Peer, PeerId, Pointer, PublicPointer
from storage.exchange import Source
from storage.s3 import RangedBucket


class Sources:
    """The buckets that may hold a round's objects: each peer's own, then the `mirrors` (gauntlet.agreement.mirrors), in
    order."""

    def __init__(
        self,
        peers: Iterable[Peer],
        open_pointer: Opener,
        mirrors: Iterable[PeerId] = (),
    ) -> None:
        self._peers = {peer.id: peer for peer in peers}
        self._mirrors = tuple(mirrors)
        self._open = open_pointer

    def bucket_of(self, peer: PeerId) -> Callable[[], RangedBucket] | None:
        """Return an opener of the bucket that `peer` published, None when there is none."""
        pointer = self.pointer_of(peer)
        return None if pointer is None else lambda: self._open(pointer)

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

    def own(self, peer: PeerId, key: str) -> tuple[Source, ...]:
        """Return the peer's own bucket as the only source."""
        return self._places((peer, key))

    def of(self, peer: PeerId, own_key: str, mirror_key: str) -> tuple[Source, ...]:
        """Return the sources of one object, the peer's own bucket first."""
        return self._places((peer, own_key), *((validator, mirror_key) for validator in self.validators()))

    def _places(self, *places: tuple[PeerId, str]) -> tuple[Source, ...]:
        found = ((self.bucket_of(peer), key, self.pointer_of(peer)) for peer, key in places)
        return tuple(
            Source(opener, key, pointer.endpoint, place=pointer)
            for opener, key, pointer in found
            if opener is not None and pointer is not None
        )

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.payload(run, round), keys.mirror(run, round, peer))

    def reveal(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.reveal(run, round), keys.mirror_reveal(run, round, peer))


def sources_as_of(run: Run, block: int, peers: Sequence[Peer], open_pointer: Opener) -> Sources:
    """Return the sources of a run's objects, with the peers that are registered and the validators that count as of a
    final block."""
    return Sources(peers, open_pointer, mirrors(run, block, peers))
