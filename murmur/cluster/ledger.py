"""A cluster's bucket as its members use it: beats, claims and records, and every member's own part.

An object that is no document of this group is ignored: it is logged once, and members continue to wait.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TypeVar

from loguru import logger

from murmur.cluster.deletion import delete_before
from murmur.cluster.group_keys import Group
from murmur.node.fetch.concurrency import parallel_map
from murmur.node.fetch.payloads import Lacking, PayloadSources
from murmur.node.sync.checkpoints import DOCUMENT_MAX_BYTES as DOCUMENT_BYTES
from murmur.node.sync.checkpoints import Shown, parse_shown
from murmur.node.sync.repair_requests import DOCUMENT_MAX_BYTES, Place, encode_wanted, parse_wanted
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Amendment, Beat, Claim, Drain, MeanPart, Record
from murmur.protocol.errors import InvalidMessage, ObjectMissing, ObjectTooLarge, StorageError
from murmur.protocol.messages import NO_ROUND
from murmur.protocol.ports import Time
from murmur.protocol.types import DIGEST_BYTES, MAX_UIDS, Digest, PeerId
from storage.exchange import Source
from storage.prefixed import PrefixedBucket
from storage.s3 import CREATE_BYTES, RangedBucket

CALL_SECONDS = 15.0
"""Time-out of one call of the store."""
LOOK_THREADS = 8
_BEAT_BYTES = 4096
_MOST_ROUNDS = 1 << 32
"""No run has more: a store that shows any record that we ask for must not keep us searching."""

T = TypeVar("T")


class UnreadableRecord(Lacking):
    """The object in a record's place is no record of this group. Members that have the record replace it."""


class Ledger:
    """One member's view of its cluster's documents. Thread-safe; each call raises StorageError."""

    def __init__(self, bucket: RangedBucket, run: Digest, group: Group, me: PeerId, time: Time) -> None:
        self.bucket, self.run, self.group, self.me, self.time = bucket, run, group, me, time
        self._claims: dict[tuple[int, PeerId], Claim] = {}
        self._own: tuple[int, Claim] | None = None
        """Our last claim: it may replace one that we have read before."""
        self._strange: set[str] = set()

    def part(self, member: PeerId) -> PrefixedBucket:
        """Return this member's own part of the bucket, where it can test the store."""
        return PrefixedBucket(self.bucket, keys.member(self.run, member))

    # --- payloads ----------------------------------------------------------------------------------------------

    def payload_key(self, round: int, member: PeerId, key: bytes) -> str:
        """Return the bucket's key of a member's object of this round that the sealing key `key` opens."""
        return keys.members_payload(self.run, round, member, sha256(key).digest())

    def abort_unfinished(self, round: int) -> None:
        """Abort our unfinished uploads of the round."""
        prefix = f"{keys.payload(self.run, round)}/{self.me.hex()}/"
        self.bucket.abort_unfinished(prefix, timeout_seconds=CALL_SECONDS)

    def key_of(self, claim: Claim | MeanPart) -> bytes:
        """Return the key that opens the object."""
        return self.group.wrap(bytes.fromhex(claim.key), claim.envelope)

    def payloads(self, claims: Mapping[PeerId, Claim | MeanPart]) -> PayloadSources:
        """Return the sources of the claimed objects, or of the parts of the round's mean."""
        return _Claimed(self, claims)

    def want(self, places: Collection[Place]) -> None:
        """Publish which payloads and records we lack; replaces the earlier list."""
        key = keys.wanted_by(self.run) + self.me.hex()
        if places:
            data = encode_wanted(places, self.run, self.group.signer(self.me))
            self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)
        else:
            self.bucket.delete(key, timeout_seconds=CALL_SECONDS)

    def wanted(self) -> dict[PeerId, frozenset[Place]]:
        """Return the list of lacked places of each other member."""
        prefix = keys.wanted_by(self.run)

        def read(member: PeerId) -> frozenset[Place] | None:
            return self._read(
                prefix + member.hex(),
                DOCUMENT_MAX_BYTES,
                lambda data: parse_wanted(data, self.run, member, self.group.verify),
            )

        return self._read_in_parallel(read, [member for member in self._listed(prefix) if member != self.me])

    # --- records -----------------------------------------------------------------------------------------------

    def record(self, round: int) -> Record | None:
        """Return the round's record; None while the round is open. Raises StorageError; UnreadableRecord for an object
        that is no record of this group: then no member can close the round."""
        key = keys.record(self.run, round)
        try:
            data = self.bucket.get(key, max_bytes=CREATE_BYTES, timeout_seconds=CALL_SECONDS)
            return Record.parse(data, self.run, round, GROUP, self.group.verify)
        except ObjectMissing:
            return None
        except (InvalidMessage, ObjectTooLarge) as fault:
            raise UnreadableRecord(
                round,
                [GROUP],
                f"the record of round {round} ({key}) was not written by this group ({fault}): the token belongs to "
                "another group, the release differs, or the store has damaged it. If no member puts it back, delete "
                "this object",
            ) from None

    def require_record(self, round: int) -> None:
        """Raises Lacking where the store does not show a record from which others have gone on."""
        if self.record(round) is None:
            raise Lacking(round, [GROUP], f"the store has lost the record of round {round}")

    def rounds(self) -> int:
        """Return how many rounds have ended: the first one without a record. Records are never deleted, so it is found
        by doubling, then halving. Raises StorageError."""

        def ended(round: int) -> bool:
            return self.bucket.head(keys.record(self.run, round), timeout_seconds=CALL_SECONDS) is not None

        high = 1
        while ended(high - 1):
            high *= 2
            if high > _MOST_ROUNDS:
                raise StorageError(f"the store shows a record of round {high // 2 - 1}: no run reaches that")
        low = high // 2
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ended(middle - 1) else (low, middle)
        return low

    def closed_at(self, round: int) -> float | None:
        """Return when the round's record was written, in Unix seconds of the store's clock; None without a record. It
        is for people."""
        facts = self.bucket.head(keys.record(self.run, round), timeout_seconds=CALL_SECONDS)
        return facts.modified if facts is not None else None

    def create(self, round: int, record: Record) -> bool:
        """Close the round with this record, unless it is closed already. Return whether this is its record now."""
        data = record.encode(self.run, round, self.group.signer())
        return self.bucket.create(keys.record(self.run, round), data, timeout_seconds=CALL_SECONDS)

    def restore(self, round: int, record: Record) -> None:
        """Put back a record that we have applied, if the store has lost or damaged it."""
        try:
            if self.record(round) is None:
                self.create(round, record)
        except UnreadableRecord:
            data = record.encode(self.run, round, self.group.signer())
            self.bucket.put(keys.record(self.run, round), data, timeout_seconds=CALL_SECONDS)

    # --- parts of a round's mean -------------------------------------------------------------------------------

    def mean_parts(self, round: int, link: Digest, owners: Collection[PeerId]) -> dict[PeerId, MeanPart]:
        """Return the parts that are there, of these owners, of the mean of the record with this link."""

        def read(owner: PeerId) -> MeanPart | None:
            found = self._read(
                keys.mean_part(self.run, round, owner, link),
                _BEAT_BYTES,
                lambda data: MeanPart.parse(data, self.run, round, owner, self.group.verify),
            )
            return found if found is not None and found.record == link else None

        return self._read_in_parallel(read, list(owners))

    def create_part(self, round: int, owner: PeerId, part: MeanPart, *, replace: bool = False) -> bool:
        """Point to this part, unless another one stands. Return whether it is this one now. What is no pointer of this
        group, or to be replaced, is replaced."""
        data = part.encode(self.run, round, self.group.signer(owner))
        key = keys.mean_part(self.run, round, owner, part.record)
        if not replace and self.bucket.create(key, data, timeout_seconds=CALL_SECONDS):
            return True
        if not replace and owner in self.mean_parts(round, part.record, [owner]):
            return False
        self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)
        return True

    # --- amendments and drains ---------------------------------------------------------------------------------

    def amendment(self, number: int) -> Amendment | None:
        """Return the amendment; None if there is none yet."""
        return self._read(
            keys.amendment(self.run, number),
            CREATE_BYTES,
            lambda data: Amendment.parse(data, self.run, number, GROUP, self.group.verify),
        )

    def amend(self, number: int, amendment: Amendment) -> bool:
        """Create the amendment, unless its number is taken. Return whether it is ours."""
        data = amendment.encode(self.run, number, self.group.signer())
        return self.bucket.create(keys.amendment(self.run, number), data, timeout_seconds=CALL_SECONDS)

    def restore_amendment(self, number: int, amendment: Amendment) -> None:
        """Put back an amendment in force, if the store has lost or damaged it. Another one that is there stays."""
        if self.amendment(number) is not None or self.amend(number, amendment):
            return
        if self.amendment(number) is None:  # what is there cannot be read
            data = amendment.encode(self.run, number, self.group.signer())
            self.bucket.put(keys.amendment(self.run, number), data, timeout_seconds=CALL_SECONDS)

    def drain(self, member: PeerId, drain: Drain) -> None:
        """Ask the member to leave."""
        data = drain.encode(self.run, NO_ROUND, self.group.signer(member))
        self.bucket.put(keys.drain(self.run, member), data, timeout_seconds=CALL_SECONDS)

    def drained(self) -> Drain | None:
        """Return the last request that we leave."""
        return self._read(
            keys.drain(self.run, self.me),
            _BEAT_BYTES,
            lambda data: Drain.parse(data, self.run, NO_ROUND, self.me, self.group.verify),
        )

    def left(self) -> None:
        """Delete the request that we leave, when we leave: the next start is a new decision."""
        self.bucket.delete(keys.drain(self.run, self.me), timeout_seconds=CALL_SECONDS)

    # --- claims ------------------------------------------------------------------------------------------------

    def claim(self, round: int, claim: Claim) -> None:
        data = claim.encode(self.run, round, self.group.signer(self.me))
        key = keys.claims(self.run, round) + self.me.hex()
        self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)
        self._own = round, claim

    def claim_again(self, round: int) -> None:
        """Put back our claim of the round, which the store has lost."""
        if self._own is not None and self._own[0] == round:
            self.claim(*self._own)

    def claims(self, round: int) -> dict[PeerId, Claim]:
        """Return all claims of the round. Each is read once: only its training time may change."""
        known = {member: claim for (of, member), claim in self._claims.items() if of == round}
        listed = self.claimants(round)
        new = self.claims_of(round, [member for member in listed if member not in known])
        found = {member: known[member] for member in listed if member in known} | new
        if self._own is not None and self._own[0] == round and self.me in found:
            found[self.me] = self._own[1]
        self._claims = {(round, member): claim for member, claim in found.items()}
        return found

    def claimants(self, round: int) -> list[PeerId]:
        """Return the members that have claimed in the round, as far as their claims are not deleted yet."""
        return self._listed(keys.claims(self.run, round))

    def claims_of(self, round: int, members: list[PeerId]) -> dict[PeerId, Claim]:
        """Return these members' claims of the round."""
        prefix = keys.claims(self.run, round)

        def read(member: PeerId) -> Claim | None:
            return self._read(
                prefix + member.hex(),
                _BEAT_BYTES,
                lambda data: Claim.parse(data, self.run, round, member, self.group.verify),
            )

        return self._read_in_parallel(read, members)

    def claimed(self, round: int, link: Digest) -> bool:
        """Whether we have claimed in the round, on the record of this link. A claim that cannot be read counts too."""

        def parse(data: bytes) -> bool:
            try:
                return Claim.parse(data, self.run, round, self.me, self.group.verify).previous == link
            except InvalidMessage:
                return True

        return bool(self._read(keys.claims(self.run, round) + self.me.hex(), _BEAT_BYTES, parse))

    def forget(self, before: int) -> None:
        """Delete all payloads and claims of rounds before this one, and abort those rounds' unfinished uploads: no
        member needs them any more."""
        self._delete_before(keys.all_claims(self.run), before, None)
        self._delete_before(keys.payloads(self.run), before, partial(keys.payload, self.run))

    def _delete_before(self, prefix: str, round: int, uploads: Callable[[int], str] | None) -> None:
        delete_before(self.bucket, prefix, round, uploads, timeout_seconds=CALL_SECONDS)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def states(self, round: int) -> PrefixedBucket:
        """Return the place of the files of a round's checkpoint, from any member."""
        return PrefixedBucket(self.bucket, keys.states(self.run, round))

    def forget_states(self, before: int) -> None:
        """Delete the files of the checkpoints of rounds before this one, whoever sent them, and abort their unfinished
        uploads."""
        self._delete_before(keys.all_states(self.run), before, partial(keys.states, self.run))

    def shown(self) -> dict[PeerId, Shown]:
        """Return the checkpoints that each member shows. Raises StorageError if the store does not answer."""
        prefix = keys.members_checkpoints(self.run)

        def read(member: PeerId) -> Shown | None:
            parse = partial(parse_shown, run=self.run, peer=member, verify=self.group.verify)
            return self._read(prefix + member.hex(), DOCUMENT_BYTES, parse)

        return self._read_in_parallel(read, self._listed(prefix))

    # --- beats -------------------------------------------------------------------------------------------------

    def beat(self, beat: Beat, timeout_seconds: float) -> None:
        data = beat.encode(self.run, NO_ROUND, self.group.signer(self.me))
        self.bucket.put(keys.beats(self.run) + self.me.hex(), data, timeout_seconds=timeout_seconds)

    def clear(self, member: PeerId) -> None:
        """Delete the beat of a member that is gone for good, and its list of lacked places. If it comes back, it writes
        others."""
        for prefix in (keys.wanted_by(self.run), keys.beats(self.run)):
            self.bucket.delete(prefix + member.hex(), timeout_seconds=CALL_SECONDS)

    def members(self) -> list[PeerId]:
        """Return all members that have ever written a beat, less the cleared ones."""
        return self._listed(keys.beats(self.run))

    def beats(self) -> dict[PeerId, Beat]:
        """Return each member's last beat."""
        return self.read_beats()[0]

    def read_beats(self) -> tuple[dict[PeerId, Beat], set[PeerId]]:
        """Return each member's last beat, and the members whose beat the store did not bring: it says nothing about
        them."""

        def read(member: PeerId) -> Beat | None:
            key = keys.beats(self.run) + member.hex()
            return self._read(key, _BEAT_BYTES, lambda data: self.beat_of(member, data))

        unread = set[PeerId]()
        return self._read_in_parallel(read, self.members(), unread), unread

    def beat_of(self, member: PeerId, data: bytes) -> Beat:
        """Return the beat in these bytes. Raises InvalidMessage."""
        return Beat.parse(data, self.run, NO_ROUND, member, self.group.verify)

    # --- reading -----------------------------------------------------------------------------------------------

    def _read_in_parallel(
        self, read: Callable[[PeerId], T | None], members: list[PeerId], unread: set[PeerId] | None = None
    ) -> dict[PeerId, T]:
        """Read each member's document, in up to LOOK_THREADS threads. One that cannot be read is skipped, and its
        member added to `unread`; if all fail, the store is down and the first error is raised."""

        def answered(member: PeerId) -> T | StorageError | None:
            try:
                return read(member)
            except StorageError as fault:
                return fault

        found = parallel_map(answered, members, LOOK_THREADS, self.time)
        faults = [one for one in found if isinstance(one, StorageError)]
        if faults and len(faults) == len(members):
            raise faults[0]
        if unread is not None:
            unread |= {member for member, one in zip(members, found, strict=True) if isinstance(one, StorageError)}
        return {
            member: one
            for member, one in zip(members, found, strict=True)
            if one is not None and not isinstance(one, StorageError)
        }

    def _listed(self, prefix: str) -> list[PeerId]:
        names = self.bucket.list(prefix, max_keys=MAX_UIDS, timeout_seconds=CALL_SECONDS)
        found = list[PeerId]()
        for name in names:
            with suppress(ValueError):
                member = bytes.fromhex(name.removeprefix(prefix))
                if len(member) == DIGEST_BYTES and name == prefix + member.hex():
                    found.append(PeerId(member))
        return found

    def _read(self, key: str, max_bytes: int, parse: Callable[[bytes], T]) -> T | None:
        """Read and parse an object; None if it is missing, or not written by this group."""
        try:
            return parse(self.bucket.get(key, max_bytes=max_bytes, timeout_seconds=CALL_SECONDS))
        except ObjectMissing:
            return None
        except (InvalidMessage, ObjectTooLarge) as fault:
            if key not in self._strange:
                self._strange.add(key)
                logger.warning(
                    "{key} was not written by this group ({fault}): the writer has another token or release, "
                    "or the store has damaged it. Ignoring it",
                    key=key,
                    fault=str(fault),
                )
            return None


@dataclass(frozen=True, slots=True)
class _Claimed:
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
