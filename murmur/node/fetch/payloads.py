"""Getting the pinned submissions of a round: any source will do, the digest on chain decides.

A submission is pinned by sha256(envelope) on chain; the envelope pins the ciphertext (Merkle root) and the key (its
hash). So the miner's own bucket, a validator's mirror or any other copy are equally good (docs/protocol.md 4, 8).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.opening import open_threads
from murmur.node.fetch.room import room_for_downloads
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS, KEY_THREADS, PREFETCH_THREADS, parallel_fetches
from murmur.protocol import keys
from murmur.protocol.errors import InvalidMessage, StorageError
from murmur.protocol.messages import ENVELOPE_BYTES, REVEAL_BYTES, Envelope, parse_envelope, parse_reveal
from murmur.protocol.ports import Time, Verify
from murmur.protocol.spec import RunSpec, TrainingSpec
from murmur.protocol.types import Digest, PeerId
from sparseloco.wire import plaintext_bytes
from storage.collect import Collection, gather
from storage.exchange import Data, FetchFault, Source, Wanted, cached
from storage.realtime import REAL, seconds_until
from storage.resume import Opening, mapped
from storage.seal import matches, signed_by


class Lacking(StorageError):
    """No bucket that we can read has the payloads of these `peers` of `round`."""

    def __init__(self, round: int, peers: Sequence[PeerId], what: str) -> None:
        super().__init__(what)
        self.round, self.peers = round, tuple(peers)


class PayloadSources(Protocol):
    """Where sealed objects may be."""

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]: ...


def fetch_pinned(
    spec: TrainingSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: PayloadSources,
    timeout: float,
    cache: Path | None = None,
    time: Time = REAL,
) -> Mapping[PeerId, Data | FetchFault]:
    """Sealed objects of the pinned submissions (int8: of the parts of their mean); a Fault for each that no source had
    within `timeout` seconds. A payload that is complete in `cache` counts, even if its peer is no longer registered."""
    return _gather(
        wanted_objects(spec, run, round, pairs, sources),
        downloads(run, round),
        timeout,
        cache,
        time,
        open_threads(spec),
    )


Names = Callable[[PeerId], tuple[str, ...]]
"""Of a peer's object: its key in the peer's own bucket, in a mirror's, and a part of a mean's name."""


def downloads(run: Digest, round: int) -> Names:
    """Of the round's sealed objects."""
    return lambda peer: (keys.payload(run, round), keys.mirror(run, round, peer), keys.mean(run, round))


def _gather(
    wanted: Sequence[Wanted], names: Names, timeout: float, cache: Path | None, time: Time, threads: int
) -> dict[PeerId, Data | FetchFault]:
    """Return the payloads that are complete in `cache`; fetch the others into `cache` from their sources."""
    here = complete_in(wanted, names, cache, time, threads)
    return {**here, **fetch_others(wanted, here, timeout, cache, time)}


def complete_in(
    wanted: Sequence[Wanted], names: Names, cache: Path | None, time: Time, threads: int
) -> dict[PeerId, Data]:
    """Return the payloads that are complete in `cache`. Asks nobody."""

    def look(item: Wanted) -> memoryview | None:
        found = (mapped(cached(cache, item.peer, name)) for name in names(item.peer)) if cache is not None else ()
        return next((d for d in found if d is not None and len(d) == item.size and item.accept(d)), None)

    looked = parallel_map(look, wanted, threads, time)
    return {item.peer: data for item, data in zip(wanted, looked, strict=True) if data is not None}


def fetch_others(
    wanted: Sequence[Wanted], here: Mapping[PeerId, Data], timeout: float, cache: Path | None, time: Time
) -> Mapping[PeerId, Data | FetchFault]:
    """Fetch those that are not here."""
    rest = [item for item in wanted if item.peer not in here]
    return gather(rest, timeout_seconds=timeout, max_threads=FETCH_THREADS, cache=cache, time=time)


def collect_pinned(
    spec: RunSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    verify: Verify,
    *,
    seconds_left: Callable[[], float],
    cache: Path,
    time: Time = REAL,
) -> Collection:
    """Begin to fetch what many peers committed to, in this order (best first), into `cache` and no further than its
    disk has room: those at the end may be left out. What has come is a view of a file: nobody's garbage fills our
    memory. Of an object whose envelope is not the one committed to, or not this peer's own, nothing but that is read:
    others may point to what one has left, and commit to it. Only the peers' own buckets are asked: mirrors have nothing
    before the reveal deadline."""
    key = keys.payload(run, round)
    sealed = [
        replace(item, sources=sources.own(item.peer, key)) for item in wanted_objects(spec, run, round, pairs, sources)
    ]
    return Collection(
        [_envelope_first(item, envelope, verify) for item, (_, envelope) in zip(sealed, pairs, strict=True)],
        seconds_left=seconds_left,
        max_threads=parallel_fetches(spec.gauntlet.contributors),
        lasting=True,
        cache=cache,
        room=room_for_downloads(spec, "validator", cache),
        time=time,
    ).start()


def _envelope_first(item: Wanted, committed: Digest | None, verify: Verify) -> Wanted:
    """Of this object, the rest is wanted where it begins with the envelope that its peer has signed and committed to;
    only signed, if it has committed to none yet. A committed beginning that is not the peer's own is enough for the
    checks: they refuse it whatever follows."""

    def own(head: Data) -> bool:
        try:
            envelope = parse_envelope(head)
        except InvalidMessage:
            return False
        return envelope.peer == item.peer and verify(item.peer, envelope.signed_part, envelope.signature)

    def pinned(head: Data) -> bool:
        return committed is None or sha256(head).digest() == committed

    def accept(data: Data) -> bool:
        if len(data) == ENVELOPE_BYTES:
            return committed is not None and pinned(data) and not own(data)
        return item.accept(data)

    return replace(item, opening=Opening(ENVELOPE_BYTES, lambda head: pinned(head) and own(head)), accept=accept)


def collect_keys(
    run: Digest,
    round: int,
    peers: Sequence[PeerId],
    sources: Sources,
    verify: Verify,
    *,
    seconds_left: Callable[[], float],
    cache: Path,
    time: Time = REAL,
) -> dict[PeerId, bytes]:
    """Keys as they appear, in this order (best first), until all are there or no time is left. Only what the peer has
    signed for this round counts, and only from its own bucket: mirrors have nothing before the reveal deadline, and
    asking them too would cost the others their turn. They are left in `cache`: whoever names the peer has to open it,
    and may be killed while the peer leaves."""

    key = keys.reveal(run, round)
    wanted = [Wanted(p, sources.own(p, key), REVEAL_BYTES, _key_of(run, round, p, verify)) for p in peers]
    found = Collection(
        wanted, seconds_left=seconds_left, max_threads=KEY_THREADS, lasting=True, cache=cache, time=time
    ).run()
    return {peer: bytes(data) for peer, data in found.items() if not isinstance(data, FetchFault)}


def _key_of(run: Digest, round: int, peer: PeerId, verify: Verify) -> Callable[[Data], bool]:
    """Whether it is what this peer has signed as its key of this round."""

    def accept(data: Data) -> bool:
        try:
            reveal = parse_reveal(data)
        except InvalidMessage:
            return False
        meant = (reveal.run, reveal.round, reveal.peer) == (run, round, peer)
        return meant and verify(peer, reveal.signed_part, reveal.signature)

    return accept


def wanted_objects(
    spec: TrainingSpec, run: Digest, round: int, pairs: Sequence[tuple[PeerId, Digest]], sources: PayloadSources | None
) -> list[Wanted]:
    """pairs: all of the round, where each has a layout of its own. sources: None for what has to be here."""
    layouts = [spec.layout.part(at, len(pairs)) for at in range(len(pairs))]
    sizes = [ENVELOPE_BYTES + plaintext_bytes(layout) + spec.trace.num_bytes for layout in layouts]
    return [
        Wanted(peer, () if sources is None else sources.payload(run, round, peer), size, matches(envelope))
        for (peer, envelope), size in zip(pairs, sizes, strict=True)
    ]


def prefetch(
    spec: RunSpec,
    run: Digest,
    round: int,
    promised: Mapping[PeerId, Digest | None],
    sources: Sources,
    verify: Verify,
    timeout: float,
    cache: Path,
    ended: Callable[[], None],
    time: Time = REAL,
) -> Collection:
    """Begin to fetch sealed objects that may be selected, from their own buckets: nobody mirrors them yet. At most as
    many as a round may select and keep in reserve, each of exactly the size that the spec says. It is miners that fetch
    ahead. promised: whose, and the digest of its envelope where it has committed by now; what it has signed for the
    round where it has not."""
    until = time.now() + timeout
    wanted = [
        _envelope_first(
            Wanted(
                peer,
                own,
                spec.object_bytes,
                signed_by(peer, run, round, verify) if envelope is None else matches(envelope),
            ),
            envelope,
            verify,
        )
        for peer, envelope in promised.items()
        if (own := sources.own(peer, keys.payload(run, round)))
    ]
    return Collection(
        wanted[: spec.gauntlet.contributors + spec.gauntlet.reserve],
        seconds_left=lambda: seconds_until(until, time),
        max_threads=PREFETCH_THREADS,
        cache=cache,
        room=room_for_downloads(spec, "miner", cache),
        time=time,
    ).start(ended)


def prefetch_keys(
    run: Digest,
    round: int,
    peers: Sequence[PeerId],
    sources: Sources,
    verify: Verify,
    seconds: float,
    cache: Path,
    time: Time = REAL,
) -> Collection:
    """Begin to fetch the keys of these peers, from their own buckets, as they appear within `seconds`."""
    until, key = time.now() + seconds, keys.reveal(run, round)
    return Collection(
        [
            Wanted(peer, own, REVEAL_BYTES, _key_of(run, round, peer, verify))
            for peer in peers
            if (own := sources.own(peer, key))
        ],
        seconds_left=lambda: seconds_until(until, time),
        max_threads=KEY_THREADS,
        lasting=True,
        cache=cache,
        time=time,
    ).start()


def fetch_keys(
    run: Digest,
    round: int,
    envelopes: Sequence[tuple[PeerId, Envelope]],
    sources: Sources,
    timeout: float,
    cache: Path | None = None,
    time: Time = REAL,
) -> Mapping[PeerId, Data | FetchFault]:
    """Reveals whose key hashes to the envelope's key_hash. Signatures do not matter: the envelope pins the key. `cache`
    as in `fetch_pinned`."""

    wanted = [
        Wanted(p, sources.reveal(run, round, p), REVEAL_BYTES, opens_envelope(envelope)) for p, envelope in envelopes
    ]
    names: Names = lambda peer: (keys.reveal(run, round), keys.mirror_reveal(run, round, peer))  # noqa: E731
    return _gather(wanted, names, timeout, cache, time, 1)


def opens_envelope(envelope: Envelope) -> Callable[[Data], bool]:
    def accept(data: Data) -> bool:
        try:
            return sha256(parse_reveal(data).key).digest() == envelope.key_hash
        except InvalidMessage:
            return False

    return accept
