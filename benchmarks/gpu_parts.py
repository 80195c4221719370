"""What gpu_day.py measures, part by part. A part takes the case and what parts before it found, and returns figures.

Each runs in a process of its own. Where no GPU is there it does what a CPU can do, and then raises NeedsCuda.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
Figures = dict[str, Any]
Found = Mapping[str, Mapping[str, Any]]
"""Results of the parts before, by name."""


class NeedsCuda(Exception):
    """The rest of a part has to wait for a GPU. `figures`: what there is already."""

    def __init__(self, why: str, figures: Figures | None = None) -> None:
        super().__init__(why)
        self.figures = figures or {}


class Wrong(Exception):
    """A part ran, and what it found is not right."""

    def __init__(self, why: str, figures: Figures) -> None:
        super().__init__(why)
        self.figures = figures


@dataclass(frozen=True, slots=True)
class Size:
    """A model to train. layers: instead of the preset's; "most": those that fit into this GPU by the plan."""

    preset: str
    steps: int
    sequences: int
    layers: int | str | None = None
    sides: tuple[str, ...] = ("ours", "eager", "loop")


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of everything. codec_params: of the comparison of bytes; `round` and `trace`: their inner rounds."""

    sizes: Mapping[str, Size]
    codec_params: int
    fsdp: Size
    trace: Size
    round: Size
    warmup: int = 3


GPU = Case(
    # The largest one takes a minute to be made, on the CPU, for each side.
    {
        "150m": Size("150m", 10, 64),
        "1b": Size("1b", 8, 32),
        "largest": Size("8b", 4, 8, layers="most", sides=("ours", "loop")),
    },
    codec_params=16_000_000,
    fsdp=Size("150m", 8, 64),
    trace=Size("150m", 30, 128),
    round=Size("150m", 10, 32),
)
TINY = Case(
    {"150m": Size("tiny", 3, 4), "1b": Size("tiny", 2, 4, layers=3), "largest": Size("tiny", 2, 4, layers="most")},
    codec_params=200_000,
    fsdp=Size("tiny", 4, 4),
    trace=Size("tiny", 4, 4),
    round=Size("tiny", 20, 8),
    warmup=1,
)
"""The same names with models that a CPU trains in seconds: a trial of the parts themselves."""


def run(*words: str, good: tuple[int, ...] = (0,)) -> str:
    """Run a program of this Python in the tree; return what it printed. What it tells goes to our stderr."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in good:
        sys.stderr.write(done.stdout[-2000:])
        raise RuntimeError(f"{words[0]} {words[1]} ended with status {done.returncode}")
    return done.stdout


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def spec_table(size: Size) -> dict[str, Any]:
    """Return the preset's table with this size's steps, sequences and layers, and its places of each step."""
    from murmur.configs import presets

    table = presets.table(size.preset)
    inner, gauntlet = table["inner"], table["gauntlet"]
    gauntlet["trace_values"] = gauntlet["trace_values"] // inner["steps"] * size.steps
    inner |= {"steps": size.steps, "sequences": size.sequences}
    table["data"]["page_sequences"] = size.steps * size.sequences
    if size.layers == "most":
        table["model"]["layers"] = _most_layers(table)
    elif size.layers is not None:
        table["model"]["layers"] = size.layers
    return table


def _most_layers(table: dict[str, Any]) -> int:
    """Return the most layers with which one GPU trains it by the plan; without a GPU for one of 80 GB."""
    import gpu_fsdp

    from murmur.protocol.spec import ModelSpec
    from murmur.training.memory import fits, largest

    there = torch.cuda.is_available()
    total_bytes = torch.cuda.get_device_properties(0).total_memory if there else 80 * 10**9
    spec = gpu_fsdp.spec_of(table)

    def holds(layers: int) -> bool:
        model = ModelSpec.model_validate(spec.model.model_dump() | {"layers": layers})
        return fits(spec.model_copy(update={"model": model}).training, 1, total_bytes, 1)

    return largest(holds, table["model"]["layers"]) or 1


def written(size: Size, folder: Path, *, clock: bool = True) -> str:
    """Write the spec as a TOML file; return its path. Without a clock a local network measures one."""
    from murmur.owner.folder import to_toml

    table = spec_table(size)
    if not clock:
        table.pop("clock", None)
    path = folder / f"{size.preset}.toml"
    path.write_text(to_toml(table), encoding="utf-8")
    return str(path)


# --- the codec -------------------------------------------------------------------------------------------------------


def build(case: Case, found: Found) -> Figures:
    """Compile the CUDA codec where nvcc and a GPU are, or where it is missing; load it."""
    from sparseloco import cuda

    nvcc = shutil.which("nvcc")
    seconds = 0.0
    if nvcc and (torch.cuda.is_available() or not cuda.LIBRARY.exists()):
        before = cuda.LIBRARY.with_suffix(".before")
        if cuda.LIBRARY.exists():
            cuda.LIBRARY.replace(before)
        began = time.perf_counter()
        run("setup.py", "build_ext", "--inplace")
        seconds = time.perf_counter() - began
        if not cuda.LIBRARY.exists():  # setuptools only warns
            if before.exists():
                before.replace(cuda.LIBRARY)
            raise Wrong("nvcc has built no library", {"nvcc": nvcc})
        before.unlink(missing_ok=True)
    if not cuda.LIBRARY.exists():
        raise NeedsCuda("nvcc is not in PATH, and no library was built before: install the CUDA toolkit")
    cuda.load(cuda.LIBRARY)
    figures = {"nvcc": nvcc, "build_seconds": seconds, "library_bytes": cuda.LIBRARY.stat().st_size, "loads": True}
    if not torch.cuda.is_available():
        raise NeedsCuda("the library loads; its kernels have to run on a GPU", figures)
    return figures


def codec_bytes(case: Case, found: Found) -> Figures:
    """Compare the CUDA codec's bytes with the CPU's; without a GPU those of the same source, compiled by g++."""
    import bench_cuda

    from murmur.protocol.layout import Layout
    from sparseloco import cuda
    from tests.sparseloco.emulated import emulated

    layout = Layout.of(bench_cuda.shapes_of(case.codec_params), bench_cuda.K)
    shapes = {tensor.name: tensor.shape for tensor in layout}
    given = [bench_cuda.heavy_tailed(shapes, seed) for seed in range(3)]
    if torch.cuda.is_available():
        different = bench_cuda.differences(cuda.codec(device()), given, layout)
    else:
        with tempfile.TemporaryDirectory() as folder, emulated(Path(folder)) as codec:
            different = bench_cuda.differences(codec, given, layout)
    where = "GPU" if torch.cuda.is_available() else "emulated on the CPU"
    figures = {"params": layout.num_parameters, "codec": where, "different": different}
    if different:
        raise Wrong("bytes differ from the CPU's", figures)
    return figures


def codec_speed(case: Case, found: Found) -> Figures:
    """The codec against a copy in the GPU's memory (bench_cuda.py)."""
    if not torch.cuda.is_available():
        raise NeedsCuda("torch sees no GPU")
    figures: Figures = json.loads(run("benchmarks/bench_cuda.py", "--json", good=(0, 1)))
    if figures["different"]:
        raise Wrong("bytes differ from the CPU's", figures)
    return figures


# --- training --------------------------------------------------------------------------------------------------------


def fsdp(case: Case, found: Found) -> Figures:
    """One inner round of the unsharded model, and of FSDP2 in a group of one process."""
    import gpu_fsdp

    figures: Figures = gpu_fsdp.compared(gpu_fsdp.spec_of(spec_table(case.fsdp)), device())
    if figures["share_of_limits"] > 1.0:
        raise Wrong("FSDP2's steps are farther apart than honest ones may be", figures)
    if device().type == "cpu" and not figures["same_payload"]:
        raise Wrong("on a CPU FSDP2 must give the same payload", figures)
    return figures


def training(name: str) -> Callable[[Case, Found], Figures]:
    """Tokens a second and MFU: ours, compiled and eager, beside a plain loop of the same model (bench_training.py)."""

    def part(case: Case, found: Found) -> Figures:
        size = case.sizes[name]
        with tempfile.TemporaryDirectory() as folder:
            preset = written(size, Path(folder))
            steps = ["--steps", str(size.steps), "--warmup", str(case.warmup)]
            words = ["benchmarks/bench_training.py", "--preset", preset, *steps, "--sides", *size.sides]
            told = json.loads(run(*words).splitlines()[-1])
            figures: Figures = told | {"preset": size.preset, "layers": spec_table(size)["model"]["layers"]}
        if "error" in figures["ours"]:
            raise Wrong(figures["ours"]["error"], figures)
        return figures

    return part


def memory(case: Case, found: Found) -> Figures:
    """Memory that the training parts took, against what `murmur plan` says."""
    figures: Figures = {}
    for name, size in case.sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            told = run(
                "-m", "murmur", "plan", "--spec", written(size, Path(folder)), "--gpus", "1", "--json", good=(0, 1)
            )
        planned = json.loads(told)["memory_total"]["gpu_computing"]
        trained = found.get(f"training {name}", {}).get("figures", {}).get("ours", {})
        took, plan = trained.get("memory_bytes"), trained.get("plan_bytes")
        figures[name] = {
            "took_gb": took and took / 1e9,
            "plan_gb_at_that_batch": plan and plan / 1e9,
            "took_over_plan": took and plan and took / plan,
            "murmur_plan_gb": planned / 1e9,
        }
    if not torch.cuda.is_available():
        raise NeedsCuda("a CPU's memory is the whole process's, which the plan does not count", figures)
    missing = [name for name, row in figures.items() if row["took_over_plan"] is None]
    beyond = [name for name, row in figures.items() if (row["took_over_plan"] or 0) > 1]
    if missing or beyond:
        raise Wrong(f"without figures: {missing}; more than planned: {beyond}", figures)
    return figures


def trace(case: Case, found: Found) -> Figures:
    """How far executions of the same steps by other kernels are apart (`murmur doctor --trace`)."""
    with tempfile.TemporaryDirectory() as folder:
        told = run("-m", "murmur", "doctor", "--trace", written(case.trace, Path(folder)), "--json", good=(0, 1))
    figures: Figures = json.loads(told)["trace"]
    if figures["verdict"] == "beyond":
        raise Wrong("honest steps are beyond the limits", figures)
    return figures


# --- a round ---------------------------------------------------------------------------------------------------------


def one_round(case: Case, found: Found) -> Figures:
    """One round of a local network: a miner and a validator, with chain and store."""
    from murmur.lab.localnet.plan import Plan
    from murmur.lab.localnet.session import play

    with tempfile.TemporaryDirectory() as folder:
        preset = written(case.round, Path(folder), clock=False)
        plan = Plan(Path(folder) / "run", rounds=1, miners=1, preset=preset)
        status = play(plan, lambda: None)
        report = json.loads((plan.folder / "report.json").read_text())
    (played,) = report["rounds"]
    figures = {"status": status, "phases": played["phases"], "loss": played["val_loss"], **report["summary"]}
    if status or played["void"] or report["summary"]["honest_contributions"] != 1:
        raise Wrong("the round was not played as it should be", figures)
    return figures
