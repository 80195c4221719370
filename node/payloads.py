"""Getting the pinned submissions of a round and opening them: any source will do, the digest on chain decides.

A submission is pinned by sha256(envelope) on chain; the envelope pins the ciphertext (Merkle root) and the key (its
hash). So the miner's own bucket, a validator's mirror or any other copy are equally good (docs/protocol.md 4, 8).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from protocol import keys
from protocol.errors import InvalidMessage, InvalidSubmission, StorageError
from protocol.messages import ENVELOPE_BYTES, REVEAL_BYTES, Envelope, parse_envelope, parse_reveal
from protocol.ports import Verify
from protocol.spec import RunSpec
from protocol.types import Digest, Peer, PeerId, Pointer
from sparseloco import ops
from sparseloco.update import Update
from storage.exchange import Fault, Prefetch, Source, Wanted, gather
from storage.s3 import RangedBucket
from storage.seal import matches, unseal

MAX_THREADS = 16
PREFETCH_THREADS = 3
"""Few: what is fetched early should arrive whole, and leave the link to what the round waits for."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A pinned submission: `update` is None when the pinned bytes are not a valid one (counts with s = 0)."""

    peer: PeerId
    update: Update | None


class Sources:
    """Where a round's objects may be: each peer's bucket, then the mirrors of the validators by stake."""

    def __init__(self, peers: Iterable[Peer], open_pointer: Callable[[Pointer], RangedBucket]) -> None:
        self._peers = {peer.id: peer for peer in peers}
        self._mirrors = sorted((p for p in self._peers.values() if p.validates), key=lambda p: (-p.stake, p.id))
        self._open = open_pointer

    def bucket_of(self, peer: PeerId) -> Callable[[], RangedBucket] | None:
        """An opener of the bucket that `peer` published, None when there is none."""
        found = self._peers.get(peer)
        if found is None or found.slot is None or found.slot.pointer is None:
            return None
        pointer = found.slot.pointer
        return lambda: self._open(pointer)

    def validators(self) -> list[PeerId]:
        """Validators with a published bucket, by stake."""
        return [peer.id for peer in self._mirrors if self.bucket_of(peer.id) is not None]

    def of(self, peer: PeerId, own_key: str, mirror_key: str) -> tuple[Source, ...]:
        """Sources of one object, the peer's own bucket first."""
        places = [(self.bucket_of(peer), own_key)] + [(self.bucket_of(v), mirror_key) for v in self.validators()]
        return tuple(Source(opener, key) for opener, key in places if opener is not None)

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.payload(run, round), keys.mirror(run, round, peer))

    def reveal(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        return self.of(peer, keys.reveal(run, round), keys.mirror_reveal(run, round, peer))


def fetch_pinned(
    spec: RunSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    timeout: float,
    cache: Path | None = None,
) -> Mapping[PeerId, bytes | Fault]:
    """Sealed objects of the pinned submissions; a Fault for each that no source had within `timeout` seconds. What lies
    in `cache` already is checked like the rest (storage/exchange.py)."""
    wanted = [
        Wanted(peer, sources.payload(run, round, peer), spec.object_bytes, matches(envelope))
        for peer, envelope in pairs
    ]
    return gather(wanted, timeout_seconds=timeout, max_threads=MAX_THREADS, cache=cache)


def prefetch_pinned(
    spec: RunSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    timeout: float,
    cache: Path,
    ended: Callable[[], None],
) -> Prefetch:
    """Begin to fetch sealed objects that may be selected, from their own buckets: nobody mirrors them yet. At most as
    many as a round may select and keep in reserve, each of exactly the size that the spec says."""
    wanted = [
        Wanted(peer, (Source(opener, keys.payload(run, round)),), spec.object_bytes, matches(envelope))
        for peer, envelope in pairs
        if (opener := sources.bucket_of(peer)) is not None
    ]
    return Prefetch(
        wanted[: spec.gauntlet.contributors + spec.gauntlet.reserve],
        timeout_seconds=timeout,
        max_threads=PREFETCH_THREADS,
        cache=cache,
        ended=ended,
    )


def fetch_keys(
    run: Digest, round: int, envelopes: Sequence[tuple[PeerId, Envelope]], sources: Sources, timeout: float
) -> Mapping[PeerId, bytes | Fault]:
    """Reveals whose key hashes to the envelope's key_hash. Signatures do not matter: the envelope pins the key."""

    def accept(envelope: Envelope) -> Callable[[bytes], bool]:
        def check(data: bytes) -> bool:
            try:
                return sha256(parse_reveal(data).key).digest() == envelope.key_hash
            except InvalidMessage:
                return False

        return check

    wanted = [Wanted(p, sources.reveal(run, round, p), REVEAL_BYTES, accept(envelope)) for p, envelope in envelopes]
    return gather(wanted, timeout_seconds=timeout, max_threads=MAX_THREADS)


def gather_pinned(
    spec: RunSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    verify: Verify,
    timeout: float,
    cache: Path | None = None,
) -> list[Opened]:
    """All pinned submissions of a selection, opened, in PeerId order: all or nothing. `cache` as in `fetch_pinned`.

    Raises StorageError when one of them (or its key) could not be had from any source within about `timeout` seconds:
    the caller waits and tries again, it never applies a part.
    """
    sealed = fetch_pinned(spec, run, round, pairs, sources, timeout, cache)
    lacking = [fault.detail for fault in sealed.values() if isinstance(fault, Fault)]
    if lacking:
        raise StorageError(
            f"round {round}: {len(lacking)} of {len(pairs)} selected payloads not to be had ({lacking[0]})"
        )
    envelopes: dict[PeerId, Envelope] = {}
    for peer, data in sealed.items():
        assert isinstance(data, bytes)
        try:
            envelope = parse_envelope(data[:ENVELOPE_BYTES])
        except InvalidMessage:
            continue
        if (envelope.run, envelope.round, envelope.peer) == (run, round, peer) and verify(
            peer, envelope.signed_part, envelope.signature
        ):
            envelopes[peer] = envelope
    revealed = fetch_keys(run, round, list(envelopes.items()), sources, timeout)
    lacking = [fault.detail for fault in revealed.values() if isinstance(fault, Fault)]
    if lacking:
        raise StorageError(f"round {round}: {len(lacking)} keys of selected payloads not to be had ({lacking[0]})")
    opened: list[Opened] = []
    for peer, _ in sorted(pairs):
        update: Update | None = None
        data, reveal = sealed[peer], revealed.get(peer)
        if isinstance(data, bytes) and isinstance(reveal, bytes):
            plaintext = unseal(envelopes[peer], parse_reveal(reveal).key, data[ENVELOPE_BYTES:])
            try:
                update = ops.parse_submission(peer, round, plaintext, spec.layout).update
            except InvalidSubmission:
                update = None
        opened.append(Opened(peer, update))
    return opened
