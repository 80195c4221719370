"""Nothing listens beyond loopback unless it is asked to: chain, store, page, nodes, their ranks, members, devnet."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.localnet.harness import localnet
from tests.ports import beyond_loopback, family, listening

SECONDS = 300.0
STRANGE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "socks5://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "elsewhere.test"),
    "AWS_PROFILE": "unknown",
    "WORLD_SIZE": "4",
    "MURMUR_PORT": "tcp://10.0.0.1:9100",
}
"""Nobody listens there, and nothing of it is this machine's business."""


def test_a_network_with_ranks_is_out_of_everybodys_reach(tmp_path: Path) -> None:
    with localnet(tmp_path / "run", "--rounds", "3", "--miners", "2", "--ranks", "2,1") as run:
        run.wait_for_round(0)
        assert set(run.ranks("miner-1").values()) < family(run.process.pid)
        found = listening(run.process.pid)
        own = listening(run.pid("miner-1"))
    assert beyond_loopback(found) == []
    assert len(own) >= 3  # the launcher's store, the ranks', gloo's
    assert len(found) >= len(own) + 3  # and the page, the chain, the store


@pytest.mark.parametrize(
    ("words", "ready", "least"),
    [
        (["devnet", "--miners", "1", "--folder", "FOLDER"], "owner.toml", 2),
        (["cluster", "demo", "--members", "2", "--kill", "0", "--rounds", "3", "--folder", "FOLDER"], "round 1", 2),
    ],
    ids=["devnet", "cluster"],
)
def test_what_is_started_by_one_command_is_out_of_everybodys_reach(
    words: list[str], ready: str, least: int, tmp_path: Path
) -> None:
    folder, screen = tmp_path / "run", tmp_path / "screen"
    command = [sys.executable, "-m", "murmur", *(str(folder) if word == "FOLDER" else word for word in words)]
    with screen.open("w") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, env=os.environ | STRANGE, start_new_session=True)
    try:
        until(lambda: ready in screen.read_text() or process.poll() is not None)
        found = listening(process.pid)
        assert process.poll() is None, screen.read_text()
    finally:
        process.terminate()
        process.wait(SECONDS)
    assert beyond_loopback(found) == []
    assert len(found) >= least


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
