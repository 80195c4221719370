"""A GPU's first day, tried on a CPU: every part has a status, and one that goes wrong stops no other."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLANTED = """
import os, sys, time
sys.path.insert(0, {folder!r})
import gpu_day
from gpu_day import Part
from gpu_parts import NeedsCuda, Wrong

def good(case, found): return {{"before": sorted(found)}}
def waits(case, found): raise NeedsCuda("no GPU", {{"half": 1}})
def wrong(case, found): raise Wrong("not right", {{"off": 2.0}})
def raises(case, found): raise ValueError("planted")
def dies(case, found): os._exit(3)
def hangs(case, found): time.sleep(3600)

works = {{work.__name__: work for work in (waits, wrong, raises, dies, hangs, good)}}
gpu_day.END_SECONDS = 5.0
gpu_day.PARTS = {{name: Part(work, 1.0 if name == "hangs" else 120.0) for name, work in works.items()}}
gpu_day.main()
"""


@pytest.fixture(scope="module")
def parts() -> Iterator[ModuleType]:
    """The module, which is imported with its own folder in the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import gpu_parts

        yield gpu_parts
    finally:
        sys.path.remove(str(BENCHMARKS))


def day(script: Path, folder: Path) -> tuple[int, dict[str, dict[str, object]], str]:
    """Run it with tiny models; return its status, its rows by part, and its page."""
    out = folder / "day.json"
    done = subprocess.run(
        [sys.executable, str(script), "--tiny", "--out", str(out)], stdout=subprocess.DEVNULL, check=False
    )
    rows = json.loads(out.read_text())["parts"]
    return done.returncode, {row["part"]: row for row in rows}, out.with_suffix(".md").read_text()


def test_a_part_that_goes_wrong_is_told_and_the_others_still_run(tmp_path: Path) -> None:
    script = tmp_path / "planted.py"
    script.write_text(PLANTED.format(folder=str(BENCHMARKS)))
    status, rows, page = day(script, tmp_path)
    assert status == 1
    assert {name: (row["status"], row["why"]) for name, row in rows.items()} == {
        "waits": ("needs CUDA", "no GPU"),
        "wrong": ("failed", "not right"),
        "raises": ("failed", "ValueError: planted"),
        "dies": ("failed", "ended with status 3"),
        "hangs": ("failed", "not done after 1 s"),
        "good": ("passed", ""),
    }
    assert rows["good"]["figures"] == {"before": sorted(set(rows) - {"good"})}
    assert rows["waits"]["figures"] == {"half": 1}
    assert rows["wrong"]["figures"] == {"off": 2.0}
    assert "raise ValueError" in str(rows["raises"]["log"])
    assert all(f"\n## {name}\n" in page for name in rows)
    assert "| raises | failed |" in page


def test_the_tiny_day_gives_every_part_a_status(tmp_path: Path) -> None:
    status, rows, _ = day(BENCHMARKS / "gpu_day.py", tmp_path)
    assert {name: row for name, row in rows.items() if row["status"] not in ("passed", "needs CUDA")} == {}
    assert status == 0
    assert {"build", "codec bytes", "codec speed", "fsdp", "training 1b", "memory", "trace", "round"} <= set(rows)
    assert rows["codec bytes"]["status"] == rows["fsdp"]["status"] == rows["round"]["status"] == "passed"


@pytest.mark.parametrize("case", ["GPU", "TINY"])
def test_every_model_of_a_day_is_a_valid_spec(case: str, parts: ModuleType) -> None:
    import gpu_fsdp

    sizes = getattr(parts, case)
    for size in (*sizes.sizes.values(), sizes.fsdp, sizes.trace, sizes.round):
        spec = gpu_fsdp.spec_of(parts.spec_table(size))
        assert (spec.inner.steps, spec.inner.sequences) == (size.steps, size.sequences)
        assert spec.trace.places > 0
