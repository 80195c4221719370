"""A cluster's bucket as its members use it: beats, claims and records, and every member's own part.

What the store shows that is no document of this group is nothing: it is told once, and everybody goes on waiting.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TypeVar

from loguru import logger

from node.cluster.group_keys import Group
from node.fetch.concurrency import beside
from node.fetch.payloads import PayloadSources
from node.sync.checkpoints import DOCUMENT_MAX_BYTES as DOCUMENT_BYTES
from node.sync.checkpoints import Shown, parse_shown
from node.sync.repair_requests import DOCUMENT_MAX_BYTES, Place, encode_wanted, parse_wanted
from protocol import keys
from protocol.cluster import (
    Amendment,
    Beat,
    Claim,
    Record,
    digest_of,
    encode_amendment,
    encode_beat,
    encode_claim,
    encode_drain,
    encode_record,
    parse_amendment,
    parse_beat,
    parse_claim,
    parse_drain,
    parse_record,
)
from protocol.errors import InvalidMessage, ObjectMissing, ObjectTooLarge, StorageError
from protocol.ports import Time
from protocol.types import DIGEST_BYTES, MAX_UIDS, Digest, PeerId
from storage.exchange import Source
from storage.prefixed import PrefixedBucket
from storage.s3 import CREATE_BYTES, RangedBucket

CALL_SECONDS = 15.0
"""Of one look at the store."""
LOOK_THREADS = 8
_BEAT_BYTES = 4096
_TOLD_AGAIN_SECONDS = 600.0
_FORGOTTEN = 256
"""Objects of old rounds that are removed at once: where all were away there are more."""
_ROUND_DIGITS = 8

T = TypeVar("T")


class Ledger:
    """One member's view of what its cluster has written. Any thread may ask; each call raises StorageError."""

    def __init__(self, bucket: RangedBucket, run: Digest, group: Group, me: PeerId, time: Time) -> None:
        self.bucket, self.run, self.group, self.me, self.time = bucket, run, group, me, time
        self.states = PrefixedBucket(bucket, keys.states(run))
        """The files of all checkpoints."""
        self._claims: dict[tuple[int, PeerId], Claim] = {}
        self._strange: set[str] = set()

    def part(self, member: PeerId) -> PrefixedBucket:
        """A place of this member's alone, to try the store."""
        return PrefixedBucket(self.bucket, keys.member(self.run, member))

    # --- payloads ----------------------------------------------------------------------------------------------

    def payload_key(self, round: int, member: PeerId, key: bytes) -> str:
        """Where a member's object of this round lies that `key` opens."""
        return keys.members_payload(self.run, round, member, sha256(key).digest())

    def abort_unfinished(self, round: int) -> None:
        """Forget what we have begun to send in the round, and not ended."""
        prefix = f"{keys.payload(self.run, round)}/{self.me.hex()}/"
        self.bucket.abort_unfinished(prefix, timeout_seconds=CALL_SECONDS)

    def key_of(self, claim: Claim) -> bytes:
        """What opens the object that was claimed."""
        return self.group.wrap(bytes.fromhex(claim.key), digest_of(claim.envelope))

    def payloads(self, claims: Mapping[PeerId, Claim]) -> PayloadSources:
        """Where the objects are that were claimed."""
        return _Claimed(self, claims)

    def want(self, places: Collection[Place]) -> None:
        """Say which payloads and records we lack: these, and no others any more."""
        key = keys.wanted_by(self.run) + self.me.hex()
        if places:
            data = encode_wanted(places, self.run, self.group.signer(self.me))
            self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)
        else:
            self.bucket.delete(key, timeout_seconds=CALL_SECONDS)

    def wanted(self) -> dict[PeerId, frozenset[Place]]:
        """What each of the others says that it lacks."""
        prefix = keys.wanted_by(self.run)

        def read(member: PeerId) -> frozenset[Place] | None:
            return self._read(
                prefix + member.hex(),
                DOCUMENT_MAX_BYTES,
                lambda data: parse_wanted(data, self.run, member, self.group.verify),
            )

        return self._beside(read, [member for member in self._listed(prefix) if member != self.me])

    # --- records -----------------------------------------------------------------------------------------------

    def record(self, round: int) -> Record | None:
        """What the round came to; None while it is open. Raises StorageError also for what is no record of this
        group: nobody can close the round then."""
        key = keys.record(self.run, round)
        try:
            data = self.bucket.get(key, max_bytes=CREATE_BYTES, timeout_seconds=CALL_SECONDS)
            return parse_record(data, self.run, round, self.group.verify)
        except ObjectMissing:
            return None
        except InvalidMessage as fault:
            raise StorageError(
                f"the record of round {round} ({key}) was not written by this group ({fault}): the token "
                "belongs to another group, the release differs, or the store has damaged it"
            ) from None

    def rounds(self) -> int:
        """How many rounds have ended: the first one without a record. Records stay for ever, so it is found by
        doubling, then halving. Raises StorageError."""

        def ended(round: int) -> bool:
            return self.bucket.head(keys.record(self.run, round), timeout_seconds=CALL_SECONDS) is not None

        high = 1
        while ended(high - 1):
            high *= 2
        low = high // 2
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ended(middle - 1) else (low, middle)
        return low

    def create(self, round: int, record: Record) -> bool:
        """Close the round with this, unless somebody has closed it; whether this is what it came to."""
        data = encode_record(record, self.run, round, self.group.signer())
        return self.bucket.create(keys.record(self.run, round), data, timeout_seconds=CALL_SECONDS)

    # --- wishes ------------------------------------------------------------------------------------------------

    def amendment(self, number: int) -> Amendment | None:
        """None where there is none yet."""
        return self._read(
            keys.amendment(self.run, number),
            CREATE_BYTES,
            lambda data: parse_amendment(data, self.run, number, self.group.verify),
        )

    def amend(self, number: int, amendment: Amendment) -> bool:
        """Create it, unless there is one with this number; whether it is ours."""
        data = encode_amendment(amendment, self.run, number, self.group.signer())
        return self.bucket.create(keys.amendment(self.run, number), data, timeout_seconds=CALL_SECONDS)

    def drain(self, member: PeerId) -> None:
        """Wish that the member leaves after its round."""
        data = encode_drain(self.run, self.group.signer(member))
        self.bucket.put(keys.drain(self.run, member), data, timeout_seconds=CALL_SECONDS)

    def drained(self) -> bool:
        """Whether somebody wishes that we leave."""

        def parse(data: bytes) -> bool:
            parse_drain(data, self.run, self.me, self.group.verify)
            return True

        return bool(self._read(keys.drain(self.run, self.me), _BEAT_BYTES, parse))

    def left(self) -> None:
        """We leave as wished: the next start is a new decision."""
        self.bucket.delete(keys.drain(self.run, self.me), timeout_seconds=CALL_SECONDS)

    # --- claims ------------------------------------------------------------------------------------------------

    def claim(self, round: int, claim: Claim) -> None:
        data = encode_claim(claim, self.run, round, self.group.signer(self.me))
        key = keys.claims(self.run, round) + self.me.hex()
        self.bucket.put(key, data, timeout_seconds=CALL_SECONDS)

    def claims(self, round: int) -> dict[PeerId, Claim]:
        """Everybody's of the round. One is read once: it does not change but for how long its training took."""
        prefix = keys.claims(self.run, round)
        known = {member: claim for (of, member), claim in self._claims.items() if of == round}

        def read(member: PeerId) -> Claim | None:
            return self._read(
                prefix + member.hex(),
                _BEAT_BYTES,
                lambda data: parse_claim(data, self.run, round, member, self.group.verify),
            )

        listed = self._listed(prefix)
        new = self._beside(read, [member for member in listed if member not in known])
        found = {member: known[member] for member in listed if member in known} | new
        self._claims = {(round, member): claim for member, claim in found.items()}
        return found

    def claimed(self, round: int) -> bool:
        """Whether we have claimed in the round."""
        return self._read(keys.claims(self.run, round) + self.me.hex(), _BEAT_BYTES, lambda data: True) is not None

    def forget(self, before: int) -> None:
        """Remove everybody's payloads and claims of rounds before this one, and uploads that nobody has ended: nobody
        needs them any more."""
        rounds = set[int]()
        for prefix in (keys.payloads(self.run), keys.all_claims(self.run)):
            for key in self.bucket.list(prefix, max_keys=_FORGOTTEN, timeout_seconds=CALL_SECONDS):
                number = key.removeprefix(prefix)[:_ROUND_DIGITS]
                if not number.isdecimal() or int(number) >= before:
                    break
                rounds.add(int(number))
                self.bucket.delete(key, timeout_seconds=CALL_SECONDS)
        for round in rounds:
            self.bucket.abort_unfinished(keys.payload(self.run, round), timeout_seconds=CALL_SECONDS)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def shown(self) -> dict[PeerId, Shown]:
        """What each member shows of its checkpoints. Raises StorageError where one cannot be read: that there is none
        must be known."""
        prefix, found = keys.members_checkpoints(self.run), dict[PeerId, Shown]()
        for member in self._listed(prefix):
            parse = partial(parse_shown, run=self.run, peer=member, verify=self.group.verify)
            shown = self._read(prefix + member.hex(), DOCUMENT_BYTES, parse)
            if shown is not None:
                found[member] = shown
        return found

    # --- beats -------------------------------------------------------------------------------------------------

    def beat(self, beat: Beat, timeout_seconds: float) -> None:
        data = encode_beat(beat, self.run, self.group.signer(self.me))
        self.bucket.put(keys.beats(self.run) + self.me.hex(), data, timeout_seconds=timeout_seconds)

    def clear(self, member: PeerId) -> None:
        """Take away the beat of one that is gone for good. It writes another one should it come back."""
        self.bucket.delete(keys.beats(self.run) + member.hex(), timeout_seconds=CALL_SECONDS)

    def members(self) -> list[PeerId]:
        """Whoever has ever beaten, and is not cleared away."""
        return self._listed(keys.beats(self.run))

    def beats(self) -> dict[PeerId, Beat]:
        """Everybody's last sign of life."""

        def read(member: PeerId) -> Beat | None:
            return self._read(
                keys.beats(self.run) + member.hex(),
                _BEAT_BYTES,
                lambda data: parse_beat(data, self.run, member, self.group.verify),
            )

        return self._beside(read, self.members())

    # --- reading -----------------------------------------------------------------------------------------------

    def _beside(self, read: Callable[[PeerId], T | None], members: list[PeerId]) -> dict[PeerId, T]:
        """What is there of each, in as many threads as a look is worth. One that cannot be read is passed over; where
        that is true of all, the store is away."""

        def answered(member: PeerId) -> T | StorageError | None:
            try:
                return read(member)
            except StorageError as fault:
                return fault

        found = beside(answered, members, LOOK_THREADS, self.time)
        faults = [one for one in found if isinstance(one, StorageError)]
        if faults and len(faults) == len(members):
            raise faults[0]
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
        """None where nothing stands there, or what nobody of this group has written."""
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
    """PayloadSources of what was claimed in a round."""

    ledger: Ledger
    claims: Mapping[PeerId, Claim]

    def payload(self, run: Digest, round: int, peer: PeerId) -> tuple[Source, ...]:
        """What lies under a name in the cache may be of an earlier sealing: its digest decides there, too."""
        ledger = self.ledger
        key = ledger.payload_key(round, peer, ledger.key_of(self.claims[peer]))
        return (Source(lambda: ledger.bucket, key, kept_as=keys.payload(run, round)),)


class Patience:
    """What an outage of the store costs: told at its begin, when its cause changes, every ten minutes, and at its end;
    and waited out."""

    def __init__(self, time: Time, pause_seconds: float) -> None:
        self._time, self._pause = time, pause_seconds
        self._since: float | None = None
        self._told, self._again = "", 0.0

    def failed(self, fault: StorageError) -> None:
        """Tell it, and wait before the next try."""
        now, text = self._time.now(), str(fault)
        self._since = now if self._since is None else self._since
        if text != self._told or now >= self._again:
            self._told, self._again = text, now + _TOLD_AGAIN_SECONDS
            logger.warning(
                "the store does not answer ({fault}): our work is kept, and we continue when it is back", fault=text
            )
        self._time.sleep(self._pause)

    def answered(self) -> None:
        if self._since is not None:
            logger.info("the store is back after {seconds} s", seconds=int(self._time.now() - self._since))
            self._since, self._told = None, ""
