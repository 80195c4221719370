"""What lies between computing and communicating, phase by phase, against a copy and a plain write of the same bytes.

    python benchmarks/bench_round.py --params 500000000 --threads 2 --json

A replica of about so many parameters in this process, on the CPU; what a node calls is called as it does. Each phase is
the median of `--rounds`, and `over_copy` the median of its time over that of a memory copy of one model made right
before it, so that a machine that is busy for a while slows both. Phases: `digest` of theta; `probe` of one peer's
update, theta restored; `open` 20 payloads, hashed, deciphered and parsed; `outer_step` of them, weights loaded;
`compress`; `seal` what that gave; of a void round `give_back` of it; `save` of theta as a snapshot, beside the rounds;
of a restart `load` of it, and `replay` of one round's payloads, opened and applied. `gb`: fp32 bytes of the model. A
phase's `peak_over_model`: most memory that it took beyond what was there before, over the model's bytes; of all: most
memory of the process, which holds theta, module, error feedback, spare area and the model that is copied to.
`file_over_plain_write`: save over a plain write and fsync of the same bytes; `load_over_plain_read`: load over a plain
read and sha256. Files go to --folder. Linux.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import torch
from commit import commit
from torch import Tensor

from murmur.lab.simulation.signer import HashSigner
from murmur.node.fetch.opening import open_threads
from murmur.node.state.redo_log import RedoLog
from murmur.node.state.saved import Payload, Step
from murmur.plan import presets
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest
from murmur.training import checkpoint
from murmur.training.replica import Replica
from sparseloco import ops, wire
from sparseloco.update import Update
from storage.realtime import REAL
from storage.seal import seal

PEERS = 20
PROBE_STEP = 0.25
NOWHERE = Digest(bytes(32))


def spec_of(params: int) -> RunSpec:
    """A spec whose model has about so many parameters: Llama-like layers, an embedding of a tenth."""
    width = next(width for width in (2048, 1024, 512, 256) if params >= 12 * 4 * width * width or width == 256)
    table = presets.read("1b").first.model_dump()
    layer = width * (2 * width + 2 * width // 4 + 3 * 4 * width)
    vocabulary = max(256, params // 10 // width // 64 * 64)
    layers = max(1, round((params - vocabulary * width) / layer))
    table["model"] |= {
        "vocabulary": vocabulary,
        "layers": layers,
        "width": width,
        "heads": width // 64,
        "kv_heads": width // 256,
        "ffn": 4 * width,
    }
    return RunSpec.model_validate(table)


@dataclass(frozen=True, slots=True)
class Taken:
    """One run of a phase: wall and processor seconds, and bytes of memory above what there was before."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


class Memory:
    """This process's resident memory: the most of it since the last reset, and since `first`."""

    def __init__(self) -> None:
        self.most = self.first = self.reset()

    def reset(self) -> int:
        """Forget the peak; what there is now."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return self._of("VmRSS")

    def peak(self) -> int:
        found = self._of("VmHWM")
        self.most = max(self.most, found)
        return found

    def _of(self, field: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def run(memory: Memory, work: Callable[[], object]) -> Taken:
    before, wall, cpu = memory.reset(), time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Taken(wall, cpu, memory.peak() - before)


class Bench:
    """The phases of one replica."""

    def __init__(self, spec: RunSpec, folder: Path, log: Path) -> None:
        self.spec, self.folder = spec, folder
        generator = torch.Generator().manual_seed(0)
        theta = {
            name: torch.empty(shape).normal_(std=0.02, generator=generator)
            for name, shape in spec.model.shapes().items()
        }
        self.replica = Replica(spec, theta)
        del theta
        self.sample = self._trained()
        self.updates = [Update(spec.layout, bytes(bytearray(self.sample.records))) for _ in range(PEERS)]
        self.updates = [ops.counted(update) for update in self.updates]
        self.scales = (1.0,) * len(spec.layout.tensors)
        self.redo = RedoLog(log, NOWHERE, spec.layout)
        self.step = Step(0, NOWHERE, NOWHERE, 1e-6, "mean", tuple(self._sealed(log, peer) for peer in range(PEERS)))
        self.saved = checkpoint.save(folder, self.replica.consensus_state())
        self.copied = {name: value.clone() for name, value in self.replica.theta.items()}

    def _trained(self) -> Update:
        """A payload, after weights that moved as if they were trained."""
        self.move()
        return self.replica.compress()

    def _sealed(self, log: Path, number: int) -> Payload:
        """The payload as a peer's, in the redo log."""
        signer = HashSigner(f"peer {number}")
        sealed = seal(wire.encode(NOWHERE, self.sample), run=NOWHERE, round=0, signer=signer)
        (log / sealed.digest.hex()).write_bytes(sealed.object)
        return Payload(signer.peer, sealed.digest, sealed.key)

    @torch.no_grad()
    def move(self) -> None:
        """Weights as if they were trained."""
        self.replica._at_theta = False
        for value in self.replica.model.parameters():
            value.add_(torch.randn(value.shape), alpha=1e-3)

    def copy(self) -> None:
        for name, value in self.replica.theta.items():
            self.copied[name].copy_(value)

    def digest(self) -> None:
        self.replica._digest = None
        self.replica.digest()

    def probe(self) -> None:
        with self.replica.probe(self.sample, self.scales, PROBE_STEP):
            pass

    def open(self) -> None:
        self.redo.updates(self.step, open_threads(self.replica.spec), REAL)

    def outer_step(self) -> None:
        self.replica.outer_step(self.updates, alpha=1e-6, aggregate="mean")

    def compress(self) -> None:
        self.replica.compress()

    def seal(self) -> None:
        seal(wire.encode(NOWHERE, self.sample), run=NOWHERE, round=0, signer=HashSigner("miner"))

    def give_back(self) -> None:
        self.replica.restore_to_error_feedback(self.sample)

    def save(self) -> None:
        self.saved = checkpoint.save(self.folder, self.replica.consensus_state())

    def load(self) -> None:
        self.replica.load_consensus(checkpoint.load(self.folder, self.saved, self.spec.model.shapes()))

    def replay(self) -> None:
        updates = self.redo.updates(self.step, open_threads(self.replica.spec), REAL)
        self.replica.outer_step(updates, alpha=self.step.alpha, aggregate=self.step.aggregate)

    def clean(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def plain_write(self) -> None:
        with (self.folder / "plain").open("wb") as file:
            for value in self.replica.theta.values():
                file.write(_bytes_of(value))
            file.flush()
            os.fsync(file.fileno())

    def plain_read(self) -> None:
        """In pieces of 16 MiB, hashed."""
        hashed = sha256()
        with (self.folder / "plain").open("rb") as file:
            while piece := file.read(1 << 24):
                hashed.update(piece)


def _bytes_of(value: Tensor) -> memoryview:
    return memoryview(value.numpy()).cast("B")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    memory = Memory()
    spec = spec_of(options.params)
    model = 4 * spec.layout.num_parameters
    names = (
        *("digest", "probe", "open", "outer_step", "compress", "seal", "give_back"),
        *("save", "load", "replay"),
    )
    taken: dict[str, list[Taken]] = {name: [] for name in (*names, "copy", "plain_write", "plain_read")}
    over: dict[str, list[float]] = {name: [] for name in (*names, "file", "read")}
    with (
        tempfile.TemporaryDirectory(dir=options.folder, prefix=".bench-round-") as folder,
        tempfile.TemporaryDirectory(dir=options.folder, prefix=".bench-round-") as log,
    ):
        bench = Bench(spec, Path(folder), Path(log))
        bench.copy()
        for _ in range(options.rounds):
            for name in names:
                if name == "compress":
                    bench.move()
                if name == "save":
                    bench.clean()
                copied = run(memory, bench.copy)
                found = run(memory, getattr(bench, name))
                taken["copy"].append(copied)
                taken[name].append(found)
                over[name].append(found.seconds / copied.seconds)
                if name == "save":
                    taken["plain_write"].append(run(memory, bench.plain_write))
                    over["file"].append(found.seconds / taken["plain_write"][-1].seconds)
                if name == "load":
                    taken["plain_read"].append(run(memory, bench.plain_read))
                    over["read"].append(found.seconds / taken["plain_read"][-1].seconds)
    peaks = {name: max(one.peak_bytes for one in runs) / model for name, runs in taken.items()}
    gb = model / 1e9
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{platform.machine()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        "codec": ops.backend(),
        "params": spec.layout.num_parameters,
        "rounds": options.rounds,
        "phases": {
            name: {
                "seconds": median(one.seconds for one in runs),
                "gb": gb,
                "over_copy": median(over[name]) if name in over else 1.0,
                "cpu_seconds_per_gb": median(one.cpu_seconds for one in runs) / gb,
                "peak_over_model": peaks[name],
            }
            for name, runs in taken.items()
        },
        "peak_over_model": (memory.most - memory.first) / model,
        "file_over_plain_write": median(over["file"]),
        "load_over_plain_read": median(over["read"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=1_000_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of every phase")
    parser.add_argument("--folder", type=Path, help="where files are written (default: the system's for such)")
    parser.add_argument("--json", action="store_true", help="one line, for machines")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options), indent=None if options.json else 1) + "\n")


if __name__ == "__main__":
    main()
