"""What a node records of its own start and stop."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from node.state.node_state import NodeState
from node.telemetry.events import Events, read_events
from protocol.errors import ConfigError
from rounds import start


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
    monkeypatch.setattr(start, "is_stopping", lambda: asked)
    state = SimpleNamespace(events=Events(tmp_path / "events.jsonl", "a"), saved=SimpleNamespace(round=3))
    with suppress(BaseException), start.lifetime(cast(NodeState, state)):
        state.saved.round = 5
        if end is not None:
            raise end
    told = [{**event, "time": 0, "node": ""} for event in read_events(tmp_path / "events.jsonl")]
    assert told == [
        {"time": 0, "node": "", "event": "started", "round": 3},
        {"time": 0, "node": "", "event": "stopped", "round": 5, "fault": fault},
    ]
