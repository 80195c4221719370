"""Checks of the run: its spec, this node's saved state, its requirements for chain and release, its data."""

from murmur.node.chain import subnet_terms
from murmur.node.config.adapters import owner_opener
from murmur.node.config.settings_sources import variable_of
from murmur.node.doctor.examined_node import ExaminedNode
from murmur.node.doctor.finding import FailedCheck
from murmur.node.state.store import InUse, StateStore
from murmur.node.sync import run_discovery as runs
from murmur.node.sync.amendments import settled
from murmur.node.sync.dataset import open_data
from murmur.protocol.errors import ConfigError

SPEC_FIX = (
    f"check --owner ({variable_of('owner')}) or --spec ({variable_of('spec')}), and that --network and --netuid are "
    "those of the run"
)
STATE_FIX = f"stop the other process, or give another state folder: --home ({variable_of('home')})"
RUN_FIX = "no action is needed here: start again when that has changed"
DATA_FIX = (
    f"point --data ({variable_of('data')}) at a copy of the run's data, or leave it out: then the data is fetched from "
    "the run's owner"
)


FETCH_FIX = (
    f"check --owner ({variable_of('owner')}) and --netuid ({variable_of('netuid')}), or point --data "
    f"({variable_of('data')}) at a copy of the run's data"
)


def spec(node: ExaminedNode) -> str:
    """Find the run, and check that it belongs to this chain and subnet."""
    node.found = runs.find_run(node.config, node.chain, owner_opener(node.config), node.home, node.read)
    return f"run {node.found.first.name} ({node.found.id.hex()[:16]})"


def state(node: ExaminedNode) -> str:
    """Check that the state folder is readable and not in use; a node that will run takes it."""
    if not node.keeps and not StateStore.exists(node.home, node.found.id):
        return "no state of this run is saved yet"
    try:
        store = StateStore(node.home, node.found.id)
    except InUse:
        node.in_use = True
        if node.keeps:
            raise
        return "in use by a node that runs"
    saved = store.load()
    if node.keeps:
        node.store = store
    else:
        store.close()
    node.undecided = saved.round if saved is not None else 0
    return "no state of this run is saved yet" if saved is None else f"saved at the start of round {saved.round}"


def run(node: ExaminedNode) -> str:
    """Check that this release can take part, and that the run can work on the subnet as it is."""
    node.run = settled(node.found, node.undecided, node.ports, node.read)
    node.round = max(0, node.run.clock.round_at(node.head.block))
    runs.require_protocol(node.run, node.round)
    subnet_terms.require_fit(node.run, node.round, node.subnet)
    return f"round {node.round}, {len(node.run.amendments)} amendments; the subnet's settings fit its clock"


def data(node: ExaminedNode) -> str:
    """Check that the data set is the run's."""
    try:
        node.shards = open_data(node.config, node.run, node.ports, node.home)
    except ConfigError as fault:
        raise FailedCheck(str(fault), FETCH_FIX if node.config.data is None else DATA_FIX) from None
    index = node.run.first.data.index_digest
    return f"index {index.hex()[:16]}, {node.shards.train.num_tokens:,} tokens"
