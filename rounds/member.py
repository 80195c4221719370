"""A cluster member's rounds: train, seal, publish, claim, and follow the record that the store holds of each.

One round reads top to bottom in `Member.play`. Nobody is asked and nobody listens: all that members know of each other
stands in their bucket (node/ledger.py), and who closes a round is whoever creates its record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from loguru import logger

from cluster.choosing import choose
from cluster.closing import closing, grace_seconds
from cluster.pace import ROUNDS, least_steps, planned_steps
from cluster.presence import LONGEST_LOOK_BEATS, Presence
from gauntlet.agreement import Agreed
from node.events import round_seconds
from node.held import Held
from node.ledger import CALL_SECONDS, Ledger, Patience
from node.payloads import Lacking, fetch_pinned, open_pinned
from node.pulse import Pulse
from node.rejoin import SLOWEST_BYTES, begin, from_checkpoint, from_genesis, shown_by_members
from node.state import SealedRound, Snapshot
from protocol.assignment import Draw, assigned
from protocol.cluster import Claim, ClusterSpec, Record, digest_of
from protocol.errors import ConfigError, OutOfSync, StorageError
from protocol.types import Digest, Page, PeerId
from rounds.checkpoints import Checkpoints
from rounds.work import Diverged, Work
from storage.collect import Collection
from storage.exchange import Data, Fault, Wanted
from storage.s3 import RangedBucket
from storage.seal import matches
from training.shards import Shards

ENDING = 4
"""In the last one of so many parts of our inner steps we look at who lives, though nobody has claimed yet."""
LONGEST_PAUSE = 600.0
"""Seconds between two tries to come to the run's theta: each may fetch the whole model."""
TOLD_SECONDS = 60.0
LOST_ROUNDS = 4
"""Tries to have a round's payloads, after which a checkpoint is looked for in their place."""


class Elsewhere(OutOfSync):
    """The run stands at another theta than we."""


class Member:
    """One member's rounds. `name`: for people."""

    def __init__(
        self, spec: ClusterSpec, name: str, held: Held, shards: Shards, ledger: Ledger, process: str = ""
    ) -> None:
        """process: as of Pulse."""
        self.spec, self.held, self.ledger, self.time = spec, held, ledger, ledger.time
        self.me = ledger.me
        self.work = Work(held, shards, ledger.part(self.me), ledger.group.signer(self.me), ledger.time)
        self.pulse = Pulse(ledger, name, spec.cluster.beat_seconds, process)
        self.presence = Presence(spec.cluster)
        self.patience = Patience(ledger.time, spec.cluster.beat_seconds)
        self.checkpoints = Checkpoints(MemberShelf(self))
        self.records: list[Record] = []
        """The last ones: what steps take."""
        self.sending = 0.0
        """Seconds from our last inner step to our claim, the last time."""
        self._trained_at: float | None = None
        self.skipped, self.claimed = -1, (-1, Digest(b""))
        """The last round to which we send nothing; and what we have claimed, since our start."""
        self.vain = 0
        self.doubles = set[tuple[str, int]]()
        """Beats of ours that this process has not written."""
        self.astray, self.astray_in = 0, -1
        """How often, and in which round, we held another theta than the run."""

    # --- rounds ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play rounds until stopped."""
        self.pulse.start()
        try:
            while not self._patiently(self.begin):
                pass
            while True:
                self._patiently(self.take_part)
        finally:
            self.pulse.leave()

    def begin(self) -> None:
        """Have a state, and forget uploads that we did not live to finish."""
        begin(self.ledger, self.held)
        round = self.held.saved.round
        latest = [self.ledger.record(number) for number in range(max(0, round - ROUNDS), round)]
        self.records = [record for record in latest if record is not None]
        try:
            self.ledger.part(self.me).abort_unfinished("", timeout_seconds=CALL_SECONDS)
        except StorageError as fault:
            logger.warning("unfinished uploads of an earlier start may stay in the bucket: {fault}", fault=str(fault))
        self.held.events.emit("joined", round)

    def take_part(self) -> None:
        """The next round, from wherever the run stands."""
        try:
            self.rejoin()
            round = self.held.saved.round
            others = Others(self, round)
            try:
                self.play(round, others)
                self.follow(round, others)
            finally:
                others.stop()
            self.checkpoints.look()
        except Elsewhere as fault:
            self.start_over(str(fault))

    def play(self, round: int, others: "Others") -> None:
        """Our own part of a round. What was sealed before a crash is sent as it is, and what was claimed stays."""
        sealed = self.held.saved.sealed
        with others.watched():
            if sealed is None or sealed.round != round:
                # What we claimed and have lost stays as it is claimed: others may be about to apply it.
                skips = self.skipped == round or self.ledger.claimed(round)
                sealed = None if skips else self.train(round, others)
            if sealed is None:
                self.skipped, self.pulse.phase = round, "idle"
            elif self.claimed != (round, sealed.object):
                self.publish(round, sealed)
                self.claim(round, sealed)
                self.claimed = round, sealed.object
                self.pulse.phase = "wait"

    def follow(self, round: int, others: "Others") -> None:
        """Wait for the round's record, or close it, and apply what stands there."""
        with self.held.timeline.begin("wait"):
            record = self.close(round, others)
            others.wait()
        self.pulse.phase = "apply"
        self.apply(round, record)

    def pages(self, round: int) -> tuple[Page, ...]:
        """The pages that are ours in the round, drawn from the link of the record before it."""
        spec = self.spec
        return assigned(
            self.ledger.run,
            self.held.saved.link,
            self.me,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )

    def train(self, round: int, others: "Others") -> SealedRound | None:
        """As many inner steps as are planned, or as there is time for; None where those are too few to send."""
        inner, pulse = self.spec.inner, self.pulse
        planned = planned_steps(inner.steps, self.records, self.me)
        pulse.round, pulse.step, pulse.phase = round, 0, "train"
        training = self.work.training(round, self.pages(round), inner)

        def stopped() -> bool:
            pulse.step += 1
            return pulse.step >= planned or others.due()

        done = training.go_on(stopped)
        training.end()
        pulse.phase = "send"
        self._trained_at = self.time.now()
        if done < least_steps(inner.steps, self.spec.cluster, planned):
            logger.warning("round {round}: {done} steps are too few to send anything", round=round, done=done)
            return None
        try:
            return self.work.seal(round, self.work.compress(), self.seconds_to_send)
        except Diverged as fault:
            logger.error("round {round}: {fault}; sending nothing", round=round, fault=str(fault))
            self.held.events.emit("broke_off", round, fault=str(fault))
            return None

    def publish(self, round: int, sealed: SealedRound) -> None:
        self.pulse.phase = "send"
        self.work.publish(round, sealed, self.seconds_to_send)

    def claim(self, round: int, sealed: SealedRound) -> None:
        """Say that our update is there, with what opens it."""
        theta, link = self.held.claim
        envelope = self.work.envelope_digest(sealed)
        claim = Claim(
            theta=theta.hex(),
            previous=link.hex(),
            envelope=envelope.hex(),
            key=self.ledger.group.wrap(sealed.key, envelope).hex(),
            steps=sealed.steps,
            seconds=round_seconds(sealed.seconds),
            sending=round_seconds(self.sending),
        )
        self.ledger.claim(round, claim)
        if self._trained_at is not None:
            self.sending, self._trained_at = self.time.now() - self._trained_at, None
        self.held.events.emit("claimed", round, steps=sealed.steps)

    def seconds_to_send(self) -> float:
        """Time-out of one try to send a payload."""
        return 4 * CALL_SECONDS + self.spec.object_bytes / SLOWEST_BYTES

    # --- what a round comes to -----------------------------------------------------------------------------------

    def close(self, round: int, others: "Others") -> Record:
        """The round's record: somebody's, or ours. Raises Elsewhere where most claims name another theta than we
        hold."""
        enough_for, looked, rules = 0.0, self.time.now(), self.spec.cluster
        longest, told = LONGEST_LOOK_BEATS * rules.beat_seconds, self.time.now()
        while True:
            try:
                if (record := self.ledger.record(round)) is not None:
                    return record
                claims = self.ledger.claims(round)
                others.fetch(claims)
                self.look_at_beats()
                stands = closing(claims, self.presence.living())
                passed, looked = min(self.time.now() - looked, longest), self.time.now()
                enough_for = enough_for + passed if stands.enough else 0.0
                ends = bool(claims) and stands.ends(enough_for, grace_seconds(rules, claims.values()))
                if ends and self.create(round, claims, stands.waiting):
                    continue
                if not ends and self.time.now() >= told + TOLD_SECONDS:
                    told = self.time.now()
                    logger.info(
                        "round {round}: {claimed} have claimed, waiting for {waiting} that live",
                        round=round,
                        claimed=len(claims),
                        waiting=len(stands.waiting),
                    )
                self.patience.answered()
            except StorageError as fault:
                self.patience.failed(fault)
                looked = self.time.now()
            self.time.sleep(rules.beat_seconds / 2)

    def look_at_beats(self) -> None:
        """Who lives. Raises ConfigError where another machine plays as us."""
        beats = self.ledger.beats()
        mine = beats.get(self.me)
        if mine is not None and mine.process != self.pulse.process:
            self.doubles.add((mine.process, mine.count))
            if len(self.doubles) > 2:
                raise ConfigError(
                    "another machine takes part as this very member: its home was copied. Stop one of them, and delete "
                    "the file `member` in the run's folder of its --home: it then takes part as a new member"
                )
        self.presence.look(beats, self.time.now())

    def create(self, round: int, claims: dict[PeerId, Claim], without: frozenset[PeerId]) -> bool:
        """Close the round with what these claims make, and take away the beats of those that are gone for good. False
        where somebody was faster."""
        record = choose(claims, self.presence.living(), self.held.claim, self.me)
        if record is None:
            raise Elsewhere("nobody's claim goes on from the link that we hold")
        if digest_of(record.theta) != self.held.claim[0]:
            raise Elsewhere(f"most of the claims of round {round} name another theta")
        ours = self.ledger.create(round, record)
        self.held.events.emit("closed", round, ours=ours, waited_for=[member.hex() for member in sorted(without)])
        for member in self.presence.gone():
            self.ledger.clear(member)
        return ours

    def apply(self, round: int, record: Record) -> None:
        """The outer step of this record. Raises Elsewhere where it is of another state than ours, Lacking, or
        StorageError."""
        held, pair = self.held, self.held.claim
        selection = record.selection(self.ledger.run, round)
        if (selection.theta, selection.previous) != pair:
            raise Elsewhere(f"the record of round {round} is of another state than ours")
        contributing = [update.peer for update in record.updates]
        mine = None if self.me in contributing else held.own_update(round)
        held.lay_out_own(self.me, round)
        with held.timeline.begin("download") as download:
            sealed = self.gather(round, record)
        with held.timeline.begin("apply") as apply:
            shown = {update.peer: self._key(update.envelope, update.key) for update in record.updates}
            opened = open_pinned(self.spec, round, selection.contributing, sealed, shown, self.time)
            held.apply(round, self.spec, Agreed(pair, selection, 0), opened)
        if mine is not None:
            held.give_back(mine)
        self.records = [*self.records, record][-ROUNDS:]
        held.events.emit(
            "applied",
            round,
            void=False,
            contributing=[peer.hex() for peer in contributing],
            theta=pair[0].hex(),
            decided=None,
            after=None,
            guess=None,
            seconds={"download": round_seconds(download.seconds), "apply": round_seconds(apply.seconds)},
        )
        if mine is not None:
            held.events.emit("given_back", round)
        held.save_own()
        held.events.emit("phases", round, phases=held.timeline.take())
        logger.info(
            "round {round}: {count} contributed, {ours}",
            round=round,
            count=len(contributing),
            ours="we among them" if mine is None and self.me in contributing else "without us",
        )

    def gather(self, round: int, record: Record) -> dict[PeerId, Data]:
        """The sealed objects that the record names: all of them, or Lacking is raised."""
        pairs = record.selection(self.ledger.run, round).contributing
        seconds = len(pairs) * self.seconds_to_send()
        cache = self.held.cache
        found = fetch_pinned(self.spec, self.ledger.run, round, pairs, self.ledger, seconds, cache, self.time)
        lacking = [peer for peer, data in found.items() if isinstance(data, Fault)]
        if lacking:
            raise Lacking(round, lacking, f"round {round}: {len(lacking)} of {len(pairs)} payloads are not to be had")
        return {peer: data for peer, data in found.items() if not isinstance(data, Fault)}

    def _key(self, envelope: str, wrapped: str) -> bytes:
        return self.ledger.group.wrap(bytes.fromhex(wrapped), digest_of(envelope))

    # --- coming back -------------------------------------------------------------------------------------------

    def rejoin(self) -> None:
        """Stand where the run stands: apply all records that there are, or begin from a checkpoint where those are too
        many, or their payloads gone. Raises Elsewhere."""
        held = self.held
        while (record := self.ledger.record(held.saved.round)) is not None:
            self.pulse.phase = "join"
            try:
                self.apply(held.saved.round, record)
                self.vain = 0
            except Lacking:
                self.vain += 1
                if self.vain < LOST_ROUNDS or not from_checkpoint(self.ledger, held, held.saved.round):
                    raise
        self.pulse.round = held.saved.round

    def start_over(self, why: str) -> None:
        """Our theta is not the run's: take a checkpoint, whatever we hold. Where that leads to the same theta again,
        another one is to come first."""
        self.pulse.phase, round = "join", self.held.saved.round
        self.astray = self.astray + 1 if self.astray_in == round else 0
        self.astray_in = round
        logger.warning("{why}: starting again from a checkpoint", why=why)
        self.held.events.emit("diverged", round, why=why)
        if self.astray:
            logger.error("this machine computes another theta than the run's: look at its memory, its GPU, its release")
            self.time.sleep(min(LONGEST_PAUSE, self.spec.cluster.silent_seconds * 2 ** min(self.astray, 10)))
        if from_checkpoint(self.ledger, self.held, -1):
            return
        if round > self.spec.cluster.keep_rounds:
            raise StorageError(
                "nobody shows a checkpoint, and the payloads since theta_0 are gone: keeping what we hold"
            )
        from_genesis(self.ledger, self.held)

    def _patiently(self, do: Callable[[], None]) -> bool:
        """Whether it came to its end; else the store has failed, and the next try is due."""
        try:
            do()
        except StorageError as fault:
            self.held.events.emit("broke_off", self.pulse.round, fault=str(fault))
            self.patience.failed(fault)
            return False
        self.patience.answered()
        return True


class Others:
    """What the other members of a round do: their payloads are fetched as they come. Looked at in a thread of its own
    while we train and send, and by `Member.close` after that."""

    def __init__(self, member: Member, round: int) -> None:
        self._member, self._round = member, round
        self._due = self._left = False
        self._looked = 0.0
        self._changed = member.time.condition()
        self._fetching: list[Collection] = []
        self._wanted = set[PeerId]()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at them beside what is done inside."""
        task = self._member.time.start(self._watch, "others")
        try:
            yield
        finally:
            with self._changed:
                self._left = True
                self._changed.notify_all()
            task.join()

    def due(self) -> bool:
        """Whether we have to end our inner steps: the round is closed, or most have claimed and wait for us. Never
        waits."""
        return self._due

    def fetch(self, claims: Mapping[PeerId, Claim]) -> None:
        """Begin to fetch what has been claimed since the last call, and goes on from where we stand."""
        member, link = self._member, self._member.held.saved.link.hex()
        new = [peer for peer, claim in claims.items() if peer not in self._wanted and claim.previous == link]
        self._wanted |= set(new)
        wanted = [
            Wanted(
                peer,
                member.ledger.payload(member.ledger.run, self._round, peer),
                member.spec.object_bytes,
                matches(digest_of(claims[peer].envelope)),
            )
            for peer in new
            if peer != member.me
        ]
        if not wanted:
            return
        until = member.time.now() + member.seconds_to_send()
        collection = Collection(
            wanted,
            seconds_left=lambda: max(0.0, until - member.time.now()),
            max_threads=len(wanted),
            cache=member.held.cache,
            time=member.time,
        )
        self._fetching.append(collection.start())

    def wait(self) -> None:
        """Until what was begun to be fetched is here, or nobody gives it."""
        for collection in self._fetching:
            collection.outcome()

    def stop(self) -> None:
        """Nothing more of this round is wanted."""
        for collection in self._fetching:
            collection.stop()

    def _watch(self) -> None:
        member = self._member
        with suppress(StorageError):
            if (old := self._round - member.spec.cluster.keep_rounds) >= 0:
                member.ledger.forget(old)
        while not (self._left or self._due):
            with suppress(StorageError):
                self._look()
            with self._changed:
                if not self._left:
                    self._changed.wait(member.spec.cluster.beat_seconds)

    def _look(self) -> None:
        member = self._member
        claims, rules = member.ledger.claims(self._round), member.spec.cluster
        if not claims:
            # Whoever has died while all train is known to be dead by the time at which the round could end.
            late = ENDING * member.pulse.step >= (ENDING - 1) * member.spec.inner.steps
            if late and member.time.now() >= self._looked + rules.silent_seconds / 2:
                self._look_at_beats()
            return
        if member.ledger.record(self._round) is not None:
            self._due = True
            return
        self.fetch(claims)
        self._look_at_beats()
        stands = closing(claims, member.presence.living())
        self._due = stands.enough or stands.waiting == {member.me}

    def _look_at_beats(self) -> None:
        self._looked = self._member.time.now()
        self._member.presence.look(self._member.ledger.beats(), self._looked)


class MemberShelf:
    """A member's part of the bucket, for its checkpoints. One member puts one up, drawn from its link; the next in that
    order does where nobody shows it a round later."""

    kept = 1

    def __init__(self, member: Member) -> None:
        self._member = member
        ledger = member.ledger
        self.held, self.run, self.time = member.held, ledger.run, ledger.time
        self.bucket: RangedBucket = ledger.part(member.me)
        self.signer, self.verify = ledger.group.signer(member.me), ledger.group.verify

    def may_show(self) -> bool:
        return True  # whoever stands elsewhere has not applied the last record

    def is_due(self, snapshot: Snapshot) -> bool:
        member = self._member
        order = turns(snapshot.link, sorted({*member.presence.living(), member.me}))
        place = order.index(member.me)
        if not place or self.held.saved.round < snapshot.round + place:
            return not place
        return not any(checkpoint.link == snapshot.link for _, checkpoint in shown_by_members(member.ledger))

    def document_seconds(self) -> float:
        return CALL_SECONDS

    def state_seconds(self) -> float:
        return CALL_SECONDS + 4 * self.held.first.layout.num_parameters / SLOWEST_BYTES


def turns(link: Digest, members: Sequence[PeerId]) -> list[PeerId]:
    """The members in the order in which they put up the state at this link."""
    return Draw("checkpoint", link).sample(members, len(members))
