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
    ("end", "asked", "fault"),
    [
        (None, False, None),
        (KeyboardInterrupt(), True, None),
        (ImportError("half a module"), True, None),
        (ConfigError("fix this"), False, "fix this"),
        (AssertionError(), False, "AssertionError"),
    ],
)
def test_a_node_records_its_start_and_how_it_stopped(
    end: BaseException | None, asked: bool, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "is_stopping", lambda: asked)
    state = SimpleNamespace(events=Events(tmp_path / "events.jsonl", "a"), round=3)
    with suppress(BaseException), shared.lifetime(cast(NodeState, state)):
        state.round = 5
        if end is not None:
            raise end
    told = [{**event, "time": 0, "node": ""} for event in read_events(tmp_path / "events.jsonl")]
    assert told == [
        {"time": 0, "node": "", "event": "started", "round": 3},
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
    config = cast(ClusterConfig, None)
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
