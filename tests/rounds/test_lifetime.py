"""What a node records of its own start and stop."""

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
