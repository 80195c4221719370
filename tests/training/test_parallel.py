"""Any number of ranks gives the same payload, the same theta and the same losses; a lost rank ends all of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SAME = (
    *("start", "own", "payload", "error", "refused", "error kept", "restrained", "kept back"),
    *("theta", "proof", "losses", "probed", "given back", "int8"),
)


def on_ranks(start: list[str], *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*start, "tests.training.on_ranks", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


FOUR = pytest.param(4, marks=pytest.mark.slow)
Played = Callable[[int], dict[str, Any]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What came out on so many ranks, played once."""

    @cache
    def play(*sizes: int) -> dict[int, dict[str, Any]]:
        out = tmp_path_factory.mktemp("ranks") / "out"
        done = on_ranks([sys.executable, "-m"], out, "play", *sizes)
        assert done.returncode == 0, done.stderr[-4000:]
        assert "timed out" not in done.stderr  # waiting is nothing to report
        return {size: json.loads(Path(f"{out}-{size}").read_text()) for size in sizes}

    return lambda size: play(1, 2)[size] if size < 4 else play(4)[4]


@pytest.mark.parametrize("size", [2, FOUR])
@pytest.mark.parametrize("what", SAME)
def test_ranks_agree_bit_for_bit_with_one_process(played: Played, size: int, what: str) -> None:
    assert played(size)["ranks"] == size
    assert played(size)[what] == played(1)[what]


@pytest.mark.parametrize("size", [1, 2, FOUR])
def test_nothing_is_lost_on_the_way(played: Played, size: int) -> None:
    found = played(size)
    assert found["own"] == [True, 7]
    assert found["error kept"] == found["error"] != found["given back"]
    assert found["restrained"][1]
    assert found["stopped"] == 2
    assert found["losses again"] == found["losses"] != found["probed"]
    assert found["fewer losses"] == found["losses"][:3]
    assert found["probed"] != found["losses"][:3]


@pytest.mark.parametrize("size", [2, FOUR])
def test_ranks_train_as_one_process_does(played: Played, size: int) -> None:
    # Sums over a batch are made in another order: close, not equal.
    assert played(size)["trained"] == pytest.approx(played(1)["trained"], rel=1e-4)
    assert played(size)["after"] == pytest.approx(played(1)["after"], rel=1e-3)
    assert played(size)["finite"] == played(1)["finite"]
    assert played(size)["trained by muon"] == pytest.approx(played(1)["trained by muon"], rel=1e-3)
    assert played(size)["own of muon"] == played(1)["own of muon"] == [True, 3]


def launcher(size: int) -> list[str]:
    """What `torchrun` stands for."""
    return [sys.executable, "-m", "murmur", "torchrun", "--nproc_per_node", str(size), "--module"]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("pid-*") if path.read_text()]


def until(happened: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ranks_whose_launcher_is_killed_end_themselves(tmp_path: Path) -> None:
    command = [*launcher(2), "tests.training.on_ranks", str(tmp_path / "out.json"), "idle"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: (tmp_path / "out.json").exists())
    assert len(pids(tmp_path)) == 2
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, pids(tmp_path))), seconds=90.0)


def test_a_first_rank_interrupted_in_the_middle_of_a_call_ends_all(tmp_path: Path) -> None:
    done = on_ranks([sys.executable, "-m"], tmp_path / "out", "stop", 2)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert "the ranks are out of step" not in done.stderr
    assert len(pids(tmp_path)) == 2
    until(lambda: not any(map(alive, pids(tmp_path))), seconds=90.0)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_all_with_a_message_and_no_orphan(tmp_path: Path, rank: int) -> None:
    done = on_ranks(launcher(2), tmp_path / "out.json", "lose", rank)
    assert done.returncode != 0
    assert f"rank {rank} of 2: exit status -9" in done.stderr
    assert len(pids(tmp_path)) == 2
    until(lambda: not any(map(alive, pids(tmp_path))), seconds=90.0)
