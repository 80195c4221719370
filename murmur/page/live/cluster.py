"""A cluster read from its bucket for the page, by a holder of its token. Nothing is written, and neither the token nor
a key of an update leaves this module.

A record is read once, since it never changes; beats are read once a look. The store's clock says when a round ended.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from loguru import logger

from murmur.cluster.amendments import AmendedSpec
from murmur.cluster.documents import LOOK_THREADS
from murmur.cluster.ledger import Ledger, UnreadableRecord
from murmur.cluster.presence import LONGEST_LOOK_BEATS, Presence
from murmur.node.fetch.concurrency import parallel_map
from murmur.page.cluster import AmendmentNow, ClusterNow, MemberNow, State
from murmur.page.live.follower import SHORTEST_LOOK_SECONDS, Follower
from murmur.protocol.cluster import Amendment, Beat, ClusterSpec, Record
from murmur.protocol.errors import MurmurError, StorageError
from murmur.protocol.types import PeerId

RECORDS = "records"
"""The node of events that are read from the bucket."""
ROUNDS_KEPT = 1000
"""Older rounds are not read."""
PORTION_ROUNDS = 32
"""Records in one look, while there are more."""
UPDATE_BYTES = 256
"""About what an update takes in an event."""
HIDDEN = "***"

Told = tuple[str, dict[str, Any]]


class Cluster(Follower):
    """Source of the page over the run that `open` opens. secrets: texts that the page must not show, whatever a server
    answers."""

    what = "cluster"
    rounds_kept = ROUNDS_KEPT

    def __init__(self, open: Callable[[], tuple[Ledger, ClusterSpec]], secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._open, self._secrets = open, secrets
        self._history: _History | None = None
        self._members: _Members | None = None
        self._now = ClusterNow()

    def open(self) -> None:
        """See Follower."""
        ledger, spec = self._open()
        self._history = _History(ledger, spec)
        self._members = _Members(ledger, spec)

    # --- what the page asks ------------------------------------------------------------------------------------

    @property
    def spec(self) -> ClusterSpec | None:
        return self._history.amended.spec if self._history is not None else None

    def cluster(self) -> ClusterNow:
        return self._now

    def detail(self, number: int) -> dict[str, Any] | None:
        if self.rounds.get(number) is None:
            return None
        return {"round": number, "peers": {}, "unread": {}, "phases": {}, "deadline": None}

    def waits_for(self) -> str | None:
        if self._history is None:
            return "Looking for the run in the cluster's bucket."
        if self._history.known:
            return None
        here = sum(member.state in ("alive", "unknown") for member in self._now.members)
        members = f"{here} member{'s' * (here != 1)}"
        return f"Round 0 is being played by {members}." if here else "No member takes part yet."

    def ended(self) -> bool:
        return self._now.closed

    def taken(self, node: str, event: Mapping[str, Any]) -> int:
        return UPDATE_BYTES * len(event.get("updates", ()))

    def described(self, fault: MurmurError) -> str:
        """Return the fault without secrets: a server may repeat them."""
        text = str(fault)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    # --- the thread --------------------------------------------------------------------------------------------

    def look(self) -> Iterator[Told]:
        if self._history is None or self._members is None:
            self.open()
        history, members = self._history, self._members
        assert history is not None
        assert members is not None
        if members.look(history.amended.spec):
            self.grew()
        self._show(history, members)
        for told in history.look():
            self.grew()
            yield told
        self._show(history, members)

    def pause(self) -> float:
        assert self._history is not None
        return 0.0 if self._history.more else _pause(self._history.amended.spec)

    def _show(self, history: "_History", members: "_Members") -> None:
        self.names = members.names()
        self._now = ClusterNow(members.now(), (*history.amendments, *history.coming), history.amended.closed)


class _Members:
    """The members by their beats, and their names, also of those whose beats are deleted by now."""

    def __init__(self, ledger: Ledger, spec: ClusterSpec) -> None:
        self._ledger, self._presence = ledger, Presence(spec.cluster)
        self._first: dict[PeerId, Beat] | None = None
        """As they were when we looked first."""
        self._beats: dict[PeerId, Beat] = {}
        self._present: set[PeerId] = set()
        """The members whose beats are there, or were read lately."""
        self._again = 0.0
        """When the beats are to be read again."""

    def look(self, spec: ClusterSpec) -> bool:
        """Read the beats, if it is time to; return whether a member trains on. Others beat too while they wait for what
        never comes. Raises StorageError."""
        now = self._ledger.time.now()
        if now < self._again:
            return False
        beats, unread = self._ledger.read_beats()
        now, before = self._ledger.time.now(), self._presence
        self._presence = Presence(spec.cluster, before.seen, before.looked).look(beats, now, unread)
        self._again = now + 0.9 * _pause(spec)
        trains = any(beat.phase == "train" and _moves(self._beats.get(member), beat) for member, beat in beats.items())
        self._beats |= beats
        self._first = beats if self._first is None else self._first
        self._present = {*beats} | self._presence.running()
        return trains

    def now(self) -> tuple[MemberNow, ...]:
        """Return the members that have a beat, by name. One that could not be read just now is as it was before."""
        heard, living, names = self._presence.running(), self._presence.can_claim(), self.names()

        def state(member: PeerId, beat: Beat) -> State:
            if beat.leaving:
                return "left"
            if member not in heard:
                return "silent"
            if self._first is not None and beat == self._first.get(member):
                return "unknown"
            return "alive" if member in living or beat.phase in ("join", "idle", "done") else "stuck"

        found = [
            MemberNow(member.hex(), names[member.hex()], state(member, beat), beat.phase, beat.round, beat.step)
            for member, beat in self._beats.items()
            if member in self._present
        ]
        return tuple(sorted(found, key=lambda member: member.name))

    def names(self) -> dict[str, str]:
        """Return the name of each member by its id."""
        return {member.hex(): beat.name for member, beat in self._beats.items()}


class _History:
    """The rounds by their records, the oldest first."""

    def __init__(self, ledger: Ledger, spec: ClusterSpec) -> None:
        """Raises StorageError."""
        self._ledger = ledger
        self.amended = AmendedSpec(spec, ledger)
        self.amendments: list[AmendmentNow] = []
        """In force, or in force from the next round on."""
        self.coming: list[AmendmentNow] = []
        """The next one, which no record names yet."""
        self.known = ledger.rounds()
        """How many rounds have ended."""
        self._next = max(0, self.known - ROUNDS_KEPT)
        """The first round without an event."""
        self._before: Record | None = None
        """The record of the round before."""
        self._ends: dict[int, float | None] = {}
        """When rounds ended, by the store's clock."""

    @property
    def more(self) -> bool:
        """Whether more rounds have ended than have events."""
        return self._next < self.known

    def look(self) -> Iterator[Told]:
        """Yield events of the next rounds that have ended. Raises ConfigError, StorageError."""
        if self.more:
            yield from self._past()
        if self.more:
            return
        while (record := self._ledger.record(self._next)) is not None:
            yield from self._ended(record)
        self.coming = []
        if not self.amended.closed and (amendment := self._ledger.amendment(self.amended.count + 1)) is not None:
            self.coming = [_shown(self.amended.count + 1, None, amendment)]

    def _past(self) -> Iterator[Told]:
        """Yield events of rounds that had ended when the page was opened. A record that is lost or unreadable leaves a
        gap: members needed it long ago."""
        rounds = range(self._next, min(self._next + PORTION_ROUNDS, self.known))
        for record in parallel_map(self._read, rounds, LOOK_THREADS, self._ledger.time):
            if record is not None:
                yield from self._ended(record)
            else:
                self._before, self._next = None, self._next + 1

    def _read(self, round: int) -> Record | None:
        self._end(round)
        try:
            return self._ledger.record(round)
        except UnreadableRecord as fault:
            logger.warning("the page leaves out a round: {fault}", fault=str(fault))
            return None

    def _end(self, round: int) -> float | None:
        """Return when the round ended; None if that is not known."""
        if round >= 0 and round not in self._ends:
            self._ends[round] = self._ledger.closed_at(round)
        return self._ends.get(round)

    def _ended(self, record: Record) -> Iterator[Told]:
        """Yield what a record says of its round, and what is known by now of the one before."""
        round, spec, before = self._next, self.amended.spec, self._before
        began, end = self._end(round - 1), self._end(round)
        updates = {u.member.hex(): {"steps": u.steps, "seconds": u.seconds, "loss": u.loss} for u in record.updates}
        fields = {
            "by": record.by.hex(),
            "theta": record.theta.hex(),
            "length": end - began if began and end and end > began else None,
            "payload_bytes": spec.object_bytes,
            "step_tokens": spec.inner.sequences * spec.model.context,
        }
        yield _event("recorded", round, end, **fields, updates=updates)
        if before is not None:
            told = {update.member for update in before.updates}
            sent = {u.member.hex(): u.sending for u in record.updates if u.sending and u.member in told}
            yield _event("sent", round - 1, began, members=sent)
            yield from self._late(round - 1, before)
        yield from self._late(round, record)
        self._amend(round, record.amendments)
        self._before, self._next, self.known = record, round + 1, max(self.known, round + 1)

    def _late(self, round: int, record: Record) -> Iterator[Told]:
        """Yield the claims that are not in the record: they came later, or from another theta."""
        if round < self.known - self.amended.spec.cluster.keep_rounds:
            return  # they are deleted by now
        told = {update.member for update in record.updates}
        late = self._ledger.claims_of(round, [one for one in self._ledger.claimants(round) if one not in told])
        rows = {m.hex(): {"steps": claim.steps, "apart": claim.theta != record.theta} for m, claim in late.items()}
        if rows:
            yield _event("claims", round, self._end(round), members=rows)

    def _amend(self, round: int, count: int) -> None:
        """Take up the amendments that a round's record names."""
        while self.amended.count < count:
            number = self.amended.count + 1
            amendment = self._ledger.amendment(number)
            if amendment is None:
                raise StorageError(f"the record of round {round} names amendment {number}, which is not in the bucket")
            self.amended = self.amended.next(amendment)
            self.amendments.append(_shown(number, round + 1, amendment))


def _shown(number: int, from_round: int | None, amendment: Amendment) -> AmendmentNow:
    return AmendmentNow(number, from_round, amendment.model_dump()["changes"], amendment.last)


def _moves(before: Beat | None, now: Beat) -> bool:
    return before is None or (before.round, before.step) != (now.round, now.step)


def _pause(spec: ClusterSpec) -> float:
    """Return the seconds between two looks: as many as count as silence."""
    return max(SHORTEST_LOOK_SECONDS, LONGEST_LOOK_BEATS * spec.cluster.beat_seconds)


def _event(kind: str, round: int, at: float | None, **fields: Any) -> Told:
    return RECORDS, {"event": kind, "round": round, "time": at or 0.0, **fields}
