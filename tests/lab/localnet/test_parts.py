"""A network whose payloads travel in several parts: what nodes do about it, as their store sees it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from murmur.lab.localnet.plan import Plan
from murmur.lab.localnet.store import read_ready, write_ready
from murmur.protocol import keys
from storage.s3 import PART_BYTES
from tests.lab.localnet.harness import Run, localnet
from tests.lab.localnet.recorder import Recorder, recorded
from tests.lab.localnet.test_network import assert_sound
from tests.storage.conftest import served

ROUNDS = 3
KILLED_IN = 1
MINERS = "miner-1", "miner-2"
READERS = 3
"""Of each payload: the other miner, the validator, and whoever records the network."""


def payload(run: Run, miner: str, round: int) -> str:
    """The path of a miner's payload on the store."""
    return f"/{miner}/{keys.payload(run.id, round)}"


def wait_for_part(run: Run, name: str, num_bytes: int, seconds: float) -> None:
    """Until the node has so much of a download that is not whole."""
    until = time.monotonic() + seconds
    cache = run.folder / "nodes" / name
    while not any(path.stat().st_size >= num_bytes for path in cache.rglob("*.part")):
        assert time.monotonic() < until, f"{name} has begun no download:\n{run.screen}"
        assert run.process.poll() is None, run.screen
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_payloads_of_several_parts_go_up_ahead_are_fetched_once_and_resumed_after_a_kill(tmp_path: Path) -> None:
    names = Plan(tmp_path, miners=len(MINERS)).names()
    store = tmp_path / "store"
    with served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), *names], store / "ready.json"):
        ready = read_ready(store / "ready.json", names)
        with recorded(ready.endpoint) as recorder:
            write_ready(tmp_path / "recorded.json", replace(ready, endpoint=recorder.endpoint))
            votes = ["--preset", "parts", "--rounds", str(ROUNDS), "--miners", str(len(MINERS))]
            with localnet(tmp_path / "run", *votes, "--store", str(tmp_path / "recorded.json")) as run:
                # Miners fetch ahead: a payload of round 1 may be fetched before round 0 is shown.
                run.wait_until((run.folder / "spec.json").is_file, 2400, "spec")
                interrupted = payload(run, "miner-1", KILLED_IN)
                recorder.hold(interrupted, PART_BYTES)
                wait_for_part(run, "miner-2", PART_BYTES - (1 << 20), seconds=2400)
                run.kill("miner-2")
                recorder.release()
                report = assert_sound(run, ROUNDS)
    assert "miner-2 died and was started again" in run.screen
    assert_contributed(report)
    assert_in_parts(run, recorder)
    assert_fetched_ahead(run, recorder)
    resumed = [request for request in recorder.of(interrupted) if request.method == "GET" and request.first > 0]
    assert [request.first >= PART_BYTES - (1 << 20) for request in resumed] == [True]


def assert_contributed(report: dict[str, Any]) -> None:
    """Payloads counted: in every round but, at most, the one of the kill."""
    full = [row["round"] for row in report["rounds"] if len(row["contributing"]) == len(MINERS)]
    assert len(full) >= ROUNDS - 1, full


def assert_in_parts(run: Run, recorder: Recorder) -> None:
    """Each payload went up in two parts, the second of them before the first, which was saved meanwhile. A process's
    first upload asks with one byte whether the store takes it so: the killed miner asks again once it is back."""
    asked = list[tuple[str, int]]()
    for miner in MINERS:
        for round in range(ROUNDS):
            steps = [request.upload for request in recorder.of(payload(run, miner, round)) if request.upload]
            if steps[1:3] == ["part 2", "part 2"]:
                asked.append((miner, round))
                del steps[1]
            assert steps == ["begin", "part 2", "part 1", "complete"], (miner, round, steps)
    again = "miner-2", KILLED_IN if ("miner-2", KILLED_IN) in asked else KILLED_IN + 1
    assert asked == [("miner-1", 0), ("miner-2", 0), again]


def assert_fetched_ahead(run: Run, recorder: Recorder) -> None:
    """Whoever needed a payload began it once, although a miner wants it twice: before it knows the selection, and to
    apply it. A download that a busy machine cuts short goes on at its next byte."""
    for miner in MINERS:
        for round in (round for round in range(ROUNDS) if round != KILLED_IN):
            asked = [request for request in recorder.of(payload(run, miner, round)) if request.method == "GET"]
            assert [request.first for request in asked].count(0) == READERS, (miner, round, asked)
