"""What one member sees of its cluster. One thread looks at the bucket and writes the view; all others read frozen
values."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from murmur.cluster.decide import counted
from murmur.cluster.fetch import PayloadFetcher
from murmur.cluster.heartbeat import Heartbeat
from murmur.cluster.ledger import Ledger
from murmur.cluster.pace import Pace, look_seconds
from murmur.cluster.presence import Presence
from murmur.cluster.state import Missing, ObjectLost, Round, StoreAway, View
from murmur.node.fetch.payloads import Lacking
from murmur.protocol.cluster import Beat, ClusterSpec, ClusterTable, Standing
from murmur.protocol.errors import StorageError

ENDING = 4
"""While there is no claim yet, we read the beats only in the last one of this many parts of our inner steps."""
TWIN_BEATS = 3
"""So many new beats of another process of ours show that it runs."""


class ClusterView:
    """Looks at the bucket in a thread of its own: when it is asked to, and again and again while we train and send.

    heartbeat: ours. fetcher: is told of the claims. round, spec, pace: return the present values.
    """

    def __init__(
        self,
        ledger: Ledger,
        heartbeat: Heartbeat,
        fetcher: PayloadFetcher,
        round: Callable[[], Round],
        spec: Callable[[], ClusterSpec],
        pace: Callable[[], Pace],
    ) -> None:
        self._ledger, self._heartbeat, self._fetcher = ledger, heartbeat, fetcher
        self._round, self._spec, self._pace = round, spec, pace
        self._changed = ledger.time.condition()
        self._asked = self._answered = 0
        self._ended = False
        self._died: Exception | None = None
        """How the looking thread died."""
        self._view = View(ledger.time.now(), round().number, Presence(spec().cluster))
        # Of the looking thread alone:
        self._beats_read = self._beats_wanted = -inf
        self._joined_in = 0
        self._twins = set[tuple[str, int]]()

    @property
    def value(self) -> View:
        """What the last look showed."""
        return self._view

    @property
    def rules(self) -> ClusterTable:
        """In force now."""
        return self._spec().cluster

    @property
    def pace(self) -> Pace:
        """As the last records tell it."""
        return self._pace()

    def start(self) -> None:
        """Start the looking thread; it runs until `end`."""
        self._ledger.time.start(self._go_on, "view")

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def refresh(self) -> View:
        """Return what a look shows that begins now. Waits for it. Raises what the looking thread died of, if it did."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            while self._answered < ticket and self._died is None:
                self._changed.wait()
        if self._died is not None:
            raise self._died
        return self._view

    # --- the looking thread --------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            self._look_on()
        except Exception as fault:
            with self._changed:
                self._died = fault
                self._changed.notify_all()
            raise

    def _look_on(self) -> None:
        while True:
            with self._changed:
                if not (self._ended or self._answered < self._asked):
                    self._changed.wait(2 * look_seconds(self.rules, self.pace.records))
                if self._ended:
                    return
                ticket = self._asked
                beside = ticket == self._answered
                if beside and not _is_busy(self._round()):
                    continue
            view = self._seen(beside)
            with self._changed:
                self._view, self._answered = view, ticket
                self._changed.notify_all()

    def _seen(self, beside: bool) -> View:
        round, before = self._round(), self._view
        if before.number != round.number:
            before = View(before.at, round.number, before.presence)
        try:
            return self._look(round, replace(before, missing=None), beside)
        except StorageError as fault:
            return replace(before, at=self._ledger.time.now(), missing=missing(fault))

    def _look(self, round: Round, before: View, busy: bool) -> View:
        """Return what the bucket shows of the round. busy: we train or send meanwhile, and little is asked for. Raises
        StorageError."""
        ledger, number = self._ledger, round.number
        presence, claims, record, done = before.presence, before.claims, None, round.standing is Standing.DONE
        if not (busy or done):
            record = ledger.record(number)
        if record is None and not done:
            claims = counted(ledger.claims(number), round.link, presence.confirmed_alive(), ledger.me)
            if busy and claims:
                record = ledger.record(number)
        if record is None and claims:
            here = {member: claim for member, claim in claims.items() if claim.previous == round.link}
            self._fetcher.fetch_updates(self._spec(), number, here)
        # A record's mean is made by those that live.
        if (record is None or self._spec().exchange == "int8") and (not busy or claims or self._is_late(round)):
            presence = self._read_beats(presence)
        return View(ledger.time.now(), number, presence, record, claims, twin=len(self._twins) >= TWIN_BEATS)

    def _is_late(self, round: Round) -> bool:
        """Whether it is time to read the beats though there is no claim: if a member dies while all train, its death is
        known by the time at which the round could end."""
        spec, now = self._spec(), self._ledger.time.now()
        if ENDING * round.step < (ENDING - 1) * spec.inner.steps:
            return False
        if now < self._beats_wanted + spec.cluster.silent_seconds / 2:
            return False
        self._beats_wanted = now
        return True

    def _read_beats(self, presence: Presence) -> Presence:
        """Return the presence after all members' beats, unless they were read less than a beat ago."""
        now, rules = self._ledger.time.now(), self.rules
        self._beats_wanted = now
        if now < self._beats_read + rules.beat_seconds:
            return presence
        beats, unread = self._ledger.read_beats()
        self._beats_read = now
        self._look_for_twins(beats.get(self._ledger.me))
        return Presence(rules, presence.seen, presence.looked).look(beats, self._ledger.time.now(), unread)

    def _look_for_twins(self, mine: Beat | None) -> None:
        """Note a beat of ours from another process that began before this one, as the names of processes say. What an
        earlier process has left, and a store may show again, is of no later round than that in which we came to the
        run's state."""
        round = self._round()
        if round.standing is Standing.JOINING:
            self._joined_in = round.number
            return
        if mine is not None and mine.process < self._heartbeat.process and mine.round > self._joined_in:
            self._twins.add((mine.process, mine.count))


def missing(fault: StorageError) -> Missing:
    """Return what this fault says is missing."""
    return ObjectLost(fault.round, fault.peers, str(fault)) if isinstance(fault, Lacking) else StoreAway(fault)


def _is_busy(round: Round) -> bool:
    """Whether we train or send: nobody asks for looks then."""
    return round.standing in (Standing.TRAINING, Standing.SENDING)
