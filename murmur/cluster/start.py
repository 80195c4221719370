"""Start a cluster's member from its configuration; it plays its rounds until it is stopped."""

from functools import partial
from importlib.metadata import version
from pathlib import Path

from loguru import logger

from murmur.cluster.bootstrap import find_spec, is_member, member_of, open_data, open_shared, require_group
from murmur.cluster.group_keys import Group, Token, parse_token, read_token
from murmur.cluster.ledger import Ledger
from murmur.cluster.member import Member
from murmur.cluster.rejoin import last_round
from murmur.cluster.store_outage import StoreOutage
from murmur.data.shards import Shards
from murmur.node.config.device import describe
from murmur.node.config.settings import ClusterConfig, home
from murmur.node.program.shared import lifetime, on_ranks, serve_metrics, zeros
from murmur.node.program.tracking import start_tracker
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.telemetry.events import Events
from murmur.protocol.cluster import ClusterSpec
from murmur.protocol.errors import AccessDenied, StorageError
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica
from storage.realtime import REAL

RETRY_SECONDS = 5.0


def member(config: ClusterConfig) -> None:
    """Find the cluster's run and train in it, on all ranks."""
    on_ranks(config.codec, config.device, partial(take_part, config))


def take_part(config: ClusterConfig, ranks: Ranks) -> None:
    """Build the member and play its rounds. Called on the first rank. Raises ConfigError, StorageError."""
    token, folder = parse_token(read_token(config.token_file)), home(config)
    run = token.run_id
    spec, ledger, shards = _found(config, token, folder)
    me = ledger.me
    if shards is None:
        return
    store = StateStore(folder, run)
    replica = Replica(spec, zeros(spec.model.shapes()), ranks=ranks)
    see = serve_metrics(config, spec.name, folder, None)
    start_tracker(config, spec.name, config.name, folder)
    state = NodeState(spec, run, replica, store, Events(folder / "events.jsonl", config.name, see=see))
    logger.info(
        "murmuration {version}, member {name} ({me}) of cluster {run} ({id}), on {ranks} x {device}, bucket {bucket}",
        version=version("murmuration-node"),
        name=config.name,
        me=me.hex()[:8],
        run=spec.name,
        id=run.hex()[:16],
        ranks=ranks.size,
        device=describe(ranks.device),
        bucket=f"{token.endpoint}/{token.bucket}",
    )
    with lifetime(state):
        Member(spec, config.name, state, shards, ledger).run()


def _found(config: ClusterConfig, token: Token, folder: Path) -> tuple[ClusterSpec, Ledger, Shards | None]:
    """Return what is in the bucket: the spec, the documents, and the data set; None in its place if the run is closed.
    A member of the run waits while the store is away. Raises ConfigError, and StorageError for a bucket that does not
    answer to a newcomer: the token may be wrong."""
    outage = StoreOutage(REAL, RETRY_SECONDS)
    while True:
        try:
            found = _find(config, token, folder)
        except AccessDenied:
            raise
        except StorageError as fault:
            if not is_member(folder, token.run_id):
                raise
            outage.failed(fault)
        else:
            outage.answered()
            return found


def _find(config: ClusterConfig, token: Token, folder: Path) -> tuple[ClusterSpec, Ledger, Shards | None]:
    run, bucket, group = token.run_id, open_shared(token), Group(token.secret)
    spec = find_spec(bucket, run)
    require_group(bucket, run, group)
    ledger = Ledger(bucket, run, group, member_of(folder, run, config.name), REAL)
    try:
        last = last_round(ledger, spec)
    except AccessDenied:
        raise
    except StorageError:
        if not is_member(folder, run):
            raise
        last = None  # our disk has what the store lost or cannot read, or names the members to ask
    if last is None:
        return spec, ledger, open_data(config, spec, bucket, folder)
    logger.info(
        "the run {run} is closed: round {round} was its last. There is nothing to train; its theta is in the bucket",
        run=spec.name,
        round=last,
    )
    return spec, ledger, None
