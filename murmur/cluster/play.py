"""What each action of a member does (murmur/cluster/decide.py decides which comes next)."""

from dataclasses import replace
from math import inf

from loguru import logger

from murmur.cluster.actions import Action, Apply, Create, Do, Sleep, Train
from murmur.cluster.amendments import AmendedSpec, KeptAmendments
from murmur.cluster.contribute import Contributor
from murmur.cluster.decide import has_to_stop
from murmur.cluster.ending import Drains
from murmur.cluster.fetch import PayloadFetcher, seconds_to_send
from murmur.cluster.follow import Follower
from murmur.cluster.heartbeat import Heartbeat
from murmur.cluster.ledger import Ledger
from murmur.cluster.mean import MeanRound
from murmur.cluster.mean_parts import MeanMaker
from murmur.cluster.on_disk import OnDisk
from murmur.cluster.pace import ROUNDS, Pace, least_steps, look_seconds
from murmur.cluster.recovery import Recovery
from murmur.cluster.repair import Wants
from murmur.cluster.starts import Starts
from murmur.cluster.state import Elsewhere, Missing, ObjectLost, Round, StoreAway
from murmur.cluster.store_outage import StoreOutage
from murmur.cluster.view import ClusterView
from murmur.data.shards import Shards
from murmur.node.state.node_state import NodeState
from murmur.protocol.cluster import ClusterSpec, Record, Standing
from murmur.protocol.errors import StorageError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.messages import first_link
from murmur.rounds.checkpoints import Checkpoints

TOLD_SECONDS = 60.0


class Play:
    """One member's part in the rounds. `round` is all that it knows of its own position: one thread replaces it, others
    read it. log: the last records on our disk."""

    def __init__(
        self, spec: ClusterSpec, name: str, state: NodeState, shards: Shards, ledger: Ledger, process: str
    ) -> None:
        """See Member."""
        self.state, self.ledger, self.time, folder = state, ledger, ledger.time, state.store.folder
        self.round, self.pace = Round(0, first_link(ledger.run)), Pace(spec.inner.steps)
        self.amendments = KeptAmendments(folder / "amendments", ledger)
        self.amended = AmendedSpec(spec, self.amendments)
        self.log = OnDisk(Record, folder / "records", ledger.run, ledger.group)
        self.heartbeat = Heartbeat(ledger, name, lambda: self.round, lambda: self.spec.cluster.beat_seconds, process)
        seconds, wants = seconds_to_send(spec), Wants(ledger)
        fetcher = PayloadFetcher(ledger, state.cache, seconds)
        self.view = ClusterView(
            ledger, self.heartbeat, fetcher, lambda: self.round, lambda: self.spec, lambda: self.pace
        )
        self.outage = StoreOutage(ledger.time, spec.cluster.beat_seconds)
        maker = mean = None
        if isinstance(spec.layout, DenseLayout):
            maker = MeanMaker(ledger, state, spec.layout, seconds)
            mean = MeanRound(ledger, maker, spec.layout, fetcher, self.view, wants, self._step)
        self._wants, self.starts, self.drains = wants, Starts(folder / "starts", ledger.time), Drains(ledger, folder)
        self._recovery = Recovery(ledger, state, self.log, wants)
        self._contributor = Contributor(ledger, state, shards, maker, seconds)
        self._follower = Follower(ledger, state, self.log, fetcher, mean, seconds)
        self._joined = False
        self._told = 0.0

    @property
    def spec(self) -> ClusterSpec:
        """In force in the round at which we stand."""
        return self.amended.spec

    def back_off(self) -> None:
        """Wait where this member died again and again."""
        self.starts.wait(self.spec.cluster.beat_seconds)

    # --- where we stand ------------------------------------------------------------------------------------------

    def move(self, **changes: object) -> None:
        """Replace fields of our round."""
        self.round = replace(self.round, **changes)  # type: ignore[arg-type]

    def stand(self, standing: Standing, **changes: object) -> None:
        """Be in this standing; what we wait for counts from now on."""
        self._told = self.time.now()
        self.move(standing=standing, enough_for=0.0, looked=self._told, **changes)

    def enter(self, *, recalled: bool = False) -> None:
        """Be at the start of the round at which our state stands. recalled: whether we know the records before it."""
        saved = self.state.saved
        sealed = saved.sealed.object if saved.sealed is not None and saved.sealed.round == saved.round else None
        standing = self.round.standing if recalled else Standing.JOINING
        closed = self.amended.closed and recalled
        self.round = Round(saved.round, saved.link, saved.theta, standing, recalled, sealed=sealed, closed=closed)

    def _stay_with_state(self) -> None:
        """Be where our state stands. Who tried a checkpoint in vain may have lost a round on its disk."""
        if (self.state.saved.round, self.state.saved.link) != (self.round.number, self.round.link):
            self.enter()

    def _adopt(self, amended: AmendedSpec, records: list[Record]) -> None:
        """Play by these amendments from now on. records: the last ones."""
        if amended.count != self.amended.count:
            told = "from round {round} on, {count} amendments are in force"
            logger.info(told, round=self.state.saved.round, count=amended.count)
        self.amended = amended
        self.amendments.keep(amended.taken)
        self.pace = replace(self.pace, steps=self.spec.inner.steps, records=tuple(records[-ROUNDS:]))

    # --- actions -------------------------------------------------------------------------------------------------

    def do(self, action: Action, checkpoints: Checkpoints) -> None:
        """Do it. Raises StorageError."""
        match action:
            case Do.RECALL:
                self._recall()
            case Train(seconds, passed):
                self._train(seconds, passed)
            case Do.SKIP:
                self.stand(Standing.IDLE, skips=True)
            case Do.SEND:
                self._send()
            case Sleep(waiting):
                self._wait(waiting)
            case Do.CLAIM_AGAIN:
                self.ledger.claim_again(self.round.number)
                self._sleep()
            case Do.TRAIN_AFTER_ALL:
                self.stand(Standing.JOINING, skips=False, spoken=False)
                self.time.sleep(self.view.rules.beat_seconds)
            case Do.FIND_RECORD:
                self.ledger.require_record(self.round.number)
            case Create(record, waited_for):
                self._close(record, waited_for)
            case Apply(record):
                self._apply(record)
                checkpoints.look()
                self.move(drained=self.drains.asked())
            case StoreAway() | ObjectLost() | Elsewhere():
                self._mend(action)

    def interrupted(self, why: str) -> None:
        """Tell that the store does not serve us."""
        self.state.events.emit("interrupted", self.round.number, fault=why)

    def _mend(self, missing: Missing) -> None:
        """Do something about what is missing."""
        match missing:
            case StoreAway(fault):
                self.outage.failed(fault)
                self.move(missing=None, looked=self.time.now())
            case ObjectLost(round, peers, why):
                self.move(missing=None, standing=Standing.JOINING)
                try:
                    began = self._recovery.ask(round, peers, self.view.rules)
                finally:
                    self._stay_with_state()
                if not began:
                    self.interrupted(why)
                    self.outage.failed(StorageError(why))
            case Elsewhere(why):
                self.move(missing=None, standing=Standing.JOINING)
                try:
                    self._recovery.start_over(why, self.view.rules)
                    self.enter()
                finally:
                    self._stay_with_state()

    def _recall(self) -> None:
        """Take what the last records before our round say: what steps take, and which amendments hold; and whether we
        have claimed in it."""
        records = self._recovery.recall()
        self._adopt(self.amended.at(records[-1].amendments if records else 0), records)
        spoken = self.ledger.claimed(self.round.number, self.round.link)
        if not self._joined:
            self._wants.clear()
        self.move(recalled=True, spoken=spoken, closed=self.amended.closed)
        if not self._joined:
            self._joined = True
            self.state.events.emit("joined", self.round.number)

    def _train(self, seconds: float | None, passed: float) -> None:
        """Train, and seal what that gives. seconds, passed: as of the last look."""
        spec, now, looked = self.spec, self.time.now, self.view.value.at
        pages = self._contributor.pages(spec, self.round.link)  # who cannot get its text holds up nobody
        began = now()
        late = began - looked if passed else 0.0  # the others did not wait for our text
        until = began + seconds - late if seconds is not None else inf
        self.move(standing=Standing.TRAINING, step=0, began=began - passed - late if seconds is not None else began)

        def stopped() -> bool:
            self._step()
            # Who has a limit ends before it: a step of a slow machine may last longer than the others wait.
            over = now() + (now() - began) / self.round.step > until
            return over or has_to_stop(self.round, self.view.value, self.ledger.me)

        def trained() -> None:
            self.move(standing=Standing.SENDING)

        least = least_steps(spec.cluster, spec.inner.steps) if seconds is None else 1
        sealed = self._contributor.train(self.round.number, pages, spec.inner, least, stopped, trained)
        self.pace = replace(self.pace, step_seconds=self._contributor.step_seconds)
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
        self._contributor.send(self.round.number, sealed)
        self.stand(Standing.WAITING, claimed=True)
        self.starts.clear()
        self.state.save_own()
        self.outage.answered()

    def _close(self, record: Record, waited_for: frozenset[bytes]) -> None:
        """Close the round with this record, unless somebody was faster. It counts the amendments that have come."""
        number = self.round.number
        if self.ledger.record(number + 1) is not None:
            self.ledger.require_record(number)
        count = self.amendments.announced(self.amended)
        ours = self.ledger.close(number, record.model_copy(update={"amendments": count}))
        self.state.events.emit("closed", number, ours=ours, waited_for=[one.hex() for one in sorted(waited_for)])
        if not ours:
            self._sleep()

    def _apply(self, record: Record) -> None:
        """Apply the round's record, and be in the next round."""
        if self.round.standing is not Standing.JOINING:
            self.move(standing=Standing.APPLYING)
        number, skipped, state = self.round.number, self.round.skips, self.state
        amended = self.amended.at(record.amendments)
        returned = self._follower.apply(number, self.spec, record)
        self._adopt(amended, [*self.pace.records, record])
        self.enter(recalled=True)
        if skipped or returned:
            state.save_own()  # else it is on the disk, or on its way there, since we claimed
        state.take_snapshot()
        state.events.emit("phases", number, phases=state.timeline.take())
        self._wants.clear()
        self.outage.answered()

    def _wait(self, waiting: int) -> None:
        """Wait until the next look."""
        self.outage.answered()
        if self.round.standing is Standing.JOINING:
            self.move(standing=Standing.WAITING if self.round.claimed else Standing.IDLE)
        if self.time.now() >= self._told + TOLD_SECONDS:
            self._told, claimed = self.time.now(), len(self.view.value.claims)
            line = "round {round}: {claimed} have claimed, waiting for {waiting} that live"
            logger.info(line, round=self.round.number, claimed=claimed, waiting=waiting)
        self._sleep()

    def _sleep(self) -> None:
        self.time.sleep(look_seconds(self.view.rules, self.pace.records))
