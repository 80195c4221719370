"""What a node records of its own start and stop."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from murmur.cluster import start
from murmur.cluster.group_keys import Token
from murmur.lab.simulation.cluster import BUCKET, SECRET, Cluster
from murmur.node.config.settings import ClusterConfig
from murmur.node.program import shared
from murmur.node.state.node_state import NodeState
from murmur.node.state.store import StateStore
from murmur.node.telemetry.events import Events, read_events
from murmur.protocol import keys
from murmur.protocol.errors import AccessDenied, ConfigError, StorageError


@pytest.mark.parametrize(
    ("end", "asked", "dead", "fault"),
    [
        (None, False, None, None),
        (KeyboardInterrupt(), True, None, None),
        (ImportError("half a module"), True, None, None),
        (ConfigError("fix this"), False, None, "fix this"),
        (AssertionError(), False, None, "AssertionError"),
        (KeyboardInterrupt(), True, "its thread died", "its thread died"),
    ],
)
def test_a_node_records_its_start_and_how_it_stopped(
    end: BaseException | None,
    asked: bool,
    dead: str | None,
    fault: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "is_stopping", lambda: asked)
    monkeypatch.setattr(shared, "dead_thread", lambda: dead)
    state = SimpleNamespace(events=Events(tmp_path / "events.jsonl", "a"), round=3, run_id=bytes(32))
    with suppress(BaseException), shared.lifetime(cast(NodeState, state), "5hotkey"):
        state.round = 5
        if end is not None:
            raise end
    told = [{**event, "time": 0, "node": ""} for event in read_events(tmp_path / "events.jsonl")]
    assert told == [
        {"time": 0, "node": "", "event": "started", "round": 3, "run": "00" * 32, "hotkey": "5hotkey"},
        {"time": 0, "node": "", "event": "stopped", "round": 5, "fault": fault},
    ]


IMPATIENT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from murmur.node.program.process import log_to_stderr, run_program, stop_after
from murmur.node.program.shared import lifetime
from murmur.node.telemetry.events import Events

class Lost:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(60)

def main():
    state = SimpleNamespace(events=Events(Path(sys.argv[2]), "a"), round=3, run_id=bytes(32))
    with lifetime(state):
        if sys.argv[1] == "in a destructor":
            Lost()
        stop_after("the key is out")
        print("ready", flush=True)
        time.sleep(60)

log_to_stderr("INFO")
sys.exit(run_program(main))
"""


@pytest.mark.parametrize(("where", "signals"), [("at work", 2), ("in a destructor", 1)])
def test_a_stop_at_once_is_recorded_too(where: str, signals: int, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, where, str(events)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    if signals == 2:
        assert "asked to stop" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    assert "stopped on request" in process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert [(event["event"], event.get("fault")) for event in read_events(events)] == [
        ("started", None),
        ("stopped", None),
    ]


PATIENT = """
import sys, time
from pathlib import Path
from murmur.node.program.process import log_to_stderr, run_program, stop_after

def main():
    stop_after("the key is out")
    print("ready", flush=True)
    sys.stdin.readline()
    print("the key is out", flush=True)
    stop_after(None)
    print("went on", flush=True)

log_to_stderr("INFO")
sys.exit(run_program(main))
"""


STALLED = """
import hashlib, os, sys, time
from loguru import logger
from murmur.node.program.process import last_word, run_program, stop_after

def main():
    logger.remove()
    logger.add(lambda line: time.sleep(60))
    last_word(lambda: print("recorded", flush=True))
    stop_after("the key is out")
    print("ready", flush=True)
    if sys.argv[1] == "in a call":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
    logger.info("this takes long")

sys.exit(run_program(main))
"""


@pytest.mark.parametrize("where", ["in a call", "in the log"])
def test_a_second_signal_ends_a_node_whose_log_stalls_and_is_recorded(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STALLED, where],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout.read() == "recorded\n"
    finally:
        process.kill()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_stops_a_node_after_its_reveal_unless_it_is_to_be_ignored(ignored: bool) -> None:
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        process = subprocess.Popen(
            [*["nohup"] * ignored, sys.executable, "-c", PATIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    finally:
        signal.signal(signal.SIGHUP, hung_up)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):  # the shell's and the kernel's
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
    out, said = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert out == "the key is out\n" + "went on\n" * ignored
    assert ("stopped on request" in said) == ("stops after the key is out" in said) == (not ignored)


def test_a_member_waits_for_the_store_and_a_newcomer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path / "cluster", 0, 1, lambda *_: None)
    bucket = cluster.store.bucket(BUCKET, reader="owner")
    bucket.put(keys.blob(cluster.run), cluster.spec.to_bytes(), timeout_seconds=1)
    faults: list[StorageError] = []

    def open_shared(_: Token) -> object:
        if faults:
            raise faults.pop()
        return bucket

    monkeypatch.setattr(start, "open_shared", open_shared)
    monkeypatch.setattr(start, "open_data", lambda *_: "shards")
    monkeypatch.setattr(start, "RETRY_SECONDS", 0.0)
    token = Token(
        endpoint="e", bucket=BUCKET, access_key="a", secret_key="s", run=cluster.run.hex(), secret=SECRET, local=True
    )
    config = ClusterConfig(name="lab-a", token_file=tmp_path / "token")
    home = tmp_path / "home"
    faults = [StorageError("no connection")]
    with pytest.raises(StorageError, match="no connection"):
        start._found(config, token, home)
    ledger = start._found(config, token, home)[1]
    StateStore(home, cluster.run).close()
    faults = [StorageError("no connection")] * 3
    spec, again, shards = start._found(config, token, home)
    assert (spec.digest, again.me, shards, faults) == (cluster.run, ledger.me, "shards", [])
    faults = [AccessDenied("wrong key")]
    with pytest.raises(AccessDenied):
        start._found(config, token, home)
    cluster.close()
