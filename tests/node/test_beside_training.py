"""While a round's inner steps are made, the rest of the node goes on: it follows the chain, writes its snapshot,
uploads, answers, and stops when it is told to, on one rank and on several. Causes only: what would wait for the round
to end makes a round of minutes run to its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.on_ranks import LONG

ROOT = Path(__file__).parents[2]
RANKS = [1, pytest.param(2, marks=pytest.mark.slow)]


def played(size: int, *words: object) -> subprocess.CompletedProcess[str]:
    launcher = ["murmur", "torchrun", "--nproc_per_node", str(size), "--module"]
    return subprocess.run(
        [sys.executable, "-m", *(launcher if size > 1 else []), "tests.node.on_ranks", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", RANKS)
def test_chain_snapshot_upload_and_metrics_go_on_while_inner_steps_are_made(size: int, tmp_path: Path) -> None:
    done = played(size, tmp_path / "out.json")
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    steps, at_last = found.pop("steps"), found.pop("steps at last")
    assert found == {
        "ranks": size,
        "uploaded": True,
        "snapshot": True,
        "scraped": True,
        "in step": True,  # the ranks answer after a round that was broken off
    }
    assert 1 <= at_last <= steps < LONG.steps


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", RANKS)
def test_a_stop_is_honoured_within_an_inner_step(size: int, tmp_path: Path) -> None:
    done = played(size, tmp_path / "out.json", "stop")
    assert "stopped on request" in done.stderr
    assert done.returncode == 0 or size > 1, done.stderr[-4000:]
    found = json.loads((tmp_path / "out.json").read_text())
    (sent,) = found["sent"] or [found["done"]]
    assert 3 <= sent <= found["done"] <= sent + 1
