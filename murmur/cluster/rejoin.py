"""Move a member's state to its cluster's: from its own disk, theta_0, or a checkpoint that a member shows.

A checkpoint is accepted if its link is that of the record before its round, and its theta the one that the next record
names. The records since then are applied as in any round.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from loguru import logger

from gauntlet.agreement import Tip
from murmur.cluster.amendments import AmendedSpec
from murmur.cluster.decide import CHECKPOINT_ROUNDS_KEPT
from murmur.cluster.ledger import Ledger, UnreadableRecord
from murmur.cluster.pace import SLOWEST_BYTES
from murmur.data.shards import Fetch
from murmur.node.state.node_state import NodeState
from murmur.node.state.saved import Snapshot
from murmur.node.sync.checkpoints import Checkpoint
from murmur.node.sync.run_discovery import blob_fetcher
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import CheckpointCorrupt, ConfigError, OutOfSync, StorageError
from murmur.protocol.messages import first_link, link_of
from murmur.protocol.types import Digest, PeerId
from sparseloco.update import Update
from storage.s3 import RangedBucket

_UNUSABLE = (StorageError, CheckpointCorrupt, OutOfSync)


def begin(ledger: Ledger, state: NodeState) -> None:
    """Resume from this folder; begin with the newest usable checkpoint if the folder is fresh, with theta_0 before
    there is one. Uploads that we did not live to finish are aborted. Raises StorageError, or ConfigError if theta_0 is
    damaged."""
    if not state.resume():
        _begin_fresh(ledger, state)
    try:
        ledger.abort_unfinished(state.saved.round)
    except StorageError as fault:
        told = "could not remove unfinished uploads of an earlier start from the bucket: {fault}"
        logger.warning(told, fault=str(fault))


def _begin_fresh(ledger: Ledger, state: NodeState) -> None:
    for member, found in usable(ledger):
        try:
            _load(ledger, state, found)
            break
        except _UNUSABLE as fault:
            _warn(member, found, fault)
    else:
        _load_genesis(ledger, state)
    state.begin()
    if state.saved.round:
        _tell(state)


def from_genesis(ledger: Ledger, state: NodeState) -> None:
    """Reset the state to theta_0, whatever it is; the records then lead on from there."""
    _load_genesis(ledger, state)
    link = first_link(state.run_id)
    state.commit_at_tip(link, Tip(0, link), sealed=None)


def _load_genesis(ledger: Ledger, state: NodeState) -> None:
    digest = state.first.genesis_digest
    try:
        state.load_consensus(Snapshot(0, first_link(state.run_id), digest), _fetcher(ledger.bucket))
    except CheckpointCorrupt as fault:
        raise ConfigError(
            f"theta_0 in the cluster's bucket is damaged ({fault}): its founder has to upload it again"
        ) from None


def from_checkpoint(ledger: Ledger, state: NodeState, later_than: int) -> bool:
    """Load the newest usable checkpoint of a round after `later_than`, from any member. Return whether there was one.
    Otherwise our state is unchanged. Raises StorageError."""
    for member, found in usable(ledger, later_than):
        try:
            _stand_at(ledger, state, found)
        except _UNUSABLE as fault:
            _warn(member, found, fault)
            state.restore()
            state.store.commit(state.saved)  # also removes the refused checkpoint's files from the disk
            continue
        _tell(state)
        return True
    return False


def usable(ledger: Ledger, later_than: int = 0) -> Iterator[tuple[PeerId, Checkpoint]]:
    """Yield the shown checkpoints of rounds after `later_than` that the records lead to, the newest first, of as many
    rounds as are kept. A document may name older ones, until its member's next turn: their files are gone. One whose
    record the store has damaged is left out. Raises StorageError."""
    shown = [(member, one) for member, document in sorted(ledger.shown().items()) for one in document.checkpoints]
    kept = 0
    for round in sorted({checkpoint.round for _, checkpoint in shown}, reverse=True):
        if round <= later_than or kept == CHECKPOINT_ROUNDS_KEPT:
            return
        link = None
        with suppress(UnreadableRecord):
            link = link_before(ledger, round)
        found = [one for one in shown if (one[1].round, one[1].link) == (round, link)]
        yield from found
        kept += bool(found)


def _warn(member: PeerId, found: Checkpoint, fault: Exception) -> None:
    told = "cannot use the checkpoint of round {round} from {member}: {fault}"
    logger.warning(told, round=found.round, member=member.hex()[:8], fault=str(fault))


def _tell(state: NodeState) -> None:
    round, theta = state.saved.round, state.replica.digest().hex()
    state.events.emit("caught_up", round, origin=f"the checkpoint of round {round}", applied=0, theta=theta)


def is_shown(ledger: Ledger, link: Digest, state: Digest | None = None) -> bool:
    """Whether a member shows the state at this link; this very state, if one is given. Raises StorageError."""
    shown = [checkpoint for one in ledger.shown().values() for checkpoint in one.checkpoints]
    return any(one.link == link and state in (None, one.state) for one in shown)


def theta_of_most(ledger: Ledger, round: int) -> Digest | None:
    """Return the theta that most members tell of in their last beat, of those at the start of this round; None if no
    member does, or several have as many. Raises StorageError, also where the store does not bring one of the beats."""
    beats, unread = ledger.read_beats()
    if unread:
        raise StorageError(f"{len(unread)} of the members' beats could not be read: which theta most hold is not known")
    told = Counter(beat.theta for beat in beats.values() if beat.round == round and beat.theta is not None)
    best = [theta for theta, count in told.items() if count == max(told.values())]
    return best[0] if len(best) == 1 else None


def last_round(ledger: Ledger, spec: ClusterSpec) -> int | None:
    """Return the run's last round if the run is closed and a member shows the state after it; else None. Raises
    UnreadableRecord, AmendmentLost, StorageError."""
    rounds = ledger.rounds()
    record = ledger.record(rounds - 1) if rounds else None
    if record is None or not AmendedSpec(spec, ledger).at(record.amendments).closed:
        return None
    return rounds - 1 if is_shown(ledger, link_of(record.selection(ledger.run, rounds - 1))) else None


def link_before(ledger: Ledger, round: int) -> Digest | None:
    """Return the link with which the round begins; None if the record before it is missing."""
    if round == 0:
        return first_link(ledger.run)
    record = ledger.record(round - 1)
    return link_of(record.selection(ledger.run, round - 1)) if record is not None else None


def _load(ledger: Ledger, state: NodeState, found: Checkpoint) -> None:
    """Load the checkpoint's theta. Raises as `_stand_at`."""
    record = ledger.record(found.round)
    state.load_consensus(Snapshot(found.round, found.link, found.state), _fetcher(ledger.states(found.round)))
    if record is not None and record.theta != state.replica.digest():
        raise OutOfSync("its theta differs from the run's")


def _stand_at(ledger: Ledger, state: NodeState, found: Checkpoint) -> None:
    """Load the checkpoint's state. Raises StorageError, CheckpointCorrupt, or OutOfSync if the record of its round
    names another theta."""
    _load(ledger, state, found)
    mine = _left_out(ledger, state)
    sealed = replace(state.saved.sealed, returned=True) if state.saved.sealed is not None and mine is not None else None
    state.commit_at_tip(found.link, Tip(found.round, found.link), sealed=sealed)
    if mine is not None:
        state.restore_to_error_feedback(mine)


def _left_out(ledger: Ledger, state: NodeState) -> Update | None:
    """Return the update that we sealed in the state's round, if the round has ended without it. Return None if it was
    made from another theta than the run's."""
    round, theta = state.saved.round, state.saved.theta
    record = ledger.record(round)
    if record is None or record.theta != theta or ledger.me in record.claims:
        return None
    return state.own_update(round)


def _fetcher(bucket: RangedBucket) -> Fetch:
    return blob_fetcher(bucket, SLOWEST_BYTES)
