"""Watch the other members of a cluster during a round, in parallel with our own part of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from murmur.cluster.decisions import look_seconds, round_progress
from murmur.cluster.membership import Membership
from murmur.protocol.cluster import Claim
from murmur.protocol.errors import StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.ports import Task
from murmur.protocol.types import PeerId
from storage.collect import Collection
from storage.exchange import Wanted
from storage.seal import matches

ENDING = 4
"""While there is no claim yet, we read the beats only in the last one of this many parts of our inner steps."""


def start_fetching(member: Membership, wanted: Sequence[Wanted], seconds: float) -> Collection:
    """Start to fetch these objects of a round in parallel, within so many seconds."""
    until = member.time.now() + seconds
    return Collection(
        wanted,
        seconds_left=lambda: max(0.0, until - member.time.now()),
        max_threads=len(wanted),
        cache=member.state.cache,
        time=member.time,
    ).start()


class OtherMembers:
    """The other members of a round: their payloads are fetched as they come. A thread of its own watches them while we
    train and send, `Member.await_record` after that."""

    def __init__(self, member: Membership, round: int) -> None:
        self._member, self._round = member, round
        self._due = self._left = False
        self._looked = 0.0
        self._changed = member.time.condition()
        self._fetching: list[Collection] = []
        self._wanted = set[PeerId]()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch them while the body runs."""
        task: Task | None = self._member.time.start(self._watch, "others")
        try:
            yield
        except KeyboardInterrupt:
            task = None  # our process is asked to stop: it does not wait for a store that does not answer
            raise
        finally:
            with self._changed:
                self._left = True
                self._changed.notify_all()
            if task is not None:
                task.join()

    def due(self) -> bool:
        """Whether we have to end our inner steps: the round is closed, or most members have claimed and wait for us.
        Never waits."""
        return self._due

    def claims(self) -> dict[PeerId, Claim]:
        """Return the round's claims that count. A member that is gone, or we, may have claimed on a record that the
        store has lost since: nobody goes on from there."""
        member = self._member
        link, beating = member.state.saved.link, member.presence.confirmed_alive() - {member.me}
        claims = member.ledger.claims(self._round)
        return {peer: claim for peer, claim in claims.items() if claim.previous == link or peer in beating}

    def fetch(self, claims: Mapping[PeerId, Claim]) -> None:
        """Start to fetch the payloads claimed since the last call whose claims build on our state. None for int8, where
        a member reads a part of each, after the record."""
        if isinstance(self._member.spec.layout, DenseLayout):
            return
        member, link = self._member, self._member.state.saved.link
        new = [peer for peer, claim in claims.items() if peer not in self._wanted and claim.previous == link]
        self._wanted |= set(new)
        sources = member.ledger.payloads(claims)
        wanted = [
            Wanted(
                peer,
                sources.payload(member.ledger.run, self._round, peer),
                member.spec.object_bytes,
                matches(claims[peer].envelope),
            )
            for peer in new
            if peer != member.me
        ]
        if not wanted:
            return
        self._fetching.append(start_fetching(member, wanted, member.seconds_to_send()))

    def wait(self) -> None:
        """Await the started fetches, until each is done or has failed."""
        for collection in self._fetching:
            collection.outcome()

    def stop(self) -> None:
        """Stop fetching for this round."""
        for collection in self._fetching:
            collection.stop()

    def _watch(self) -> None:
        member = self._member
        while not (self._left or self._due):
            with suppress(StorageError):
                self._look()
            with self._changed:
                if not self._left:
                    self._changed.wait(2 * look_seconds(member.spec.cluster, member.records))

    def _look(self) -> None:
        member = self._member
        claims, rules = self.claims(), member.spec.cluster
        if not claims:
            # If a member dies while all train, its death is known by the time at which the round could end.
            late = ENDING * member.heartbeat.step >= (ENDING - 1) * member.spec.inner.steps
            if late and member.time.now() >= self._looked + rules.silent_seconds / 2:
                self._read_heartbeats()
            return
        if member.ledger.record(self._round) is not None:
            self._due = True
            return
        self.fetch(claims)
        self._read_heartbeats()
        stands = round_progress(claims, member.presence.can_claim())
        self._due = self._due or stands.enough or stands.waiting == {member.me}

    def _read_heartbeats(self) -> None:
        member = self._member
        self._looked = member.time.now()
        member.read_beats()
        # Another member has moved on from this round: its record was lost.
        self._due = self._due or member.presence.furthest() > self._round
