"""A cluster member: it looks at the bucket, decides what to do next, and does it.

Nobody is asked and nobody listens: all that members know of each other stands in their bucket
(murmur/cluster/ledger.py). What a member does next is a pure function of its round and of what the bucket shows
(murmur/cluster/decide.py).
"""

from contextlib import suppress
from dataclasses import replace
from math import inf

from loguru import logger

from murmur.cluster.actions import (
    Action,
    Apply,
    AskFor,
    AwaitStore,
    ClaimAgain,
    Create,
    FindRecord,
    Finish,
    Leave,
    Recall,
    Restart,
    Send,
    Skip,
    Sleep,
    Train,
    TrainAfterAll,
    Yield,
)
from murmur.cluster.amendments import AmendedSpec, KeptAmendments
from murmur.cluster.checkpoint_turns import MemberShelf
from murmur.cluster.contribute import Contributor
from murmur.cluster.decide import has_to_stop, needs_look, next_action, round_progress
from murmur.cluster.documents import CALL_SECONDS
from murmur.cluster.ending import Drains, finish
from murmur.cluster.fetch import PayloadFetcher
from murmur.cluster.follow import Follower
from murmur.cluster.heartbeat import Heartbeat
from murmur.cluster.ledger import Ledger
from murmur.cluster.mean import MeanRound
from murmur.cluster.mean_parts import MeanMaker
from murmur.cluster.pace import ROUNDS, SLOWEST_BYTES, Pace, least_steps
from murmur.cluster.presence import LONGEST_LOOK_BEATS
from murmur.cluster.record_log import RecordLog
from murmur.cluster.recovery import Recovery
from murmur.cluster.rejoin import begin
from murmur.cluster.repair import Repair, Wants
from murmur.cluster.starts import Starts
from murmur.cluster.state import Round, RunElsewhere, StoreAway, after_look, missing
from murmur.cluster.store_outage import StoreOutage
from murmur.cluster.upkeep import Upkeep
from murmur.cluster.view import ClusterView
from murmur.data.shards import Shards
from murmur.node.state.node_state import NodeState
from murmur.protocol.assignment import assigned
from murmur.protocol.cluster import ClusterSpec, Record, Standing
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.messages import first_link
from murmur.protocol.types import PeerId
from murmur.rounds.checkpoints import Checkpoints

TOLD_SECONDS = 60.0


class Member:
    """One member. `round` is all that it knows of its own position; other threads read it. `name`: for people."""

    def __init__(
        self, spec: ClusterSpec, name: str, state: NodeState, shards: Shards, ledger: Ledger, process: str = ""
    ) -> None:
        """process: as in Heartbeat."""
        self.name, self.state, self.ledger, self.time = name, state, ledger, ledger.time
        self.round = Round(0, first_link(ledger.run))
        self.pace = Pace(spec.inner.steps)
        self.amendments = KeptAmendments(state.store.folder / "amendments", ledger)
        self.amended = AmendedSpec(spec, self.amendments)
        self.heartbeat = Heartbeat(ledger, name, lambda: self.round, lambda: self.spec.cluster.beat_seconds, process)
        self.fetcher = PayloadFetcher(ledger, state.cache, self.seconds_to_send)
        self.view = ClusterView(
            ledger, self.heartbeat, self.fetcher, lambda: self.round, lambda: self.spec, lambda: self.pace
        )
        self.outage = StoreOutage(ledger.time, spec.cluster.beat_seconds)
        log = RecordLog(state.store.folder / "records", ledger.run, ledger.group, spec.cluster.keep_rounds)
        self.wants = Wants(ledger)
        self.recovery = Recovery(ledger, state, log, self.wants)
        repair = Repair(lambda: self.spec, state, ledger, log)
        self.upkeep = Upkeep(state, ledger, self.view, repair, self.amendments)
        self.shelf = MemberShelf(state, ledger, self.view)
        self.checkpoints = Checkpoints(self.shelf)
        self.drains = Drains(ledger, state.store.folder)
        self.starts = Starts(state.store.folder / "starts", ledger.time)
        maker = mean = None
        if isinstance(spec.layout, DenseLayout):
            maker = MeanMaker(ledger, state, spec.layout, self.seconds_to_send)
            mean = MeanRound(ledger, maker, spec.layout, self.fetcher, self.view, self.wants, self._step)
        self.contributor = Contributor(ledger, state, shards, maker, self.seconds_to_send)
        self.follower = Follower(ledger, state, log, self.fetcher, mean, self.seconds_to_send)
        self._joined = False
        self._told = -inf

    @property
    def spec(self) -> ClusterSpec:
        """In force in the round at which we stand."""
        return self.amended.spec

    def seconds_to_send(self) -> float:
        """Time-out of one try to send a payload."""
        return 4 * CALL_SECONDS + self.spec.object_bytes / SLOWEST_BYTES

    def move(self, **changes: object) -> None:
        """Replace fields of our round."""
        self.round = replace(self.round, **changes)  # type: ignore[arg-type]

    def stand(self, standing: Standing, **changes: object) -> None:
        """Be in this standing; what we wait for counts from now on."""
        self.move(standing=standing, enough_for=0.0, looked=self.time.now(), **changes)

    def enter(self, *, recalled: bool = False) -> None:
        """Be at the start of the round at which our state stands. recalled: whether we know the records before it."""
        saved = self.state.saved
        sealed = saved.sealed.object if saved.sealed is not None and saved.sealed.round == saved.round else None
        standing = self.round.standing if recalled else Standing.JOINING
        closed = self.amended.closed and recalled
        self.round = Round(saved.round, saved.link, saved.theta, standing, recalled, sealed=sealed, closed=closed)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play rounds until stopped."""
        self.starts.wait(self.spec.cluster.beat_seconds)
        self.heartbeat.start()
        self.view.start()
        try:
            while not self._begin():
                pass
            self.upkeep.start()
            while not self._end(action := self._next()):
                self._try(action)
        finally:
            self.upkeep.end()
            self.view.end()
            self.heartbeat.leave()

    def _begin(self) -> bool:
        """Have a state, and forget uploads that we did not live to finish. Return whether we have one."""
        try:
            begin(self.ledger, self.state)
        except StorageError as fault:
            self._interrupted(fault)
            self.outage.failed(fault)
            return False
        try:
            self.ledger.abort_unfinished(self.state.saved.round)
        except StorageError as fault:
            told = "could not remove unfinished uploads of an earlier start from the bucket: {fault}"
            logger.warning(told, fault=str(fault))
        self.view.began_in = self.state.saved.round
        self.enter()
        return True

    def _next(self) -> Action:
        view = self.view.refresh() if needs_look(self.round) else self.view.value
        if self.round.claimed or self.round.skips:
            enough = round_progress(view.claims, view.presence.can_claim()).enough
            longest = LONGEST_LOOK_BEATS * self.spec.cluster.beat_seconds
            self.round = after_look(self.round, view, enough=enough, longest=longest)
        return next_action(self.round, view, self.ledger.me, self.spec.cluster, self.pace)

    def _try(self, action: Action) -> None:
        """Do it. What it lacks is a value of our round from then on."""
        try:
            self._do(action)
        except (StorageError, RunElsewhere) as fault:
            lack = missing(fault)
            if isinstance(lack, StoreAway):
                self._interrupted(fault)
            standing = self.round.standing
            self.move(
                missing=lack,
                standing=Standing.JOINING if standing is Standing.APPLYING else standing,
                unsent=standing is Standing.SENDING,
            )

    def _do(self, action: Action) -> None:
        match action:
            case Recall():
                self._recall()
            case Train(seconds, passed):
                self._train(seconds, passed)
            case Skip():
                self.stand(Standing.IDLE, skips=True)
            case Send():
                self._send()
            case Create(record, without):
                self._close(record, without)
            case Apply(record):
                self._apply(record)
            case FindRecord():
                self.ledger.require_record(self.round.number)
            case ClaimAgain(seconds):
                self.ledger.claim_again(self.round.number)
                self.time.sleep(seconds)
            case Sleep(seconds, waiting):
                self._wait(seconds, waiting)
            case _:
                self._mend(action)

    def _mend(self, action: Action) -> None:
        """Do what is left where something is missing."""
        match action:
            case AwaitStore(fault):
                self.outage.failed(fault)
                self.move(missing=None, looked=self.time.now())
            case AskFor(lost):
                self.move(missing=None, standing=Standing.JOINING)
                if self.recovery.ask(lost.fault, self.spec.cluster):
                    self.enter()
                else:
                    self._interrupted(lost.fault)
                    self.outage.failed(lost.fault)
            case Restart(why):
                self.move(missing=None, standing=Standing.JOINING, claimed=False, skips=False)
                self.recovery.start_over(why, self.spec.cluster)
                self.enter()
            case TrainAfterAll(seconds):
                self.stand(Standing.JOINING, skips=False, spoken=False)
                self.time.sleep(seconds)

    # --- one round -----------------------------------------------------------------------------------------------

    def _train(self, seconds: float | None, passed: float) -> None:
        """Train, and seal what that gives."""
        spec, now, decided = self.spec, self.time.now, self.view.value.at
        number, inner = self.round.number, spec.inner
        self.move(standing=Standing.TRAINING, step=0, began=None)
        pages = assigned(
            self.ledger.run,
            self.round.link,
            self.ledger.me,
            num_pages=spec.num_pages,
            page_tokens=spec.page_tokens,
            count=spec.pages_per_round,
            first_page=inner.first_page,
        )
        self.contributor.hold(pages)
        began = now()
        passed += began - decided if passed else 0.0
        until = began + seconds - (began - decided if passed else 0.0) if seconds is not None else inf
        self.move(began=began - (passed if seconds is not None else 0.0))

        def stopped() -> bool:
            self._step()
            # Who has a limit ends before it: a step of a slow machine may last longer than the others wait.
            late = now() + (now() - began) / self.round.step > until
            return late or has_to_stop(self.round, self.view.value, self.ledger.me)

        done = self.contributor.train(number, pages, inner, stopped, lambda: self.move(standing=Standing.SENDING))
        self.pace = replace(self.pace, step_seconds=self.contributor.step_seconds)
        sealed = None
        if done < (least_steps(spec.cluster, inner.steps) if seconds is None else 1):
            logger.warning("round {round}: {done} steps are too few to send anything", round=number, done=done)
        else:
            sealed = self.contributor.seal(number)
        if sealed is None:
            self.stand(Standing.IDLE, skips=True)
        else:
            self.move(sealed=sealed.object)

    def _step(self) -> None:
        self.move(step=self.round.step + 1)  # others see that we go on

    def _send(self) -> None:
        """Upload our sealed update, and claim it."""
        self.move(standing=Standing.SENDING)
        sealed = self.state.saved.sealed
        assert sealed is not None
        self.contributor.send(self.round.number, sealed)
        self.stand(Standing.WAITING, claimed=True)
        self.starts.clear()
        self.state.save_own()
        self.outage.answered()

    def _close(self, record: Record, without: frozenset[PeerId]) -> None:
        """Close the round with this record, unless somebody was faster. It counts the amendments that have come."""
        number = self.round.number
        if self.ledger.record(number + 1) is not None:
            self.ledger.require_record(number)
        amended = self.amended
        with suppress(StorageError):  # one that cannot be read now comes into force with a later record
            amended = amended.coming(self.ledger.amendment)
        self.amendments.save(amended.taken)
        ours = self.ledger.close(number, record.model_copy(update={"amendments": amended.count}))
        waited_for = [member.hex() for member in sorted(without)]
        self.state.events.emit("closed", number, ours=ours, waited_for=waited_for)

    def _apply(self, record: Record) -> None:
        """Apply the round's record, and be in the next round."""
        if self.round.standing is not Standing.JOINING:
            self.move(standing=Standing.APPLYING)
        number, skipped = self.round.number, self.round.skips
        amended = self.amended.at(record.amendments)
        self.follower.apply(number, self.spec, record)
        self.adopt(amended, [*self.pace.records, record])
        self.enter(recalled=True)
        state = self.state
        if skipped or self.ledger.me not in record.claims:
            state.save_own()  # else it is on the disk, or on its way there, since we claimed
        state.take_snapshot()
        state.events.emit("phases", number, phases=state.timeline.take())
        self.wants.clear()
        self.outage.answered()
        self.checkpoints.look()
        self.move(drained=self.drains.asked())

    def _wait(self, seconds: float, waiting: int) -> None:
        self.outage.answered()
        round, now = self.round, self.time.now()
        if round.standing is Standing.JOINING:
            self.move(standing=Standing.WAITING if round.claimed else Standing.IDLE)
        if now >= self._told + TOLD_SECONDS:
            self._told = now
            claimed = len(self.view.value.claims)
            line = "round {round}: {claimed} have claimed, waiting for {waits} that live"
            logger.info(line, round=round.number, claimed=claimed, waits=waiting)
        self.time.sleep(seconds)

    def _recall(self) -> None:
        """Take what the last records before our round say: what steps take, and which amendments hold; and whether we
        have claimed in it."""
        records = self.recovery.recall()
        self.adopt(self.amended.at(records[-1].amendments if records else 0), records)
        spoken = self.ledger.claimed(self.round.number, self.round.link)
        self.move(recalled=True, spoken=spoken, closed=self.amended.closed)
        if not self._joined:
            self.wants.clear()
            self._joined = True
            self.state.events.emit("joined", self.round.number)

    def adopt(self, amended: AmendedSpec, records: list[Record]) -> None:
        """Play by these amendments from now on. records: the last ones."""
        if amended.count != self.amended.count:
            logger.info(
                "from round {round} on, {count} amendments are in force",
                round=self.state.saved.round,
                count=amended.count,
            )
        self.amended = amended
        self.amendments.keep(amended.taken)
        self.pace = replace(self.pace, steps=self.spec.inner.steps, records=tuple(records[-ROUNDS:]))

    def _end(self, action: Action) -> bool:
        """Whether this is our last action; do it. Raises ConfigError if another machine plays as us."""
        match action:
            case Finish():
                self.stand(Standing.DONE)
                self.shelf.ended_at = self.time.now()
                finish(self.state, self.ledger, self.view, self.checkpoints, self.outage, self.shelf.ended_at)
            case Leave(asked):
                self.drains.follow(asked, self.state.saved.round - 1)
            case Yield():
                raise ConfigError(
                    f"another machine takes part as this same member, {self.name}, and began before this one: two "
                    "machines have the same --name, or its home was copied. Give this machine its own --name and a "
                    "new --home. It then joins as a new member"
                )
            case _:
                return False
        return True

    def _interrupted(self, fault: Exception) -> None:
        self.state.events.emit("interrupted", self.round.number, fault=str(fault))
