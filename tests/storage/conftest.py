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
def s3_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the local network's S3 server (SeaweedFS), running as a process of its own with two peers."""
    folder = tmp_path_factory.mktemp("store")
    with served(["-m", "localnet.seaweed", "--folder", str(folder), "miner-0", "miner-1"], folder / "ready.json"):
        yield folder


@pytest.fixture(scope="session")
def s3_store(s3_folder: Path) -> StoreReady:
    """That server: its endpoint, and the buckets and keys of miner-0 and miner-1."""
    return read_ready(s3_folder / "ready.json")


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
