"""Parts of a round's mean (int8): each contributor sums one part of all payloads, and everybody reads the sums.

A member thus moves two payloads up and down in all, however many members there are. Of the others' payloads it reads
its own part: the blocks of 256 KiB in which that lies, each checked by itself. A part is sealed like a payload, and its
owner's pointer to it is created once. Another member may make it: the result is the same (sparseloco/dense.py).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256

from loguru import logger

from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ledger import Ledger
from murmur.node.fetch.opening import open_threads
from murmur.node.fetch.payloads import Lacking
from murmur.node.fetch.threads import FETCH_THREADS
from murmur.node.state.node_state import NodeState
from murmur.protocol import keys
from murmur.protocol.cluster import Contribution, MeanPart, Record
from murmur.protocol.errors import ConfigError, InvalidMessage, InvalidSubmission
from murmur.protocol.layout import DenseLayout
from murmur.protocol.merkle import leaf
from murmur.protocol.messages import ENVELOPE_BYTES, Envelope
from murmur.protocol.types import DIGEST_BYTES, SIGNATURE_BYTES, Digest, PeerId
from sparseloco import ops
from sparseloco.update import Update
from storage.collect import gather
from storage.exchange import Data, FetchFault, Source, Wanted, cached
from storage.resume import keep, mapped
from storage.seal import BLOCK_BYTES, blocks, blocks_of, parse_blocks, seal, unseal_from

PIECE_BYTES = 64 << 20
"""Of each payload, at most so much is in memory at a time."""


class MeanMaker:
    """Makes parts of means for a run's members. `seconds`: how long the payloads of one request may take."""

    def __init__(self, ledger: Ledger, state: NodeState, layout: DenseLayout, seconds: float) -> None:
        self._ledger, self._state, self._layout, self._seconds = ledger, state, layout, seconds
        self._published = Digest(b""), b""
        """Our last sealed object's digest, and what we have published of its blocks."""

    def publish_blocks(self, round: int, object: Digest, key: bytes) -> None:
        """Publish what lets others read parts of our sealed update, which is saved under the digest `object`."""
        ledger, data = self._ledger, self._state.store.read(object)
        found = blocks_of(data, ledger.group.signer(ledger.me), open_threads(self._state.first))
        self._published = object, found
        ledger.bucket.put(keys.blocks(ledger.payload_key(round, ledger.me, key)), found, timeout_seconds=CALL_SECONDS)

    def make(
        self,
        round: int,
        record: Record,
        owner: PeerId,
        on_piece: Callable[[], None],
        without: Collection[PeerId] = (),
        lost: MeanPart | None = None,
    ) -> None:
        """Sum this contributor's part, upload it, and point to it. on_piece: called after each piece. without: members
        whose payloads count as zeros if they cannot be read. lost: what is pointed to, but gone: it is made again, to
        the same bytes if the same payloads are there. Raises Lacking, StorageError."""
        owners = [update.member for update in record.updates]
        index, count = owners.index(owner), len(owners)
        parts = self._layout.parts(count)
        first = sum(part.records_bytes for part in parts[:index])
        payloads = self._payloads(round, record, without)
        plaintext = bytearray(record.theta)
        for piece in _pieces(parts[index]):
            updates = self._read(round, payloads, first + len(plaintext) - DIGEST_BYTES, piece, without)
            plaintext += ops.dense_mean(updates, piece).records
            on_piece()
        self._show(round, record, owner, bytes(plaintext), lost)

    def _show(self, round: int, record: Record, owner: PeerId, plaintext: bytes, lost: MeanPart | None) -> None:
        ledger = self._ledger
        sealing = partial(seal, plaintext, run=ledger.run, round=round, signer=ledger.group.signer(owner))
        sealed = sealing(key=ledger.key_of(lost) if lost is not None else None)
        same = lost is not None and sealed.digest == lost.envelope
        if lost is not None and not same:
            sealed = sealing()  # a key opens one object only
        ledger.bucket.put(ledger.payload_key(round, owner, sealed.key), sealed.object, timeout_seconds=self._seconds)
        with suppress(ConfigError):  # this disk is full: then it is fetched
            keep(cached(self._state.cache, owner, keys.mean(ledger.run, round)), sealed.object)
        if not same:
            wrapped = ledger.group.wrap(sealed.key, sealed.digest).hex()
            part = MeanPart(record=record.link(ledger.run, round), envelope=sealed.digest, key=wrapped)
            ledger.create_part(round, owner, part, replace=lost is not None)
        if owner != ledger.me:
            logger.info("round {round}: summed the part of {owner}", round=round, owner=owner.hex()[:8])

    def _payloads(self, round: int, record: Record, without: Collection[PeerId]) -> "list[_Payload | None]":
        """Return what reads each update of the record; None for one that is lost and left out. Raises Lacking."""
        ledger, opened = self._ledger, self._own(round, record)
        num_blocks = -(-self._plaintext_bytes // BLOCK_BYTES)

        def wanted(update: Contribution) -> Wanted:
            key = ledger.key_of(update)
            place = ledger.payload_key(round, update.member, key)

            def accept(data: Data) -> bool:
                try:
                    envelope, leaves = parse_blocks(bytes(data), update.envelope, update.member, ledger.group.verify)
                except InvalidMessage:
                    return False
                source = Source(lambda: ledger.bucket, place)
                opened[update.member] = _Payload(update.member, envelope, key, self._plaintext_bytes, source, leaves)
                return len(leaves) == num_blocks

            size = ENVELOPE_BYTES + SIGNATURE_BYTES + DIGEST_BYTES * num_blocks
            return Wanted(update.member, (Source(lambda: ledger.bucket, keys.blocks(place)),), size, accept)

        found = self._gather([wanted(update) for update in record.updates if update.member not in opened])
        _require(round, found, without)
        if lost := [peer.hex()[:8] for peer, one in found.items() if isinstance(one, FetchFault)]:
            told = (
                "round {round}: the updates of {members} are lost for good, and count as zeros in this part of the mean"
            )
            logger.warning(told, round=round, members=", ".join(lost))
        return [None if isinstance(found.get(peer), FetchFault) else opened[peer] for peer in record.claims]

    def _own(self, round: int, record: Record) -> "dict[PeerId, _Payload]":
        """Return our own update if the record names it and it lies on this disk since it was published."""
        ledger, sealed, (object, published) = self._ledger, self._state.saved.sealed, self._published
        update = record.claims.get(ledger.me)
        if update is None or sealed is None or (sealed.round, sealed.object) != (round, object):
            return {}
        data = mapped(self._state.store.path(object))
        try:
            envelope, leaves = parse_blocks(published, update.envelope, ledger.me, ledger.group.verify)
        except InvalidMessage:
            return {}
        source = Source(lambda: ledger.bucket, ledger.payload_key(round, ledger.me, sealed.key))
        found = _Payload(ledger.me, envelope, sealed.key, self._plaintext_bytes, source, leaves)
        found.here = data[ENVELOPE_BYTES:] if data is not None else None
        return {ledger.me: found}

    def _read(
        self,
        round: int,
        payloads: "Sequence[_Payload | None]",
        first: int,
        piece: DenseLayout,
        without: Collection[PeerId],
    ) -> list[Update | None]:
        """Return each payload's piece, whose records begin at byte `first` of all; None for one that does not parse."""
        found = self._gather([wanted for one in payloads if one and (wanted := one.wanted(first, piece)) is not None])
        _require(round, found, without)
        return [
            one.update(first, piece) if one is not None and not isinstance(found.get(one.peer), FetchFault) else None
            for one in payloads
        ]

    def _gather(self, wanted: Sequence[Wanted]) -> Mapping[PeerId, Data | FetchFault]:
        if not wanted:
            return {}
        return gather(wanted, timeout_seconds=self._seconds, max_threads=FETCH_THREADS, time=self._ledger.time)

    @property
    def _plaintext_bytes(self) -> int:
        return DIGEST_BYTES + self._layout.records_bytes


class _Payload:
    """A sealed update that is read block after block, in order."""

    def __init__(
        self,
        peer: PeerId,
        envelope: Envelope,
        key: bytes,
        plaintext_bytes: int,
        source: Source,
        leaves: Sequence[bytes],
    ) -> None:
        self.peer, self._envelope, self._key, self._source, self._leaves = peer, envelope, key, source, leaves
        self._bytes = plaintext_bytes
        self._opens = sha256(key).digest() == envelope.key_hash
        self.here: memoryview | None = None
        """Its ciphertext, where that is on this disk."""
        self._have: dict[int, memoryview] = {}
        """Blocks in clear."""

    def wanted(self, first: int, piece: DenseLayout) -> Wanted | None:
        """Return the request for the blocks that the piece needs and that are not here."""
        needed = _blocks(first, piece) if self._opens else range(0)
        self._have = {at: data for at, data in self._have.items() if at in needed}
        missing = [at for at in needed if at not in self._have]
        if not missing:
            return None
        begin, end = missing[0] * BLOCK_BYTES, min((missing[-1] + 1) * BLOCK_BYTES, self._bytes)

        def accept(data: Data) -> bool:
            if len(data) != end - begin:
                return False
            read = list(zip(missing, blocks(data), strict=True))
            if any(leaf(block) != self._leaves[at] for at, block in read):
                return False
            for at, block in read:
                self._have[at] = unseal_from(at * BLOCK_BYTES, self._envelope, self._key, block)
            return True

        if self.here is not None and accept(self.here[begin:end]):
            return None
        part = ENVELOPE_BYTES + begin, end - begin
        return Wanted(self.peer, (self._source,), ENVELOPE_BYTES + self._bytes, accept, part=part)

    def update(self, first: int, piece: DenseLayout) -> Update | None:
        """Return the update within the piece; None if it does not parse."""
        if not self._opens:
            return None
        needed = _blocks(first, piece)
        data = b"".join(self._have[at] for at in needed)
        begin = first - needed[0] * BLOCK_BYTES
        try:  # the parser skips as many bytes as a plaintext's digest has: those before the piece's records
            return ops.parse(memoryview(data)[begin : begin + DIGEST_BYTES + piece.records_bytes], piece)
        except InvalidSubmission:
            return None


def _pieces(part: DenseLayout) -> Iterator[DenseLayout]:
    """Yield the part's layout in pieces of about PIECE_BYTES, in order; none for an empty one."""
    if part.num_chunks:
        yield from part.parts(-(-part.records_bytes // PIECE_BYTES))


def _blocks(first: int, piece: DenseLayout) -> range:
    """Return the blocks of a plaintext in which the piece's records lie, and as many bytes before them as its digest
    has. first: of all records' bytes."""
    end = first + DIGEST_BYTES + piece.records_bytes
    return range(first // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def _require(round: int, found: Mapping[PeerId, Data | FetchFault], without: Collection[PeerId]) -> None:
    lacking = {peer: one for peer, one in found.items() if isinstance(one, FetchFault) and peer not in without}
    if lacking:
        detail = next(iter(lacking.values())).detail
        told = f"round {round}: {len(lacking)} of {len(found)} payloads could not be read ({detail})"
        raise Lacking(round, list(lacking), told)
