"""Parts that the programs of a node and of a cluster's member share. Importing this module needs no chain."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from loguru import logger

from murmur.node.config.device import choose_device
from murmur.node.config.settings import TelemetryConfig
from murmur.node.program.process import dead_thread, disk_fault, is_stopping, last_word, stop_after
from murmur.node.state.node_state import NodeState
from murmur.node.telemetry.events import See, last_events
from murmur.node.telemetry.metrics import Metrics
from murmur.training import parallel
from murmur.training.parallel import Ranks
from murmur.training.trainer import Trainer
from sparseloco import ops


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
    shown = f"[{config.metrics_address}]" if ":" in config.metrics_address else config.metrics_address
    logger.info("metrics at http://{address}:{port}/metrics", address=shown, port=config.metrics_port)
    return metrics.see


def on_ranks(codec: ops.Choice, device: str, program: Callable[[Ranks], None]) -> None:
    """Run a node's program in this process. Under torchrun it runs in the first process, and the others help."""
    ops.use(codec)
    parallel.run(program, Trainer, choose_device(device), stop_after)


def zeros(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return zero tensors of these shapes, for a model before its first state is loaded."""
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@contextmanager
def lifetime(state: NodeState, hotkey: str | None = None) -> Iterator[None]:
    """Record that the node began to play, and that it stopped: on request or at its end, or because of a fault. A
    second signal is a request too; nothing records a kill. hotkey: its SS58 address; None for a member of a cluster."""
    state.events.emit("started", state.round, run=state.run_id.hex(), hotkey=hotkey)
    fault: str | None = None
    one_by_one, said = threading.Lock(), list[str | None]()

    def stopped(fault: str | None) -> None:
        with one_by_one:
            if not said:
                said.append(fault)
                state.events.emit("stopped", state.round, fault=fault)

    last_word(lambda: stopped(dead_thread()))
    try:
        yield
    except BaseException as error:
        # An interrupted library call may raise any error.
        fault = dead_thread()
        if fault is None and not (isinstance(error, KeyboardInterrupt) or is_stopping()):
            fault = disk_fault(error) or str(error) or type(error).__name__
        raise
    finally:
        try:
            stopped(fault)
        finally:
            last_word(None)
