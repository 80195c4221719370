"""A cluster member's rounds: train, seal, publish, claim, and follow the record that the store holds of each.

One round reads top to bottom in `Member.play`. Nobody is asked and nobody listens: all that members know of each other
stands in their bucket (murmur/cluster/ledger.py), and the member that creates a round's record closes the round.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf

from loguru import logger

from gauntlet.agreement import Agreed
from murmur.cluster import ending
from murmur.cluster.checkpoint_turns import MemberShelf
from murmur.cluster.decisions import (
    ROUNDS,
    choose,
    grace_seconds,
    least_steps,
    look_seconds,
    round_progress,
    rounds_in,
    seconds_left,
)
from murmur.cluster.ledger import Ledger
from murmur.cluster.mean import Mean
from murmur.cluster.membership import Membership
from murmur.cluster.other_members import OtherMembers
from murmur.cluster.presence import GONE_SILENCES, LONGEST_LOOK_BEATS
from murmur.cluster.recovery import Recovery, RunElsewhere
from murmur.cluster.rejoin import begin
from murmur.data.shards import Shards
from murmur.node.fetch.opening import open_pinned
from murmur.node.fetch.payloads import Lacking, fetch_pinned
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import SealedRound
from murmur.node.telemetry.events import round_seconds
from murmur.protocol.assignment import assigned
from murmur.protocol.cluster import Claim, ClusterSpec, Drain, MeanPart, Record
from murmur.protocol.errors import StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.types import Digest, Page, PeerId
from murmur.rounds.checkpoints import Checkpoints
from murmur.rounds.contribution import Diverged, RoundWork
from storage.exchange import Data, FetchFault

TOLD_SECONDS = 60.0


class Member(Membership):
    """One member's rounds."""

    def __init__(
        self, spec: ClusterSpec, name: str, state: NodeState, shards: Shards, ledger: Ledger, process: str = ""
    ) -> None:
        super().__init__(spec, name, state, ledger, process)
        self.work = RoundWork(
            state,
            shards,
            ledger.bucket,
            ledger.group.signer(self.me),
            ledger.time,
            lambda round, key: ledger.payload_key(round, ledger.me, key),
        )
        self.checkpoints = Checkpoints(MemberShelf(self))
        self.recovery = Recovery(self)
        self.mean = Mean(self, spec.layout) if isinstance(spec.layout, DenseLayout) else None
        """How a round's mean is made, in the int8 exchange."""
        self.sending = 0.0
        """Seconds from our last inner step to our claim, the last time."""
        self.step_seconds: float | None = None
        """Seconds of one inner step, in the last round that we trained."""
        self._trained_at: float | None = None
        self.tried: Digest | None = None
        """The last update that this process has begun to send."""
        self.drained: Drain | None = None

    # --- rounds ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play rounds until stopped."""
        self.heartbeat.start()
        try:
            while not self._patiently(self.begin):
                pass
            self.maintenance.start()
            while not self._patiently(self.recovery.resume):
                pass
            while not (self.amended.closed or self.drained):
                self._patiently(self.take_part)
            if self.amended.closed:
                ending.finish(self, self.checkpoints)
            elif self.drained is not None:
                ending.drain(self, self.drained)
        finally:
            self.maintenance.end()
            self.heartbeat.leave()

    def begin(self) -> None:
        """Have a state, and forget uploads that we did not live to finish."""
        begin(self.ledger, self.state)
        self.began_in = round = self.state.saved.round
        try:
            self.ledger.abort_unfinished(round)
        except StorageError as fault:
            logger.warning(
                "could not remove unfinished uploads of an earlier start from the bucket: {fault}", fault=str(fault)
            )

    def take_part(self) -> None:
        """The next round, from wherever the run stands, unless it is closed."""
        try:
            if not self.recovery.recalled:
                self.recovery.recall()
            self.rejoin()
            if self.amended.closed:
                return
            round = self.state.saved.round
            others = OtherMembers(self, round)
            try:
                self.play(round, others)
                self.follow(round, others)
            finally:
                others.stop()
            self.checkpoints.look()
            self.drained = ending.asked_to_leave(self)
        except RunElsewhere as fault:
            self.recovery.start_over(str(fault))
        except Lacking as fault:
            self.recovery.ask(fault)

    def play(self, round: int, others: "OtherMembers") -> None:
        """Play our own part of a round. An update sealed before a crash is sent unchanged, and a claim is never
        replaced."""
        sealed = self.state.saved.sealed
        with others.watched():
            if sealed is None or sealed.round != round:
                # If we lost the payload of a claim that we made, do not train again: others may already apply that
                # claim.
                skips = self.skipped == round or self.ledger.claimed(round, self.state.saved.link)
                sealed = None if skips else self.train(round, others)
            if sealed is None:
                self.skipped, self.heartbeat.phase = round, "idle"
            elif self.claimed != (round, sealed.object):
                self.publish(round, sealed)
                self.claim(round, sealed)
                self.claimed = round, sealed.object
                self.state.save_own()
                self.heartbeat.phase = "wait"

    def follow(self, round: int, others: "OtherMembers") -> None:
        """Wait for the round's record, or close it, and apply what stands there. If nobody is left to claim, we train
        after all."""
        with self.state.timeline.begin("wait"):
            record = self.await_record(round, others)
            others.wait()
        if record is None:
            self.skipped = -1
            self.time.sleep(self.spec.cluster.beat_seconds)
            return
        self.heartbeat.phase = "apply"
        self.apply(round, record)

    def pages(self, round: int) -> tuple[Page, ...]:
        """The pages that are ours in the round, drawn from the link of the record before it."""
        spec = self.spec
        return assigned(
            self.ledger.run,
            self.state.saved.link,
            self.me,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=spec.inner.first_page,
        )

    def train(self, round: int, others: "OtherMembers") -> SealedRound | None:
        """All inner steps, or as many as there is time for; None where those are too few to send."""
        inner, rules, heartbeat, now = self.spec.inner, self.spec.cluster, self.heartbeat, self.time.now
        heartbeat.round, heartbeat.step, heartbeat.phase, heartbeat.began = round, 0, "train", None
        training = self.work.training(round, self.pages(round), inner)
        self.read_heartbeats_of_all()
        began, passed = now(), self.presence.passed(round, self.me)
        left = seconds_left(rules, inner.steps, self.records, self.me, passed, self.step_seconds)
        until = began + left if left is not None else inf
        heartbeat.began = began - (passed if left is not None else 0.0)

        def stopped() -> bool:
            heartbeat.step += 1
            # Who has a limit ends before it: a step of a slow machine may last longer than the others wait.
            return others.due() or now() + (now() - began) / heartbeat.step > until

        done = training.go_on(stopped)
        self.step_seconds = training.seconds / done if done else None
        training.end()
        heartbeat.phase = "send"
        self._trained_at = now()
        if done < (least_steps(rules, inner.steps) if left is None else 1):
            logger.warning("round {round}: {done} steps are too few to send anything", round=round, done=done)
            return None
        try:
            return self.work.seal(round, self.work.compress(), self.seconds_to_send)
        except Diverged as fault:
            logger.error("round {round}: {fault}; sending nothing", round=round, fault=str(fault))
            self.state.events.emit("interrupted", round, fault=str(fault))
            return None

    def publish(self, round: int, sealed: SealedRound) -> None:
        self.heartbeat.phase = "send"
        tried, self.tried = self.tried, sealed.object
        # It may be there since before this process began, or what comes after it may have failed.
        if tried not in (None, sealed.object) or not self.work.is_published(round, sealed):
            self.work.publish(round, sealed, self.seconds_to_send)
        if self.mean is not None:
            self.mean.publish_blocks(round, sealed)

    def claim(self, round: int, sealed: SealedRound) -> None:
        """Say that our update is there, with what opens it."""
        theta, link = self.state.ref
        envelope = self.work.envelope_digest(sealed)
        claim = Claim(
            theta=theta,
            previous=link,
            envelope=envelope,
            key=self.ledger.group.wrap(sealed.key, envelope).hex(),
            steps=sealed.steps,
            seconds=round_seconds(sealed.seconds),
            sending=round_seconds(self.sending),
            loss=sealed.loss,
        )
        self.ledger.claim(round, claim)
        if self._trained_at is not None:
            self.sending, self._trained_at = self.time.now() - self._trained_at, None
        self.state.events.emit("claimed", round, steps=sealed.steps)

    # --- what a round comes to -----------------------------------------------------------------------------------

    def await_record(self, round: int, others: "OtherMembers") -> Record | None:
        """Return the round's record, another member's or ours; None if nobody has claimed, and only members live that
        send nothing, as we do. Raises RunElsewhere if most claims name another theta than we hold."""
        enough_for, looked, rules = 0.0, self.time.now(), self.spec.cluster
        longest, told = LONGEST_LOOK_BEATS * rules.beat_seconds, self.time.now()
        while True:
            try:
                if (record := self.ledger.record(round)) is not None:
                    return record
                claims = others.claims()
                if self.claimed is not None and self.claimed[0] == round and self.me not in claims:
                    self.ledger.claim_again(round)
                others.fetch(claims)
                self.read_heartbeats_of_all()
                if self.presence.furthest() > round:
                    self.ledger.require_record(round)
                stands = round_progress(claims, self.presence.can_claim())
                passed, looked = min(self.time.now() - looked, longest), self.time.now()
                enough_for = enough_for + passed if stands.enough else 0.0
                ends = bool(claims) and stands.ends(enough_for, grace_seconds(rules, claims.values()))
                if ends and self.create(round, claims, stands.waiting):
                    continue
                if self.skipped == round and not claims and not stands.waiting:
                    return None
                if not ends and self.time.now() >= told + TOLD_SECONDS:
                    told, waits = self.time.now(), len(stands.waiting)
                    line = "round {round}: {claimed} have claimed, waiting for {waits} that live"
                    logger.info(line, round=round, claimed=len(claims), waits=waits)
                self.outage.answered()
            except Lacking:
                raise
            except StorageError as fault:
                self.outage.failed(fault)
                looked = self.time.now()
            self.time.sleep(look_seconds(rules, self.records))

    def create(self, round: int, claims: dict[PeerId, Claim], without: frozenset[PeerId]) -> bool:
        """Close the round with what these claims make, and take away the beats of those that are gone for good. False
        where somebody was faster."""
        record = choose(claims, self.presence.can_claim(), self.state.ref, self.me)
        if record is None:
            raise RunElsewhere(f"most of the claims of round {round} build on another record than ours")
        if record.theta != self.state.ref.theta:
            raise RunElsewhere(f"most of the claims of round {round} name another theta")
        if self.ledger.record(round + 1) is not None:
            self.ledger.require_record(round)
        amended = self.amended
        with suppress(StorageError):  # one that cannot be read now comes into force with a later record
            amended = amended.coming(self.ledger.amendment)
        self.amendments.save(amended.taken)
        record = record.model_copy(update={"amendments": amended.count})
        ours = self.ledger.create(round, record)
        self.state.events.emit("closed", round, ours=ours, waited_for=[member.hex() for member in sorted(without)])
        away = rounds_in(GONE_SILENCES * self.spec.cluster.silent_seconds, self.records, self.spec.inner.steps)
        for member in self.presence.forget_departed(round - away):
            self.ledger.clear(member)
        return ours

    def apply(self, round: int, record: Record) -> None:
        """Apply this record's outer step. Raises RunElsewhere if it is of another state than ours, Lacking, or
        StorageError."""
        state, state_ref = self.state, self.state.ref
        selection = record.selection(self.ledger.run, round)
        if (selection.theta, selection.previous) != state_ref:
            raise RunElsewhere(f"the record of round {round} belongs to another state than ours")
        self.log.keep(round, record)
        amended = self.amended.at(record.amendments)
        contributing = [update.member for update in record.updates]
        # What every value is sent of leaves nothing to carry over: an update that comes too late is lost.
        mine = None if self.me in contributing or self.mean is not None else state.own_update(round)
        state.link_own_payload(self.me, round)
        with state.timeline.begin("download") as download:
            parts = self.mean.parts(round, record) if self.mean is not None else {}
            pinned: Mapping[PeerId, Claim | MeanPart] = parts or record.claims
            try:
                pairs, sealed = self.gather(round, pinned)
            except Lacking as fault:
                if self.mean is not None:
                    self.mean.make_again(round, record, {peer: parts[peer] for peer in fault.peers})
                raise
        with state.timeline.begin("apply") as apply:
            shown = {peer: self.ledger.key_of(one) for peer, one in pinned.items()}
            opened = open_pinned(self.spec, round, pairs, sealed, shown, self.time)
            state.apply(round, self.spec, Agreed(state_ref, selection, 0), opened, mine)
        self.adopt_amendments(amended)
        self.announce_position()
        self.records = [*self.records, record][-ROUNDS:]
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
        if mine is not None or self.skipped == round:
            state.save_own()  # else it is on the disk, or on its way there, since we claimed
        state.take_snapshot()
        state.events.emit("phases", round, phases=state.timeline.take())
        logger.info(
            "round {round}: {count} contributed, {ours}",
            round=round,
            count=len(contributing),
            ours="we among them" if mine is None and self.me in contributing else "without us",
        )
        self.maintenance.clear_wanted()

    def gather(
        self, round: int, pinned: Mapping[PeerId, Claim | MeanPart]
    ) -> tuple[list[tuple[PeerId, Digest]], dict[PeerId, Data]]:
        """The sealed objects that are pinned, with their digests: all of them, or Lacking is raised."""
        pairs = [(peer, one.envelope) for peer, one in sorted(pinned.items())]
        seconds, cache, sources = len(pairs) * self.seconds_to_send(), self.state.cache, self.ledger.payloads(pinned)
        found = fetch_pinned(self.spec, self.ledger.run, round, pairs, sources, seconds, cache, self.time)
        lacking = [peer for peer, data in found.items() if isinstance(data, FetchFault)]
        if lacking:
            told = f"round {round}: {len(lacking)} of {len(pairs)} payloads could not be fetched"
            raise Lacking(round, lacking, told)
        return pairs, {peer: data for peer, data in found.items() if not isinstance(data, FetchFault)}

    # --- coming back -------------------------------------------------------------------------------------------

    def rejoin(self) -> None:
        """Apply all records that there are. Raises RunElsewhere, Lacking."""
        state = self.state
        while (record := self.ledger.record(state.saved.round)) is not None:
            self.heartbeat.phase = "join"
            self.apply(state.saved.round, record)
        self.announce_position()

    def _patiently(self, do: Callable[[], None]) -> bool:
        """Whether it came to its end; else the store has failed, and the next try is due."""
        try:
            do()
        except StorageError as fault:
            self.state.events.emit("interrupted", self.heartbeat.round, fault=str(fault))
            self.outage.failed(fault)
            return False
        self.outage.answered()
        return True
