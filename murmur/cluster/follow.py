"""What a round comes to: its record's updates are fetched and applied."""

from collections.abc import Mapping
from hashlib import sha256

from loguru import logger

from gauntlet.agreement import Agreed
from murmur.cluster.fetch import ClaimedSources, PayloadFetcher
from murmur.cluster.ledger import Ledger
from murmur.cluster.mean import MeanRound
from murmur.cluster.on_disk import OnDisk
from murmur.node.fetch.opening import open_pinned
from murmur.node.fetch.payloads import Lacking, fetch_pinned
from murmur.node.state.node_state import NodeState
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.cluster import Claim, ClusterSpec, MeanPart, Record
from murmur.protocol.errors import CheckpointCorrupt, OutOfSync
from murmur.protocol.messages import ENVELOPE_BYTES
from murmur.protocol.types import Digest, PeerId
from storage.exchange import Data, FetchFault


class Follower:
    """Applies records to one member's state. log: the last records on our disk. mean: in the int8 exchange. seconds:
    time-out of one try to fetch an object."""

    def __init__(
        self,
        ledger: Ledger,
        state: NodeState,
        log: OnDisk[Record],
        fetcher: PayloadFetcher,
        mean: MeanRound | None,
        seconds: float,
    ) -> None:
        self._ledger, self._state, self._log, self._fetcher = ledger, state, log, fetcher
        self._mean, self._seconds = mean, seconds

    def apply(self, round: int, spec: ClusterSpec, record: Record) -> bool:
        """Apply the outer step of this record. Return whether our update, which it lacks, is in the error feedback
        again. Raises OutOfSync if it does not follow from our state, Lacking, and
        StorageError."""
        state, me, state_ref = self._state, self._ledger.me, self._state.ref
        if (state.saved.round, *state_ref) != (round, record.theta, record.previous):
            raise OutOfSync(f"the record of round {round} does not follow from our state")
        with state.timeline.begin("wait"):
            self._fetcher.wait()
        self._log.keep(round, record, oldest=round - spec.cluster.keep_rounds + 1)
        contributing = [update.member for update in record.updates]
        # What every value is sent of leaves nothing to carry over: an update that comes too late is lost.
        mine = None if self._mean is not None or self._is_in(round, record) else state.own_update(round)
        state.link_own_payload(me, round)
        with state.timeline.begin("download") as download:
            pinned, pairs, sealed = self._fetched(round, spec, record)
        with state.timeline.begin("apply") as apply:
            shown = {peer: self._ledger.key_of(one) for peer, one in pinned.items()}
            opened = open_pinned(spec, round, pairs, sealed, shown, self._ledger.time)
            agreed = Agreed(state_ref, record.selection(self._ledger.run, round), 0)
            state.apply(round, spec, agreed, opened, mine)
        self._fetcher.stop()
        state.events.emit(
            "applied",
            round,
            void=False,
            contributing=[peer.hex() for peer in contributing],
            theta=state_ref.theta.hex(),
            decided=None,
            after=None,
            guess=None,
            seconds={"download": round_seconds(download.seconds), "apply": round_seconds(apply.seconds)},
        )
        if mine is not None:
            state.events.emit("update_returned", round)
        logger.info(
            "round {round}: {count} contributed, {ours}",
            round=round,
            count=len(contributing),
            ours="we among them" if me in contributing else "without us",
        )
        return mine is not None

    def _is_in(self, round: int, record: Record) -> bool:
        """Whether the record has our update, and no other one that was claimed as ours."""
        sealed, claim = self._state.saved.sealed, record.claims.get(self._ledger.me)
        if claim is None or sealed is None or sealed.round != round:
            return claim is not None
        try:
            head = self._state.store.read_head(sealed.object, ENVELOPE_BYTES)
        except (OSError, CheckpointCorrupt):
            return True
        return sha256(head).digest() == claim.envelope

    def _fetched(
        self, round: int, spec: ClusterSpec, record: Record
    ) -> tuple[Mapping[PeerId, Claim | MeanPart], list[tuple[PeerId, Digest]], dict[PeerId, Data]]:
        """Return what the record pins, with the sealed objects. Raises Lacking, StorageError."""
        if self._mean is None:
            return record.claims, *self._gather(round, spec, record.claims)
        parts = self._mean.parts(round, record)
        try:
            return parts, *self._gather(round, spec, parts)
        except Lacking as fault:
            self._mean.make_again(round, record, {peer: parts[peer] for peer in fault.peers})
            raise

    def _gather(
        self, round: int, spec: ClusterSpec, pinned: Mapping[PeerId, Claim | MeanPart]
    ) -> tuple[list[tuple[PeerId, Digest]], dict[PeerId, Data]]:
        """The sealed objects that are pinned, with their digests: all of them, or Lacking is raised."""
        pairs = [(peer, one.envelope) for peer, one in sorted(pinned.items())]
        seconds, cache, sources = len(pairs) * self._seconds, self._state.cache, ClaimedSources(self._ledger, pinned)
        found = fetch_pinned(spec, self._ledger.run, round, pairs, sources, seconds, cache, self._ledger.time)
        lacking = [peer for peer, data in found.items() if isinstance(data, FetchFault)]
        if lacking:
            told = f"round {round}: {len(lacking)} of {len(pairs)} payloads could not be fetched"
            raise Lacking(round, lacking, told)
        return pairs, {peer: data for peer, data in found.items() if not isinstance(data, FetchFault)}
