"""Checks of the run: its spec, this node's saved state, its requirements for chain and release, its data."""

from node.chain import subnet_terms
from node.config.adapters import owner_opener
from node.config.settings_sources import variable_of
from node.doctor.case import Case
from node.doctor.finding import Fault
from node.state.store import InUse, StateStore
from node.sync import run_discovery as runs
from node.sync.amendments import settled
from node.sync.dataset import open_data
from protocol.errors import ConfigError
from protocol.types import Digest

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


def spec(case: Case) -> str:
    """Find the run, and check that it belongs to this chain and subnet."""
    case.found = runs.find_run(case.config, case.chain, owner_opener(case.config), case.home, case.read)
    return f"run {case.found.first.name} ({case.found.id.hex()[:16]})"


def state(case: Case) -> str:
    """Check that the state folder is readable and not in use; a node that will run takes it."""
    if not case.keeps and not StateStore.exists(case.home, case.found.id):
        return "no state of this run is saved yet"
    try:
        store = StateStore(case.home, case.found.id)
    except InUse:
        if case.keeps:
            raise
        return "in use by a node that runs"
    saved = store.load()
    if case.keeps:
        case.store = store
    else:
        store.close()
    case.undecided = saved.round if saved is not None else 0
    return "no state of this run is saved yet" if saved is None else f"saved at the start of round {saved.round}"


def run(case: Case) -> str:
    """Check that this release can take part, and that the run can work on the subnet as it is."""
    case.run = settled(case.found, case.undecided, case.doors, case.read)
    case.round = max(0, case.run.clock.round_at(case.head.block))
    runs.require_protocol(case.run, case.round)
    subnet_terms.require_fit(case.run, case.round, case.subnet)
    return f"round {case.round}, {len(case.run.amendments)} amendments; the subnet's settings fit its clock"


def data(case: Case) -> str:
    """Check that the data set is the run's."""
    try:
        case.shards = open_data(case.config, case.run, case.doors, case.home)
    except ConfigError as fault:
        raise Fault(str(fault), FETCH_FIX if case.config.data is None else DATA_FIX) from None
    index = Digest(bytes.fromhex(case.run.first.data.index))
    return f"index {index.hex()[:16]}, {case.shards.train.num_tokens:,} tokens"
