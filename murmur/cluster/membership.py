"""The state of one member of a cluster, shared by the modules that play its rounds (murmur/cluster/member.py)."""

from math import inf

from loguru import logger

from murmur.cluster.amendments import AmendedSpec, KeptAmendments
from murmur.cluster.bucket_maintenance import BucketMaintenance
from murmur.cluster.decisions import SLOWEST_BYTES
from murmur.cluster.heartbeat import Heartbeat
from murmur.cluster.ledger import CALL_SECONDS, Ledger
from murmur.cluster.presence import Presence
from murmur.cluster.record_log import RecordLog
from murmur.cluster.store_outage import StoreOutage
from murmur.node.state.node_state import NodeState
from murmur.protocol.cluster import ClusterSpec, Record
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest


class Membership:
    """One member: its state, its bucket, the others as it sees them. `name`: for people."""

    def __init__(self, spec: ClusterSpec, name: str, state: NodeState, ledger: Ledger, process: str = "") -> None:
        """process: as in Heartbeat."""
        self.state, self.ledger, self.time = state, ledger, ledger.time
        self.amendments = KeptAmendments(state.store.folder / "amendments", ledger)
        self.amended = AmendedSpec(spec, self.amendments)
        self.me = ledger.me
        self.heartbeat = Heartbeat(ledger, name, spec.cluster.beat_seconds, process)
        self.presence = Presence(spec.cluster)
        self.outage = StoreOutage(ledger.time, spec.cluster.beat_seconds)
        self.log = RecordLog(state.store.folder / "records", ledger.run, ledger.group, spec.cluster.keep_rounds)
        self.maintenance = BucketMaintenance(spec, state, ledger, self.log, self.amendments)
        self.records: list[Record] = []
        """The last ones: what steps take."""
        self.skipped = -1
        """The last round to which we send nothing."""
        self.claimed: tuple[int, Digest] | None = None
        """The last round in which we have claimed since our start, and the update."""
        self.began_in = 0
        """The round in which this process began: beats of earlier ones are of no later round."""
        self.doubles = set[tuple[str, int]]()
        """Beats of ours from another process that runs beside this one."""
        self._beats_read = -inf
        self.ended_at: float | None = None
        """When we had applied the run's last record."""

    @property
    def spec(self) -> ClusterSpec:
        """In force in the round at which we stand."""
        return self.amended.spec

    def adopt_amendments(self, amended: AmendedSpec) -> None:
        """Play by these amendments from now on."""
        if amended.count != self.amended.count:
            logger.info(
                "from round {round} on, {count} amendments are in force",
                round=self.state.saved.round,
                count=amended.count,
            )
        self.amended = amended
        self.amendments.keep(amended.taken)
        rules = self.spec.cluster
        self.presence.rules, self.heartbeat.beat_seconds, self.maintenance.spec = rules, rules.beat_seconds, self.spec

    def seconds_to_send(self) -> float:
        """Time-out of one try to send a payload."""
        return 4 * CALL_SECONDS + self.spec.object_bytes / SLOWEST_BYTES

    def read_heartbeats_of_all(self) -> None:
        """See which members live. Raises ConfigError if another machine plays as us."""
        self.read_beats()
        if len(self.doubles) > 2:
            raise ConfigError(
                "another machine takes part as this same member: its home was copied. Stop one of them, "
                "and delete the file `member` in the run's folder of its --home. It then joins as a new "
                "member"
            )

    def read_beats(self) -> None:
        """Read all members' beats, unless that was done less than a beat ago."""
        now = self.time.now()
        if now < self._beats_read + self.spec.cluster.beat_seconds:
            return
        beats, unread = self.ledger.read_beats()
        self._beats_read = now
        self.presence.look(beats, self.time.now(), unread)
        self.maintenance.living = frozenset(self.presence.running())
        mine = beats.get(self.me)
        if mine is not None and mine.process != self.heartbeat.process and mine.round > self.began_in:
            self.doubles.add((mine.process, mine.count))

    def announce_position(self) -> None:
        """Tell the others that we are at the start of this round, with this theta."""
        self.heartbeat.set_position(self.state.saved.round, self.state.saved.theta)
