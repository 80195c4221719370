"""torchft's side of bench_cluster.py: its lighthouse, and a replica group of one process that trains with its DiLoCo.

Model, data, inner loop and inner optimizer are those of a cluster's member. How they train together, and how faults
are borne, is torchft's. The outer optimizer has the rates of torchft's own example (SGD, 0.7, Nesterov's momentum 0.9).

Two events for each outer step go to the replica's events file, one JSON line each: `trained`, when it has done the
inner steps and asks for a quorum, and `synced`, when torchft has decided whether they count.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from murmur.data.shards import Shards
from murmur.protocol.assignment import assigned
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.messages import parse_json
from murmur.protocol.types import Digest, PeerId
from murmur.training.inner import inner_round
from murmur.training.loader import batches, sequences
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import make_optimizer

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
MANAGER_SECONDS = 30.0
"""Manager's time-out, as in torchft's example of DiLoCo: state transfer and requests."""
QUORUM_SECONDS = 60.0
"""The default. torchft advises more than the time between two quorums."""
QUORUM_RETRIES = 10
"""The default is none; then a replica dies of one lost answer."""
MIN_REPLICAS, QUORUM_TICK_MS = 1, 100
"""As in torchft's README and example."""


class Noting(Manager):
    """torchft's manager, which also notes what it decides."""

    def __init__(self, events: Path, steps: int, **options: Any) -> None:
        self._file = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._steps, self._syncs = steps, 0
        self.healed = False
        """Whether another replica's state has replaced ours since the last outer step."""
        self.committed = False
        super().__init__(**options)

    def start_quorum(self, *arguments: Any, **options: Any) -> None:
        self._syncs += 1
        self._note("trained")
        self.healed = False
        super().start_quorum(*arguments, **options)

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        step = self.current_step()
        self.committed = super().should_commit(timeout)
        self._note(
            "synced",
            step=step,
            committed=self.committed,
            participants=self.num_participants(),
            healed=self.healed,
        )
        return self.committed

    def _note(self, event: str, **fields: Any) -> None:
        sync = f"{os.getpid()}-{self._syncs}"
        line = {"time": round(time.time(), 3), "event": event, "sync": sync, "steps": self._steps, **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def train(options: argparse.Namespace) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    spec = build_cluster(parse_json(options.spec.read_bytes()), str(options.spec))
    data = Shards.open(options.data)
    model = Transformer(spec.model)
    initialise(model, options.seed)
    inner = make_optimizer(model, spec.inner)
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    options.folder.mkdir(parents=True, exist_ok=True)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])
        manager.healed = True

    host = socket.gethostname()
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Noting(
        options.folder / "events.jsonl",
        spec.inner.steps,
        pg=ProcessGroupGloo(timeout=timedelta(seconds=options.collective)),
        min_replica_size=MIN_REPLICAS,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        use_async_quorum=False,
        timeout=timedelta(seconds=max(MANAGER_SECONDS, options.collective)),
        quorum_timeout=timedelta(seconds=QUORUM_SECONDS),
        quorum_retries=QUORUM_RETRIES,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=options.name,
        hostname=host,
        init_sync=False,  # all begin from one seed
    )
    with DiLoCo(manager, [model], inner, outer, sync_every=spec.inner.steps, use_bucketization=True):
        rounds = 0
        while True:
            begin = manager.current_step() * spec.inner.steps
            inner_round(model, inner, _batches(spec, data, options.name, rounds), spec.inner, first_step=begin)
            rounds += 1
            if manager.committed:
                _keep(model, options.folder, manager.current_step())


def _batches(spec: ClusterSpec, data: Shards, name: str, rounds: int) -> tuple[torch.Tensor, ...]:
    """Text drawn at random for each round of each process, as a cluster's pages are."""
    drawn = Digest(sha256(f"{os.getpid()} {rounds}".encode()).digest())
    pages = assigned(
        Digest(bytes(32)),
        drawn,
        PeerId(sha256(name.encode()).digest()),
        num_pages=spec.num_pages,
        page_tokens=spec.page_tokens,
        count=spec.pages_per_round,
    )
    return batches(sequences(data.train, pages, spec.model.context), spec.inner.steps, spec.inner.sequences)


def _keep(model: Transformer, folder: Path, step: int) -> None:
    """Write the parameters after `step` outer steps, for their loss."""
    partial = folder / "theta.partial"
    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(tensors, partial, {"step": str(step)})
    os.replace(partial, folder / "theta.safetensors")


def watch(options: argparse.Namespace) -> None:
    """Serve as lighthouse until killed: what `torchft_lighthouse` does."""
    server = LighthouseServer(
        bind=f"[::]:{options.port}",
        min_replicas=MIN_REPLICAS,
        join_timeout_ms=int(1000 * options.join),
        quorum_tick_ms=QUORUM_TICK_MS,
    )
    sys.stderr.write(f"lighthouse at {server.address()}\n")
    threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True)
    lighthouse = parts.add_parser("lighthouse")
    lighthouse.set_defaults(run=watch)
    lighthouse.add_argument("--port", type=int, required=True)
    lighthouse.add_argument("--join", type=float, required=True, help="seconds that a quorum waits for stragglers")
    replica = parts.add_parser("replica")
    replica.set_defaults(run=train)
    replica.add_argument("--name", required=True)
    replica.add_argument("--lighthouse", required=True, metavar="URL")
    replica.add_argument("--spec", type=Path, required=True, help="a cluster's spec as JSON")
    replica.add_argument("--data", type=Path, required=True)
    replica.add_argument("--folder", type=Path, required=True, help="for events and parameters")
    replica.add_argument("--seed", type=int, required=True, help="of theta_0")
    replica.add_argument("--collective", type=float, required=True, help="time-out of an all-reduce, in seconds")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
