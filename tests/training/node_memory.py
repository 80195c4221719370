"""A node's moments of a round in one process of its own, and the most memory that each had: run by test_memory.py.

python -m tests.training.node_memory ROLE      (prints {moment: bytes above what the process had at first})
"""

import gc
import json
import sys
import tempfile
from pathlib import Path

import torch

from murmur.plan import presets
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, PeerId
from murmur.training import checkpoint
from murmur.training.memory import Role
from murmur.training.model import genesis_theta
from murmur.training.recorder import TraceOf
from murmur.training.replica import Replica
from sparseloco import wire
from sparseloco.update import Update

MODEL = {
    "vocabulary": 4096,
    "layers": 6,
    "width": 512,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 1536,
    "context": 64,
    "tie_embeddings": True,
}


def spec_of(role: Role, **model: int) -> RunSpec:
    """21 M parameters, in fp32 some 85 MB. A validator repeats steps."""
    table = presets.read("150m").first.model_dump()
    table["model"] |= MODEL | model
    table["inner"] |= {"steps": 2, "sequences": 4}
    table["gauntlet"] |= {"contributors": 4, "reserve": 2}
    if role == "validator":
        table["inner"] |= {"optimizer": "muon", "state": "fresh"}
        table["gauntlet"] |= {"trace_values": 1024}
    return RunSpec.model_validate(table)


class Peaks:
    """The most memory of this process since the last look, above what it had at first."""

    def __init__(self) -> None:
        self._forget()
        self._first = self._peak()
        self.found: dict[str, int] = {}

    def note(self, moment: str) -> None:
        self.found[moment] = self._peak() - self._first
        self._forget()

    def _peak(self) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def _forget(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def copies(update: Update, count: int) -> list[Update]:
    """As many payloads as if each had come by itself."""
    return [Update(update.layout, bytes(bytearray(update.records))) for _ in range(count)]


def miner(spec: RunSpec, folder: Path, peaks: Peaks) -> None:
    replica = Replica(spec, {name: torch.zeros(shape) for name, shape in spec.model.shapes().items()})
    inner, context = spec.inner, spec.model.context
    tokens = torch.randint(0, spec.model.vocabulary, (inner.steps * inner.sequences, context + 1))
    replica.load_consensus(checkpoint.TensorState(genesis_theta(spec.model, 0), replica.consensus_state().facts))
    update = None
    for _ in range(2):  # the second round is as all that follow
        replica.inner_round(tokens)
        peaks.note("inner steps")
        update = replica.compress()
        plaintext = wire.encode(replica.digest(), update)
        peaks.note("compress")
        own = replica.own_state()
        peaks.note("swap")
        own_digest = checkpoint.save(folder, own)
        peaks.note("save own state")
        opened = copies(update, spec.gauntlet.contributors)
        replica.outer_step(opened, alpha=1.0, aggregate="mean")
        peaks.note("outer step")
    del replica, update, own, opened, plaintext
    peaks.note("nothing")
    replica = Replica(spec, {name: torch.zeros(shape) for name, shape in spec.model.shapes().items()})
    replica.load_own(checkpoint.load(folder, own_digest, replica.own_shapes()))
    peaks.note("restart")


def validator(spec: RunSpec, folder: Path, peaks: Peaks) -> None:
    theta = genesis_theta(spec.model, 0)
    generator = torch.Generator().manual_seed(1)
    moved = {name: value + 1e-3 * torch.randn(value.shape, generator=generator) for name, value in theta.items()}
    replica = Replica(spec, theta)
    from sparseloco import ops

    update = ops.compress(theta, moved, None, spec.layout, 0.95)[0]
    replica.outer_step([update], alpha=1.0, aggregate="mean")
    del theta, moved
    repeat(replica, spec, 0)
    replica.keep_theta(0)
    peaks.note("before")
    checked = copies(update, spec.gauntlet.contributors + spec.gauntlet.reserve)
    peaks.note("check")
    with replica.probe(checked[0], (1.0,) * len(spec.layout.tensors), 0.25):
        pass
    peaks.note("probe")
    opened = copies(update, spec.gauntlet.contributors)
    replica.outer_step(opened, alpha=1.0, aggregate="mean")
    peaks.note("outer step")
    consensus = checkpoint.save(folder, replica.consensus_state())
    peaks.note("saved")
    del checked, opened
    repeat(replica, spec, 1)
    peaks.note("inner steps")
    del replica
    gc.collect()
    peaks.note("nothing")
    replica = Replica(spec, {name: torch.zeros(shape) for name, shape in spec.model.shapes().items()})
    replica.load_consensus(checkpoint.load(folder, consensus, spec.model.shapes()))
    peaks.note("restart")


def repeat(replica: Replica, spec: RunSpec, done: int) -> None:
    """The first of a miner's two steps, from theta before the last outer step; or the second one, after that."""
    tokens = torch.randint(0, spec.model.vocabulary, (spec.inner.steps * spec.inner.sequences, spec.model.context + 1))
    repeated = replica.repeat(
        tokens,
        inner=spec.inner,
        rounds=replica.outer.rounds - 1,
        first_step=0,
        trace_of=TraceOf(Digest(bytes(32)), Digest(bytes(32)), PeerId(bytes(32)), spec.trace.places),
        on_step=lambda step, loss: None,
        stopped=lambda: True,
        done=done,
    )
    assert (repeated is None) == (not done)


def main() -> None:
    torch.set_num_threads(1)
    role: Role = "validator" if sys.argv[1] == "validator" else "miner"
    play = {"miner": miner, "validator": validator}[role]
    with tempfile.TemporaryDirectory() as folder:
        # What libraries take when they are first used is no model's.
        play(spec_of(role, vocabulary=64, layers=1, width=64, heads=2, kv_heads=1, ffn=64), Path(folder), Peaks())
        gc.collect()
        peaks = Peaks()
        play(spec_of(role), Path(folder), peaks)
    sys.stdout.write(json.dumps(peaks.found))


if __name__ == "__main__":
    main()
