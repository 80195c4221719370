"""Where a round's objects may be: pinned by their digests, so any copy is as good as another."""

from collections.abc import Callable, Iterable, Sequence

from gauntlet.agreement import mirrors
from node.config.adapters import Opener
from protocol import keys
from protocol.run import Run
from protocol.types import Digest, Peer, PeerId, Pointer, PublicPointer
from storage.exchange import Source
from storage.s3 import RangedBucket


class Sources:
    """Where a round's objects may be: each peer's bucket, then the `mirrors` (gauntlet.agreement.mirrors), in order."""

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
        """An opener of the bucket that `peer` published, None when there is none."""
        pointer = self.pointer_of(peer)
        return None if pointer is None else lambda: self._open(pointer)

    def pointer_of(self, peer: PeerId) -> Pointer | PublicPointer | None:
        """Where `peer` says that its bucket is; None when it says nothing."""
        found = self._peers.get(peer)
        return found.slot.pointer if found is not None and found.slot is not None else None

    def validators(self) -> list[PeerId]:
        """The mirrors with a published bucket."""
        return [peer for peer in self._mirrors if self.bucket_of(peer) is not None]

    def published(self) -> list[PeerId]:
        """Everybody with a published bucket."""
        return [peer for peer in self._peers if self.bucket_of(peer) is not None]

    def others(self) -> list[PeerId]:
        """Those that are no mirrors: they put up copies for whoever lacks something (rounds/repair_answers.py)."""
        return [peer for peer in self.published() if peer not in self._mirrors]

    def own(self, peer: PeerId, key: str) -> tuple[Source, ...]:
        """The peer's own bucket as the only source."""
        return self._places((peer, key))

    def of(self, peer: PeerId, own_key: str, mirror_key: str) -> tuple[Source, ...]:
        """Sources of one object, the peer's own bucket first."""
        return self._places((peer, own_key), *((validator, mirror_key) for validator in self.validators()))

    def _places(self, *places: tuple[PeerId, str]) -> tuple[Source, ...]:
        found = ((self.bucket_of(peer), key, self.pointer_of(peer)) for peer, key in places)
        return tuple(
            Source(opener, key, pointer.endpoint)
            for opener, key, pointer in found
            if opener is not None and pointer is not None
        )

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.payload(run, round), keys.mirror(run, round, peer))

    def reveal(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.reveal(run, round), keys.mirror_reveal(run, round, peer))


def sources_as_of(run: Run, block: int, peers: Sequence[Peer], open_pointer: Opener) -> Sources:
    """Where objects of a run may be, by who is registered and who counts as of a final block."""
    return Sources(peers, open_pointer, mirrors(run, block, peers))
