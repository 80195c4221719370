"""A cluster's bucket as its members use it: beats, claims and records, and every member's own part."""

from collections.abc import Collection
from functools import partial
from hashlib import sha256

from murmur.cluster.beats import Beats
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.group_keys import Group
from murmur.node.fetch.payloads import Lacking
from murmur.node.sync.checkpoints import DOCUMENT_MAX_BYTES as DOCUMENT_BYTES
from murmur.node.sync.checkpoints import Shown, parse_shown
from murmur.node.sync.repair_requests import DOCUMENT_MAX_BYTES, Place, encode_wanted, parse_wanted
from murmur.protocol import keys
from murmur.protocol.cluster import GROUP, Amendment, Claim, Drain, MeanPart, Record
from murmur.protocol.errors import InvalidMessage, ObjectMissing, ObjectTooLarge, StorageError
from murmur.protocol.ports import Time
from murmur.protocol.types import Digest, PeerId
from storage.prefixed import PrefixedBucket
from storage.s3 import CREATE_BYTES, SharedBucket

_CLAIM_BYTES = 4096
_MOST_ROUNDS = 1 << 32
"""No run has more: a store that shows any record that we ask for must not keep us searching."""


class UnreadableRecord(Lacking):
    """The object in a record's place is no record of this group. Members that have the record replace it."""


class Ledger(Beats):
    """One member's view of its cluster's documents. Thread-safe; each call raises StorageError."""

    def __init__(self, bucket: SharedBucket, run: Digest, group: Group, me: PeerId, time: Time) -> None:
        super().__init__(bucket, run, group, me, time)
        self._claims: dict[tuple[int, PeerId], Claim] = {}
        self._own: tuple[int, Claim] | None = None
        """Our last claim: it may replace one that we have read before."""

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

    def want(self, places: Collection[Place]) -> None:
        """Publish which payloads and records we lack; replaces the earlier list."""
        key = keys.wanted_by(self.run) + self.me.hex()
        if places:
            data = encode_wanted(places, self.run, self.group.signer(self.me))
            self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)
        else:
            self.delete(key)

    def wanted(self) -> dict[PeerId, frozenset[Place]]:
        """Return the list of lacked places of each other member."""
        prefix = keys.wanted_by(self.run)

        def read(member: PeerId) -> frozenset[Place] | None:
            parse = partial(parse_wanted, run=self.run, peer=member, verify=self.group.verify)
            return self.read(prefix + member.hex(), DOCUMENT_MAX_BYTES, parse)

        return self.read_each(read, [member for member in self.members_under(prefix) if member != self.me])

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

    def close(self, round: int, record: Record) -> bool:
        """Close the round with this record, unless it is closed already. Return whether this is its record now."""
        return self.create(keys.record(self.run, round), record, round)

    def restore(self, round: int, record: Record) -> None:
        """Put back a record that we have applied, if the store has lost or damaged it."""
        try:
            if self.record(round) is None:
                self.close(round, record)
        except UnreadableRecord:
            self.put(keys.record(self.run, round), record, round)

    # --- parts of a round's mean -------------------------------------------------------------------------------

    def mean_parts(self, round: int, link: Digest, owners: Collection[PeerId]) -> dict[PeerId, MeanPart]:
        """Return the parts that are there, of these owners, of the mean of the record with this link."""

        def read(owner: PeerId) -> MeanPart | None:
            found = self.find(MeanPart, keys.mean_part(self.run, round, owner, link), round, owner)
            return found if found is not None and found.record == link else None

        return self.read_each(read, list(owners))

    def create_part(self, round: int, owner: PeerId, part: MeanPart, *, replace: bool = False) -> bool:
        """Point to this part, unless another one stands. Return whether it is this one now. What is no pointer of this
        group, or to be replaced, is replaced."""
        key = keys.mean_part(self.run, round, owner, part.record)
        if not replace and self.create(key, part, round, owner):
            return True
        if not replace and owner in self.mean_parts(round, part.record, [owner]):
            return False
        self.put(key, part, round, owner)
        return True

    # --- amendments and drains ---------------------------------------------------------------------------------

    def amendment(self, number: int) -> Amendment | None:
        """Return the amendment; None if there is none yet."""
        return self.find(Amendment, keys.amendment(self.run, number), number)

    def amend(self, number: int, amendment: Amendment) -> bool:
        """Create the amendment, unless its number is taken. Return whether it is ours."""
        return self.create(keys.amendment(self.run, number), amendment, number)

    def restore_amendment(self, number: int, amendment: Amendment) -> None:
        """Put back an amendment in force, if the store has lost or damaged it. Another one that is there stays."""
        if self.amendment(number) is not None or self.amend(number, amendment):
            return
        if self.amendment(number) is None:  # what is there cannot be read
            self.put(keys.amendment(self.run, number), amendment, number)

    def drain(self, member: PeerId, drain: Drain) -> None:
        """Ask the member to leave."""
        self.put(keys.drain(self.run, member), drain, writer=member)

    def drained(self) -> Drain | None:
        """Return the last request that we leave."""
        return self.find(Drain, keys.drain(self.run, self.me), writer=self.me)

    def left(self) -> None:
        """Delete the request that we leave, when we leave: the next start is a new decision."""
        self.delete(keys.drain(self.run, self.me))

    # --- claims ------------------------------------------------------------------------------------------------

    def claim(self, round: int, claim: Claim) -> None:
        self.put(keys.claims(self.run, round) + self.me.hex(), claim, round, self.me)
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
        return list(self.members_under(keys.claims(self.run, round)))

    def claims_of(self, round: int, members: list[PeerId]) -> dict[PeerId, Claim]:
        """Return these members' claims of the round."""
        prefix = keys.claims(self.run, round)
        return self.read_each(lambda member: self.find(Claim, prefix + member.hex(), round, member), members)

    def claimed(self, round: int, link: Digest) -> bool:
        """Whether we have claimed in the round, on the record of this link. A claim that cannot be read counts too."""

        def parse(data: bytes) -> bool:
            try:
                return Claim.parse(data, self.run, round, self.me, self.group.verify).previous == link
            except InvalidMessage:
                return True

        return bool(self.read(keys.claims(self.run, round) + self.me.hex(), _CLAIM_BYTES, parse))

    # --- checkpoints -------------------------------------------------------------------------------------------

    def states(self, round: int) -> PrefixedBucket:
        """Return the place of the files of a round's checkpoint, from any member."""
        return PrefixedBucket(self.bucket, keys.states(self.run, round))

    def shown(self) -> dict[PeerId, Shown]:
        """Return the checkpoints that each member shows. Raises StorageError if the store does not answer."""
        prefix = keys.members_checkpoints(self.run)

        def read(member: PeerId) -> Shown | None:
            parse = partial(parse_shown, run=self.run, peer=member, verify=self.group.verify)
            return self.read(prefix + member.hex(), DOCUMENT_BYTES, parse)

        return self.read_each(read, list(self.members_under(prefix)))
