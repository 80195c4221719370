"""Assemble a whole node from its configuration and the results of the start checks (murmur/node/doctor/)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from loguru import logger

from murmur.data.shards import Shards
from murmur.node.config.device import choose_device, describe
from murmur.node.config.settings import NodeConfig, TelemetryConfig
from murmur.node.doctor.start import ready
from murmur.node.node import Node
from murmur.node.state.node_state import NodeState
from murmur.node.telemetry.events import Events, See, last_events
from murmur.node.telemetry.metrics import Metrics
from murmur.protocol.types import hotkey
from murmur.training import parallel
from murmur.training.memory import Role
from murmur.training.parallel import Ranks
from murmur.training.replica import Replica
from murmur.training.trainer import Trainer
from sparseloco import ops


@dataclass(frozen=True, slots=True)
class AssembledNode:
    """The parts that a program works with."""

    node: Node
    shards: Shards


def serve_metrics(
    config: TelemetryConfig, run: str, home: Path, round_seconds: float | None, *, validates: bool = False
) -> See:
    """Return a consumer of the node's events that serves metrics. round_seconds: the planned length; None if none is
    planned. Raises ConfigError for a port that cannot be used."""
    if config.metrics_port is None:
        return lambda event: None
    metrics = Metrics(run, home, round_seconds)
    metrics.recall(last_events(home / "events.jsonl"), time.time(), validates=validates)
    metrics.serve(config.metrics_address, config.metrics_port)
    logger.info("metrics at http://{address}:{port}/metrics", address=config.metrics_address, port=config.metrics_port)
    return metrics.see


def on_ranks(codec: ops.Choice, device: str, program: Callable[[Ranks], None]) -> None:
    """Run a node's program in this process. Under torchrun it runs in the first process, and the others help."""
    ops.use(codec)
    parallel.run(program, Trainer, choose_device(device))


def build(config: NodeConfig, role: Role, ranks: Ranks) -> AssembledNode:
    """Build a node whose checks have all passed. Raises ConfigError with the next step for the operator."""
    case = ready(config, role)
    run, doors, store = case.run, case.doors, case.store
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
        hotkey=hotkey(doors.signer.peer),
        bucket=f"{config.bucket.endpoint}/{config.bucket.name}",
        network=config.network,
    )
    replica = Replica(run.first, zeros(run.first.model.shapes()), ranks=ranks)
    clock, validates = run.first.clock, role == "validator"
    seconds = clock.round_blocks * clock.block_seconds
    events = Events(
        case.home / "events.jsonl",
        f"{config.wallet.name}/{config.wallet.hotkey}",
        see=serve_metrics(config, run.first.name, case.home, seconds, validates=validates),
    )
    return AssembledNode(
        Node(run, doors, NodeState(run.first, run.id, replica, store, events, doors.time)), case.shards
    )


def zeros(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return zero tensors of these shapes, for a model before its first state is loaded."""
    return {name: torch.zeros(shape) for name, shape in shapes.items()}
