"""How a cluster's member ends: after the run's last record, or drained."""

from contextlib import suppress
from pathlib import Path

from loguru import logger

from murmur import files
from murmur.cluster.ledger import Ledger
from murmur.cluster.rejoin import is_shown, theta_of_most
from murmur.cluster.state import StoreAway
from murmur.cluster.store_outage import StoreOutage
from murmur.cluster.view import ClusterView
from murmur.node.state.node_state import NodeState
from murmur.protocol.cluster import Drain
from murmur.protocol.errors import StorageError
from murmur.rounds.checkpoints import Checkpoints


def finish(
    state: NodeState, ledger: Ledger, view: ClusterView, checkpoints: Checkpoints, outage: StoreOutage, ended_at: float
) -> None:
    """After the run's last record: have the last theta on this disk, and in the bucket, where one puts it. ended_at:
    when we had applied that record."""
    rules, time = view.rules, ledger.time
    state.snapshots.finish()
    state.snapshots.begin(state.saved.round, state.saved.link, state.replica.consensus_state())
    state.snapshots.finish()
    turns = len(view.value.presence.running()) + 1
    until = ended_at + turns * rules.silent_seconds + 2 * checkpoints.shelf.state_seconds()
    while not (up := _last_is_up(state, ledger, view, checkpoints, outage)) and time.now() < until:
        time.sleep(rules.beat_seconds)
    checkpoints.settle(rules.silent_seconds)  # it may be deleting what is not needed any more
    with suppress(StorageError):
        most = theta_of_most(ledger, state.saved.round)
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


def _last_is_up(
    state: NodeState, ledger: Ledger, view: ClusterView, checkpoints: Checkpoints, outage: StoreOutage
) -> bool:
    """Whether somebody shows the last theta; puts it up where that is our turn."""
    checkpoints.look()
    try:
        fault = view.refresh().missing  # who dies meanwhile publishes nothing
        if isinstance(fault, StoreAway):
            raise fault.fault
        return is_shown(ledger, state.saved.link, state.saved.consensus.snapshot.state)
    except StorageError as fault:
        outage.failed(fault)
        return False


class Drains:
    """The requests that this member leaves. folder: of the run, in its home."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger, self._path = ledger, folder / "drained"

    def asked(self) -> Drain | None:
        """Return the request that we leave, unless we have followed it before: it may stay in the bucket, or come back.
        Raises StorageError."""
        asked = self._ledger.drained()
        return asked if asked is not None and asked.request not in self._followed() else None

    def follow(self, asked: Drain, last_round: int) -> None:
        """Note the request that we leave and delete it, now that we do: the next start is a new decision."""
        with suppress(OSError):
            files.write(self._path, "\n".join([*self._followed(), asked.request]).encode())
        with suppress(StorageError):
            self._ledger.left()
        logger.info(
            "drained: round {round} was our last one, because of murmur cluster drain. Start this member "
            "again to take part again",
            round=last_round,
        )

    def _followed(self) -> list[str]:
        """Return the requests that this member has followed."""
        with suppress(OSError, ValueError):
            return self._path.read_text().split()
        return []
