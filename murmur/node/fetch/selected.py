"""The pinned submissions of a selection, sealed objects and keys: all of them or none, from whoever has them; and of a
guess, those that lie whole on the disk (murmur/node/fetch/payloads.py fetches)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.opening import Opened, open_pinned, open_threads
from murmur.node.fetch.payloads import (
    Lacking,
    complete_in,
    downloads,
    fetch_keys,
    fetch_others,
    opens_envelope,
    wanted_objects,
)
from murmur.node.fetch.sources import Sources
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.protocol import keys
from murmur.protocol.errors import InvalidMessage
from murmur.protocol.messages import ENVELOPE_BYTES, REVEAL_BYTES, Envelope, parse_envelope, parse_reveal
from murmur.protocol.ports import Time, Verify
from murmur.protocol.spec import TrainingSpec
from murmur.protocol.types import Digest, PeerId
from storage.collect import first, gather
from storage.exchange import Data, FetchFault, Wanted, cached
from storage.realtime import REAL
from storage.resume import mapped
from storage.seal import matches

ASK_SECONDS = 5.0
"""So long everybody is asked at most whether it has a copy of one payload, or a key .."""
ASK_THREADS = 32
"""".. so many in parallel, .."""
ASKED_FOR = 4
""".. for so many payloads at once."""
KEY_SECONDS = 15.0
"""For all keys of a selection: they are small, and who stalls must not hold up the mirrors behind it for long."""


@dataclass(frozen=True, slots=True)
class Brought:
    """The sealed objects of pinned submissions, all of them, and the keys of those whose envelope is their own."""

    round: int
    pairs: tuple[tuple[PeerId, Digest], ...]
    sealed: Mapping[PeerId, Data]
    keys: Mapping[PeerId, bytes]

    def open(self, spec: TrainingSpec, time: Time) -> list[Opened]:
        """Open them, in PeerId order."""
        return open_pinned(spec, self.round, self.pairs, self.sealed, self.keys, time)


def bring_pinned(
    spec: TrainingSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    verify: Verify,
    seconds: Callable[[int], float],
    cache: Path | None = None,
    time: Time = REAL,
) -> Brought:
    """Bring all pinned submissions of a selection: all or nothing. `cache` as in `fetch_pinned`. Everybody is asked for
    what is neither in its owner's bucket nor in a mirror's. seconds: the time for so many payloads.

    Raises Lacking when one of them (or its key) could not be had from any source in about that time: the caller says
    so, waits and tries again; it never applies a part.
    """
    wanted, names = wanted_objects(spec, run, round, pairs, sources), downloads(run, round)
    here = complete_in(wanted, names, cache, time, open_threads(spec))
    timeout = seconds(len(wanted) - len(here))
    found: dict[PeerId, Data | FetchFault] = {**here, **fetch_others(wanted, here, timeout, cache, time)}
    lacking = [(peer, envelope) for peer, envelope in pairs if isinstance(found[peer], FetchFault)]
    copies = _copies_of_others(spec, run, round, lacking, sources, timeout, cache, time)
    sealed = _require(round, "payloads", {**found, **copies})
    envelopes = {
        peer: envelope for peer, data in sealed.items() if (envelope := _own_envelope(run, round, peer, data, verify))
    }
    timeout = min(KEY_SECONDS, seconds(1))
    revealed = dict(fetch_keys(run, round, list(envelopes.items()), sources, timeout, cache, time))
    locked = [(peer, envelope) for peer, envelope in envelopes.items() if isinstance(revealed[peer], FetchFault)]
    shown = _require(round, "keys", {**revealed, **_keys_of_others(run, round, locked, sources, time)})
    return Brought(round, tuple(pairs), sealed, {peer: parse_reveal(data).key for peer, data in shown.items()})


def gather_pinned(
    spec: TrainingSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    verify: Verify,
    seconds: Callable[[int], float],
    cache: Path | None = None,
    time: Time = REAL,
) -> list[Opened]:
    """Bring them (`bring_pinned`) and open them."""
    return bring_pinned(spec, run, round, pairs, sources, verify, seconds, cache, time).open(spec, time)


def open_whole(
    spec: TrainingSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    verify: Verify,
    cache: Path,
    time: Time = REAL,
) -> list[Opened]:
    """Open those of these submissions whose sealed object and key are whole in `cache`, and valid. Asks nobody."""
    wanted = wanted_objects(spec, run, round, pairs, None)
    sealed = complete_in(wanted, downloads(run, round), cache, time, open_threads(spec))
    shown: dict[PeerId, bytes] = {}
    for peer, data in sealed.items():
        envelope = _own_envelope(run, round, peer, data, verify)
        found = mapped(cached(cache, peer, keys.reveal(run, round)))
        if envelope is not None and found is not None and opens_envelope(envelope)(found):
            shown[peer] = parse_reveal(found).key
    here = [pair for pair in pairs if pair[0] in shown]
    return [each for each in open_pinned(spec, round, here, sealed, shown, time) if each.update is not None]


def is_whole(run: Digest, round: int, peer: PeerId, cache: Path) -> bool:
    """Whether a sealed object and a key of this peer lie in `cache`, whatever they are."""
    return all(cached(cache, peer, key(run, round)).exists() for key in (keys.payload, keys.reveal))


def who_shows(
    run: Digest,
    round: int,
    peer: PeerId,
    envelope: Digest,
    size_bytes: int,
    asked: Sequence[PeerId],
    sources: Sources,
    seconds: float,
    time: Time = REAL,
) -> list[PeerId]:
    """Return the sources that show, within `seconds`, a copy of this size that begins with the pinned envelope. The
    rest may be anything: only whoever reads all of it knows."""
    key = keys.mirror(run, round, peer)
    found = gather(
        [
            Wanted(
                one,
                sources.own(one, key),
                size_bytes,
                lambda data: sha256(data).digest() == envelope,
                part=(0, ENVELOPE_BYTES),
            )
            for one in asked
        ],
        timeout_seconds=seconds,
        max_threads=ASK_THREADS,
        time=time,
    )
    return [one for one in asked if not isinstance(found[one], FetchFault)]


def _copies_of_others(
    spec: TrainingSpec,
    run: Digest,
    round: int,
    pairs: Sequence[tuple[PeerId, Digest]],
    sources: Sources,
    timeout: float,
    cache: Path | None,
    time: Time,
) -> Mapping[PeerId, Data | FetchFault]:
    """Fetch payloads that neither their owner's bucket nor a mirror has, from other peers that published a copy."""
    others = sources.others()

    def shown(pair: tuple[PeerId, Digest]) -> Wanted:
        peer, envelope = pair
        key, size = keys.mirror(run, round, peer), spec.object_bytes
        showing = who_shows(run, round, peer, envelope, size, others, sources, ASK_SECONDS, time)
        # Another one first in every try: who shows a copy and does not give it must not hold us up for ever.
        turn = int(time.now()) % len(showing) if showing else 0
        places = [source for one in (*showing[turn:], *showing[:turn]) for source in sources.own(one, key)]
        return Wanted(peer, tuple(places), size, matches(envelope))

    wanted = [item for item in parallel_map(shown, pairs, ASKED_FOR, time) if item.sources]
    return gather(wanted, timeout_seconds=timeout, max_threads=FETCH_THREADS, cache=cache, time=time)


def _keys_of_others(
    run: Digest, round: int, envelopes: Sequence[tuple[PeerId, Envelope]], sources: Sources, time: Time
) -> Mapping[PeerId, Data]:
    """Keys that neither their owner's bucket nor a mirror has, from other peers that published one."""
    others = sources.others()

    def given(pair: tuple[PeerId, Envelope]) -> tuple[PeerId, Data] | None:
        peer, envelope = pair
        key, opens = keys.mirror_reveal(run, round, peer), opens_envelope(envelope)
        wanted = [Wanted(one, sources.own(one, key), REVEAL_BYTES, opens) for one in others]
        found = first(wanted, timeout_seconds=ASK_SECONDS, max_threads=ASK_THREADS, time=time)
        return None if found is None else (peer, found[1])

    return dict(found for found in parallel_map(given, envelopes, ASKED_FOR, time) if found is not None)


def _own_envelope(run: Digest, round: int, peer: PeerId, data: Data, verify: Verify) -> Envelope | None:
    """Return the envelope of a sealed object that this peer has signed for this round; None for any other."""
    try:
        envelope = parse_envelope(data[:ENVELOPE_BYTES])
    except InvalidMessage:
        return None
    is_own = (envelope.run, envelope.round, envelope.peer) == (run, round, peer)
    return envelope if is_own and verify(peer, envelope.signed_part, envelope.signature) else None


def _require(round: int, what: str, found: Mapping[PeerId, Data | FetchFault]) -> dict[PeerId, Data]:
    """Return what was found. Raises Lacking unless all is there."""
    lacking = {peer: fault for peer, fault in found.items() if isinstance(fault, FetchFault)}
    if lacking:
        detail = next(iter(lacking.values())).detail
        told = f"round {round}: {len(lacking)} of {len(found)} selected {what} could not be fetched ({detail})"
        raise Lacking(round, list(lacking), told)
    return {peer: data for peer, data in found.items() if not isinstance(data, FetchFault)}
