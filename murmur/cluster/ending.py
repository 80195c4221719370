"""How a cluster's member ends: after the run's last record, or drained."""

from contextlib import suppress
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.cluster.membership import Membership
from murmur.cluster.rejoin import is_shown, theta_of_most
from murmur.protocol.cluster import Drain
from murmur.protocol.errors import StorageError
from murmur.rounds.checkpoints import Checkpoints


def finish(member: Membership, checkpoints: Checkpoints) -> None:
    """After the run's last record: have the last theta on this disk, and in the bucket, where one puts it."""
    state, rules = member.state, member.spec.cluster
    member.ended_at = member.time.now()
    state.snapshots.finish()
    state.snapshots.begin(state.saved.round, state.saved.link, state.replica.consensus_state())
    state.snapshots.finish()
    turns = len(member.presence.can_claim()) + 1
    until = member.ended_at + turns * rules.silent_seconds + 2 * checkpoints.shelf.state_seconds()
    while not (up := _last_is_up(member, checkpoints)) and member.time.now() < until:
        member.time.sleep(rules.beat_seconds)
    checkpoints.settle(rules.silent_seconds)  # it may be deleting what is not needed any more
    with suppress(StorageError):
        most = theta_of_most(member.ledger, state.saved.round)
        if most not in (None, state.saved.theta):
            logger.error(
                "most members hold another last theta than this machine: check its memory, its GPU and its release. An "
                "export takes theirs"
            )
    logger.info(
        "the run is closed: round {round} was its last. theta {theta} is on this disk{there}",
        round=state.saved.round - 1,
        theta=state.saved.theta.hex()[:16],
        there=" and in the bucket, as a checkpoint" if up else ", but no member has uploaded it",
    )


def _last_is_up(member: Membership, checkpoints: Checkpoints) -> bool:
    """Whether somebody shows the last theta; puts it up where that is our turn."""
    checkpoints.look()
    try:
        member.read_beats()  # who dies meanwhile publishes nothing
        snapshot = member.state.saved.consensus.snapshot
        return is_shown(member.ledger, member.state.saved.link, snapshot.state)
    except StorageError as fault:
        member.outage.failed(fault)
        return False


def asked_to_leave(member: Membership) -> Drain | None:
    """Return the request that we leave, unless we have followed it before: it may stay in the bucket, or come back.
    Raises StorageError."""
    asked = member.ledger.drained()
    return asked if asked is not None and asked.request not in _followed(member) else None


def _followed(member: Membership) -> list[str]:
    """Return the requests that this member has followed."""
    with suppress(OSError, ValueError):
        return _requests(member).read_text().split()
    return []


def _requests(member: Membership) -> Path:
    return member.state.store.folder / "drained"


def drain(member: Membership, asked: Drain) -> None:
    """Note the request that we leave and delete it, now that we do: the next start is a new decision."""
    with suppress(OSError):
        files.write(_requests(member), "\n".join([*_followed(member), asked.request]).encode())
    with suppress(StorageError):
        member.ledger.left()
    logger.info(
        "drained: round {round} was our last one, because of murmur cluster drain. Start this member "
        "again to take part again",
        round=member.state.saved.round - 1,
    )
