"""The program: starting, crashing, restarting, and what it says when it can't."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from murmur.lab.devnet import launch
from murmur.lab.devnet.__main__ import parse_arguments
from murmur.lab.devnet.codec import compact
from murmur.lab.devnet.genesis import Genesis
from murmur.lab.devnet.state import DATABASE
from murmur.protocol.errors import ChainError, ConfigError
from tests.lab.devnet.conftest import genesis


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def test_help_loads_neither_the_sdk_nor_the_server() -> None:
    script = (
        "import sys\n"
        "from murmur.lab.devnet.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'bittensor', 'bittensor_core', 'websockets', 'loguru', 'torch', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    assert "not consensus" in done.stdout


@pytest.mark.parametrize(
    "wrong", [["--block-seconds", "0"], ["--keep-blocks", "0"], ["--finality-lag", "8", "--keep-blocks", "8"]]
)
def test_values_that_make_no_chain_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_arguments(["--data", "somewhere", *wrong])
    assert raised.value.code == 2


def test_what_the_operator_has_to_fix_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    new = ["-m", "murmur.lab.devnet", "--data", str(tmp_path / "new"), "--port", "0"]
    broken = tmp_path / "broken.json"
    broken.write_text('{"owner_coldkey": "nobody", "owner_hotkey": "nobody"}')
    for arguments, environment, expected in (
        (new, {}, "--genesis"),
        ([*new, "--genesis", str(broken)], {}, "not a devnet genesis"),
        (new, {"XDG_CACHE_HOME": str(tmp_path)}, "python -m murmur.lab.devnet.metadata"),
    ):
        done = run(*arguments, **environment)
        assert done.returncode == 2
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_genesis_survives_its_file(tmp_path: Path) -> None:
    written = genesis(netuid=7)
    written.save(tmp_path / "genesis.json")
    assert Genesis.load(tmp_path / "genesis.json") == written


def assert_every_block_is_whole(path: Path) -> None:
    """Each block's state root follows from its parent's and from the writes that are stored under its height."""
    with closing(sqlite3.connect(path)) as database:
        blocks = database.execute("SELECT number, body FROM blocks ORDER BY number").fetchall()
        assert [number for number, _ in blocks] == list(range(len(blocks)))
        parent = bytes(32)
        for number, body in blocks:
            root = blake2b(parent, digest_size=32)
            writes = "SELECT key, value FROM versions WHERE block = ? ORDER BY key"
            for key, value in database.execute(writes, (number,)):
                root.update(compact(len(key)) + key + b"\x01" + compact(len(value)) + value)
            parent = root.digest()
            assert json.loads(body)["header"]["stateRoot"] == "0x" + parent.hex()


def test_a_killed_devnet_goes_on_from_its_last_finished_block(tmp_path: Path) -> None:
    devnet = launch.start(tmp_path, genesis(), block_seconds=0.002, keep_blocks=100_000)
    port = int(devnet.url.rsplit(":", 1)[1])
    seen: dict[int, str] = {}
    killer: threading.Timer | None = None
    with connect(devnet.url) as connection:
        connection.send(json.dumps({"id": 1, "method": "chain_subscribeNewHeads"}))
        try:
            for message in connection:
                header = json.loads(message).get("params", {}).get("result")
                if header:
                    seen[int(header["number"], 16) - 1] = header["parentHash"]
                if killer is None and len(seen) > 20:
                    killer = threading.Timer(0.1, devnet.kill)  # at whatever line it is then
                    killer.start()
        except (OSError, ConnectionClosed):
            pass
    assert killer is not None
    killer.join()
    assert_every_block_is_whole(tmp_path / DATABASE)
    again = launch.start(tmp_path, port=port, step=True, keep_blocks=100_000)
    try:
        admin = again.admin()
        info = admin.info()
        assert again.url == devnet.url
        assert info["genesis"] == devnet.genesis
        assert info["head"] >= max(seen) > 10
        for number, digest in seen.items():
            assert number < 0 or admin.request("chain_getBlockHash", number) == digest
        assert admin.step()["head"] == info["head"] + 1
    finally:
        again.stop()


def test_two_devnets_cannot_share_a_database(tmp_path: Path) -> None:
    devnet = launch.start(tmp_path, genesis(), step=True)
    try:
        with (tmp_path / "log").open("w") as log, pytest.raises(ConfigError, match="did not start"):
            launch.start(tmp_path, step=True, log=log)
        assert "another devnet" in (tmp_path / "log").read_text()
    finally:
        devnet.stop()


def test_a_stopped_devnet_ends_cleanly_and_is_no_longer_reached(tmp_path: Path) -> None:
    devnet = launch.start(tmp_path, genesis(), block_seconds=0.05)
    devnet.stop()
    assert devnet.process.returncode == 0
    with pytest.raises(ChainError, match="did not answer"):
        devnet.admin().info()


def test_blocks_come_at_the_rate_asked_for(tmp_path: Path) -> None:
    devnet = launch.start(tmp_path, genesis(), block_seconds=0.05)
    try:
        start = time.monotonic()
        begin = devnet.admin().info()["head"]
        while (made := devnet.admin().info()["head"] - begin) < 5:
            time.sleep(0.05)
        assert made <= (time.monotonic() - start) / 0.05 + 2  # a busy machine may be late, never early
    finally:
        devnet.stop()
