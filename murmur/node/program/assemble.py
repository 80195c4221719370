"""Assemble a whole node from its configuration and the results of the start checks (murmur/node/doctor/)."""

from dataclasses import dataclass
from importlib.metadata import version

from loguru import logger

from murmur.data.shards import Shards
from murmur.node.config.device import describe
from murmur.node.config.settings import NodeConfig
from murmur.node.doctor.start import ready
from murmur.node.node import Node
from murmur.node.program.shared import serve_metrics, zeros
from murmur.node.program.tracking import start_tracker
from murmur.node.state.node_state import NodeState
from murmur.node.telemetry.events import Events
from murmur.protocol.types import hotkey
from murmur.training.memory import Role
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica
from sparseloco import ops


@dataclass(frozen=True, slots=True)
class AssembledNode:
    """The parts that a program works with."""

    node: Node
    shards: Shards


def build(config: NodeConfig, role: Role, ranks: Ranks) -> AssembledNode:
    """Build a node whose checks have all passed. Raises ConfigError with the next step for the operator."""
    case = ready(config, role)
    run, ports, store = case.run, case.ports, case.store
    store.run.read.update(case.read)
    store.run.save(run)
    logger.info(
        "murmuration {version}, {name} of run {run} ({id}), round {round}, on {ranks} x {device}, "
        "codec {codec} ({reason}), hotkey {hotkey}, bucket {bucket}, chain {network}",
        version=version("murmuration-node"),
        name=role,
        run=run.first.name,
        id=run.id.hex()[:16],
        round=case.round,
        ranks=ranks.size,
        device=describe(ranks.device),
        codec=ops.backend(),
        reason=ops.reason(),
        hotkey=hotkey(ports.signer.peer),
        bucket=f"{config.bucket.endpoint}/{config.bucket.name}",
        network=config.network,
    )
    replica = Replica(run.first, zeros(run.first.model.shapes()), ranks=ranks)
    clock, validates = run.first.clock, role == "validator"
    seconds = clock.round_blocks * clock.block_seconds
    start_tracker(config, run.first.name, f"{config.wallet.name}-{config.wallet.hotkey}", case.home)
    events = Events(
        case.home / "events.jsonl",
        f"{config.wallet.name}/{config.wallet.hotkey}",
        see=serve_metrics(config, run.first.name, case.home, seconds, validates=validates),
    )
    return AssembledNode(
        Node(run, ports, NodeState(run.first, run.id, replica, store, events, ports.time)), case.shards
    )
