"""One seed is one history, whatever order Python's hash seed gives to sets."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

HASH_SEEDS = 8
RUNS = {
    "a cluster": ["--cluster", "--members", "6", "--rounds", "5", "--faults-per-hour", "120"],
    "a cluster's int8": ["--cluster", "--exchange", "int8", "--members", "5", "--rounds", "4"],
    "a network": ["--validators", "3", "--miners", "5", "--rounds", "6", "--faults-per-hour", "120"],
    "a network with liars": ["--validators", "5", "--miners", "5", "--rounds", "4", "--hostile-stake", "0.3"],
}


@pytest.mark.check
@pytest.mark.parametrize("kind", RUNS)
def test_a_history_is_the_same_under_every_hash_seed(tmp_path: Path, kind: str) -> None:
    def history(seed: int) -> str:
        trace = tmp_path / f"{seed}.jsonl"
        words = [sys.executable, "-m", "murmur", "simulate", *RUNS[kind], "--seed", "7", "--trace", str(trace)]
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=300)
        return sha256(trace.read_bytes()).hexdigest()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(history, range(HASH_SEEDS)))) == 1
