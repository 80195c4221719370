"""The page over a real network that runs: chain and store asked from outside, without a key."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.localnet.harness import localnet

SECONDS = 240.0


@contextmanager
def page(*words: str) -> Iterator[str]:
    """Address of `murmur dashboard` with these words."""
    command = [sys.executable, "-m", "murmur", "dashboard", *words, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.kill()
        process.communicate()


def told(url: str, happened: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Everything that the page knows, once that is so."""
    until = time.monotonic() + SECONDS
    while True:
        with urllib.request.urlopen(f"{url}api/rounds", timeout=SECONDS) as answer:
            body: dict[str, Any] = json.load(answer)
        if happened(body):
            return body
        assert time.monotonic() < until, body["sentence"]
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_a_running_network_is_watched_from_outside_and_its_end_is_said(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "run", 5
    with localnet(folder, "--rounds", str(rounds), "--miners", "2", "--fault", "garbage") as run:
        run.wait_for_round(1)
        config = folder / "watch.toml"
        lines = (folder / "nodes" / "miner-1" / "node.toml").read_text().splitlines()
        config.write_text("\n".join(line for line in lines if re.match("network|netuid|owner", line)) + "\n")
        with page("--config", str(config), "--home", str(tmp_path / "home")) as url:
            # It came in the middle: what was before is there as well.
            seen = told(url, lambda body: {0, 1} <= {one["round"] for one in body["rounds"] if one["pay"]})
            assert seen["run"] == "localnet"
            # The last round's report comes while the network waits for its last weights to be revealed.
            told(url, lambda body: any(one["round"] == rounds - 1 and one["pay"] for one in body["rounds"]))
            assert run.finish() == 0, run.screen
            body = told(url, lambda body: "The page shows older data" in body["sentence"])
    assert body["state"] == "wrong"
    by_round = {one["round"]: one for one in body["rounds"]}
    for row in run.report["rounds"]:
        one = by_round[row["round"]]
        for field in ("void", "active", "rejected"):
            assert one[field] == row[field], (row["round"], field)
        assert sorted(one["contributing"]) == sorted(row["contributing"])
        assert one["standing"].keys() == row["standing"].keys()
