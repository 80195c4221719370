"""Run by torchrun in tests/node/test_beside_training.py: what a node does beside an inner round.

`on_ranks.py OUT [stop]`: an inner round that would take minutes ends when the chain has passed a block, and that comes
only when a snapshot is on the disk, an upload up and metrics read, all begun after its first step. With `stop`, the
first rank is told to stop in the middle of a step. OUT, in a folder of its own: what came out, as JSON.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import torch

from murmur.lab.simulation.signer import HashSigner, hash_verify
from murmur.lab.simulation.store import Store
from murmur.lab.simulation.world import World
from murmur.node.chain.follower import Follower
from murmur.node.config.ports import Ports
from murmur.node.program.process import run_program
from murmur.node.state.snapshots import Snapshots
from murmur.node.telemetry.events import Timeline
from murmur.node.telemetry.metrics import Metrics
from murmur.protocol.run import Run
from murmur.protocol.types import Digest
from murmur.training.model import genesis_theta
from murmur.training.parallel import Ranks, run
from murmur.training.replica import Replica
from murmur.training.trainer import Trainer
from storage.realtime import REAL
from storage.s3 import PART_BYTES
from storage.upload import Upload
from tests.specs import toy_spec

SPEC = toy_spec()
LONG = SPEC.inner.model_copy(update={"steps": 50_000, "sequences": 2})
BLOCK = 5
KEY = "object"
NOWHERE = Digest(bytes(32))


def words() -> torch.Tensor:
    """A round's sequences: one, as often as it takes."""
    one = torch.randint(0, 264, (1, 33), generator=torch.Generator().manual_seed(0))
    return one.expand(LONG.steps * LONG.sequences, -1)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def parallel_map(ranks: Ranks, out: Path) -> None:
    """The round, and everything beside it."""
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)
    world, store = World(time=REAL), Store()
    signer = HashSigner("miner")
    world.register(signer.peer)
    bucket, pointer = store.bucket("miner", reader="miner"), store.pointer("miner")
    ports = Ports(world.chain(signer.peer), signer, hash_verify, bucket, pointer, lambda pointer: bucket, REAL)
    follower = Follower(Run(SPEC), ports, Timeline())
    metrics, port = Metrics("toy", out.parent, 1.0), free_port()
    metrics.serve("127.0.0.1", port)
    snapshots = Snapshots(out.parent / "snapshot", out.parent / "writing", REAL)
    snapshots.folder.mkdir()
    theta = replica.digest()
    found: dict[str, object] = {}
    done: list[int] = []
    begun = threading.Event()

    def outside() -> None:
        """What the world does, and in which order."""
        begun.wait()
        upload = Upload(bucket, KEY, bytearray(3 * PART_BYTES), timeout_seconds=600)
        upload.finish(timeout_seconds=600)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as answer:
            found["scraped"] = b"murmur_run" in answer.read()
        assert snapshots._task is not None
        snapshots._task.join()
        found["steps at last"] = len(done)
        world.step(BLOCK + 1)

    def on_step(step: int, loss: float) -> None:
        done.append(step)
        if step == 0:
            snapshots.begin(0, NOWHERE, replica.consensus_state())
            begun.set()

    threading.Thread(target=outside, daemon=True).start()
    with follower.following(BLOCK) as passed:
        report = replica.inner_round(words(), inner=LONG, on_step=on_step, stopped=passed)
    found["steps"] = len(report.losses)
    found["ranks"] = ranks.size
    found["uploaded"] = bucket.head(KEY, timeout_seconds=1) is not None
    snapshot = snapshots.take()
    found["snapshot"] = snapshot is not None and snapshot.round == 0
    replica.reset()
    found["in step"] = len(replica.losses(words()[:3])) == 3 and replica.digest() == theta
    out.write_text(json.dumps(found))


def stop(ranks: Ranks, out: Path) -> None:
    """SIGTERM while a step is computed. OUT: how many steps were done then, and how many when the round broke off."""
    replica = Replica(SPEC, genesis_theta(SPEC.model, 1), ranks=ranks)
    done: list[int] = []
    begun, sent = threading.Event(), list[int]()

    def end() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        sent.append(len(done))

    def on_step(step: int, loss: float) -> None:
        done.append(step)
        if step == 2:
            begun.set()

    threading.Thread(target=end, daemon=True).start()
    try:
        replica.inner_round(words(), inner=LONG, on_step=on_step)
    finally:
        out.write_text(json.dumps({"sent": sent, "done": len(done)}))


def main() -> None:
    out = Path(sys.argv[1])
    play = stop if sys.argv[2:] == ["stop"] else parallel_map
    run(lambda ranks: play(ranks, out), Trainer, torch.device("cpu"))


if __name__ == "__main__":
    sys.exit(run_program(main))
