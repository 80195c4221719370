"""A whole node from its configuration, as things can fail in turn: wallet, chain, run, bucket, data, state."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from loguru import logger

from node import run as runs
from node import terms
from node.adapters import connect, open_doors, owner_opener
from node.amendments import settled
from node.config import NodeConfig
from node.data import open_data
from node.events import Events, See
from node.held import Held
from node.metrics import Metrics
from node.node import Node
from node.published import require_read_only
from node.state import StateStore
from protocol.errors import ConfigError
from protocol.run import Run
from protocol.types import hotkey
from sparseloco import ops
from training import parallel
from training.parallel import Ranks
from training.replica import Replica
from training.shards import Shards
from training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Built:
    """What a program works with."""

    node: Node
    shards: Shards


def _metrics(config: NodeConfig, run: Run, home: Path) -> See:
    """What sees the node's events besides the file. Raises ConfigError for a port that is not to be had."""
    if config.metrics_port is None:
        return lambda event: None
    clock = run.first.clock
    metrics = Metrics(run.first.name, home, clock.round_blocks * clock.block_seconds)
    metrics.serve(config.metrics_address, config.metrics_port)
    logger.info("metrics at http://{address}:{port}/metrics", address=config.metrics_address, port=config.metrics_port)
    return metrics.see


def on_ranks(config: NodeConfig, program: Callable[[Ranks], None]) -> None:
    """Run a node's program in this process, or, under torchrun, in the first of its processes with the others' help."""
    ops.use(config.codec)
    parallel.run(program, Trainer, choose_device(config.device))


def build(config: NodeConfig, name: str, home: Path, ranks: Ranks) -> Built:
    """Connect, find the run, open data and state, catch up. Raises ConfigError with the next step for the operator."""
    line = connect(config)
    run = runs.await_run(config, line.chain, owner_opener(config), home)
    # Only its spec says whether the run is local, and so which addresses may be followed.
    doors = open_doors(config, line, local=run.first.local)
    store = StateStore(home, run.id)
    saved = store.load()
    run = settled(run, saved.round if saved is not None else 0, doors, store.run.read)
    store.run.save(run)
    head = doors.chain.finalized().block
    round = max(0, run.clock.round_at(head))
    runs.require_protocol(run, round)
    if not any(peer.id == doors.signer.peer for peer in doors.chain.peers(head)):
        raise ConfigError(
            f"hotkey {hotkey(doors.signer.peer)} is not registered on subnet {config.netuid} of {config.network}: "
            f"register it (btcli subnet register --netuid {config.netuid}) and start again"
        )
    terms.require_fit(run, round, doors.chain.subnet(head))
    logger.info(
        "murmuration {version}, {name} of run {run} ({id}), round {round}, on {ranks} x {device}, "
        "codec {codec} ({reason}), hotkey {hotkey}, bucket {bucket}, chain {network}",
        version=version("murmuration"),
        name=name,
        run=run.first.name,
        id=run.id.hex()[:16],
        round=round,
        ranks=ranks.size,
        device=describe(ranks.device),
        codec=ops.backend(),
        reason=ops.reason(),
        hotkey=hotkey(doors.signer.peer),
        bucket=f"{config.bucket.endpoint}/{config.bucket.name}",
        network=config.network,
    )
    if ops.is_fallback():
        logger.warning("the codec runs on the slow reference: {reason}", reason=ops.reason())
    terms.warn_of_balance(doors.chain, doors.signer.peer)
    require_read_only(doors.bucket, doors.pointer, local=run.first.local, time=doors.time)
    shards = open_data(config, run, doors, home)
    replica = Replica(run.first, _zeros(run.first.model.shapes()), ranks=ranks)
    events = Events(
        home / "events.jsonl", f"{config.wallet.name}/{config.wallet.hotkey}", see=_metrics(config, run, home)
    )
    return Built(Node(run, doors, Held(run.first, run.id, replica, store, events, doors.time)), shards)


def choose_device(wish: str) -> torch.device:
    """The device to train on. Raises ConfigError for one that is not there."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; install a CUDA build of torch and a driver, or use cpu")
    return torch.device("cuda" if wish != "cpu" and torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """The device for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


def _zeros(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}
