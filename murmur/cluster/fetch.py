"""Fetching a round's objects as they are announced, in parallel with the rest of the round."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.cluster.pace import SLOWEST_BYTES
from murmur.protocol import keys
from murmur.protocol.cluster import Claim, ClusterSpec, MeanPart
from murmur.protocol.layout import DenseLayout
from murmur.protocol.types import Digest, PeerId
from storage.collect import Collection
from storage.exchange import Source, Wanted
from storage.seal import matches


def seconds_to_send(spec: ClusterSpec) -> float:
    """Return the time-out of one try to send or fetch an object."""
    return 4 * CALL_SECONDS + spec.object_bytes / SLOWEST_BYTES


@dataclass(frozen=True, slots=True)
class ClaimedSources:
    """PayloadSources of the objects claimed in a round, or of the parts of its mean."""

    ledger: Ledger
    claims: Mapping[PeerId, Claim | MeanPart]

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        """See PayloadSources. The cached object of this name may be from an earlier sealing: its digest decides there
        too."""
        ledger, claim = self.ledger, self.claims[peer]
        key = ledger.payload_key(round, peer, ledger.key_of(claim))
        name = keys.mean if isinstance(claim, MeanPart) else keys.payload
        return (Source(lambda: ledger.bucket, key, kept_as=name(run, round)),)


class PayloadFetcher:
    """Fetches objects of one round after the other into `cache`. Thread-safe. seconds: how long one may take."""

    def __init__(self, ledger: Ledger, cache: Path, seconds: float) -> None:
        self._ledger, self._cache, self._seconds = ledger, cache, seconds
        self._lock = threading.Lock()
        self._round = -1
        self._wanted = set[tuple[PeerId, Digest]]()
        self._started: list[Collection] = []

    def fetch_updates(self, spec: ClusterSpec, round: int, claims: Mapping[PeerId, Claim]) -> None:
        """Start to fetch the other members' updates claimed since the last call. None for int8, where a member reads a
        part of each, after the record."""
        if not isinstance(spec.layout, DenseLayout):
            ledger = self._ledger
            others = {member: claim for member, claim in claims.items() if member != ledger.me}
            self.fetch(round, others, dict.fromkeys(others, spec.object_bytes), seconds=self._seconds)

    def fetch(
        self,
        round: int,
        objects: Mapping[PeerId, Claim | MeanPart],
        sizes: Mapping[PeerId, int],
        seconds: float | None = None,
    ) -> None:
        """Start to fetch those of these sealed objects that are not being fetched yet. sizes: their bytes. seconds: for
        all of them; without it, as many as each may take, one after the other."""
        self._enter(round)
        with self._lock:
            new = [peer for peer, one in sorted(objects.items()) if (peer, one.envelope) not in self._wanted]
            self._wanted |= {(peer, objects[peer].envelope) for peer in new}
        if not new:
            return
        ledger = self._ledger
        sources = ClaimedSources(ledger, objects)
        wanted = [
            Wanted(peer, sources.payload(ledger.run, round, peer), sizes[peer], matches(objects[peer].envelope))
            for peer in new
        ]
        started = self._start(wanted, len(new) * self._seconds if seconds is None else seconds)
        with self._lock:
            if self._round == round:
                self._started.append(started)
                return
        started.stop()  # the round ended meanwhile

    def _start(self, wanted: Sequence[Wanted], seconds: float) -> Collection:
        time = self._ledger.time
        until = time.now() + seconds
        return Collection(
            wanted,
            seconds_left=lambda: max(0.0, until - time.now()),
            max_threads=len(wanted),
            cache=self._cache,
            time=time,
        ).start()

    def wait(self) -> None:
        """Await the started fetches, until each is done or has failed."""
        with self._lock:
            started = list(self._started)
        for one in started:
            one.outcome()

    def stop(self) -> None:
        """Stop fetching for this round."""
        self._enter(-1)

    def _enter(self, round: int) -> None:
        """Be in this round: what is fetched for another one stops."""
        with self._lock:
            if round == self._round:
                return
            old, self._started = self._started, []
            self._round, self._wanted = round, set()
        for one in old:
            one.stop()
