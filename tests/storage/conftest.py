"""Servers for the storage tests: each fixture yields real credentials for real buckets."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localnet.store import StoreReady, read_ready

ROOT = Path(__file__).parents[2]


@contextmanager
def served(command: list[str], ready: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, once it has written `ready`; ended with SIGTERM."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, "the server ended before it was ready"
            assert time.monotonic() < until, "the server was not ready within 60 s"
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def moto_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReady]:
    """localnet's store as a process of its own, with two peers."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "users.json").write_text(json.dumps(["miner-0", "miner-1"]))
    ready = folder / "ready.json"
    arguments = ["--ready-file", str(ready), "--users", str(folder / "users.json")]
    with served(["-m", "localnet.store", *arguments], ready):
        yield read_ready(ready)


@pytest.fixture(scope="session")
def swift_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """OpenStack Swift with s3api, strict about signatures; skipped where it cannot run."""
    pytest.importorskip("swift", reason="OpenStack Swift is not installed: pip install swift")
    folder = tmp_path_factory.mktemp("swift")
    try:
        os.setxattr(folder, "user.swift", b"1")
    except OSError:
        pytest.skip("Swift needs extended attributes, which the temporary folder's file system lacks")
    # Eventlet announces its own deprecation.
    with served(["-W", "ignore", "-m", "tests.storage.swift_server", str(folder)], folder / "ready.json"):
        yield json.loads((folder / "ready.json").read_text())["endpoint"]
