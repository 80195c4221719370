"""What a run folder says, of a network that started itself or of nodes that were started by hand."""

from pathlib import Path

import pytest

from murmur.node.config.run_file import RunFile
from murmur.page.folder import Folder
from murmur.page.health import health
from murmur.protocol.run import Run
from tests.page import synthetic
from tests.specs import toy_spec, toy_table


def test_where_nodes_were_started_by_hand_the_run_is_the_one_that_they_follow(tmp_path: Path) -> None:
    """As after `murmur devnet`, which knows no spec of its own."""
    written = synthetic.Folder(tmp_path)
    (tmp_path / "owner.toml").touch()
    folder = Folder(tmp_path)
    assert (folder.spec, folder.stage().waits_for) == (
        None,
        "The chain and the object store are there: publish a run, and start the nodes.",
    )
    older, newer = toy_spec(), toy_spec({"name": "newer", "clock": {**toy_table()["clock"], "start_block": 5000}})
    for node, spec in (("miner-1", older), ("miner-2", newer)):
        home = tmp_path / "nodes" / node / spec.name
        home.mkdir()
        RunFile(home).save(Run(spec))
    assert folder.spec == newer
    assert folder.stage().waits_for is None
    written.round(0)
    folder.read()
    assert [one.number for one in folder.rounds] == [0]


def test_a_network_whose_nodes_were_all_stopped_on_request_is_stopped_until_one_starts_again(tmp_path: Path) -> None:
    nodes = ("miner-1", "miner-2", "validator-1")
    written, folder = synthetic.Folder(tmp_path, nodes), Folder(tmp_path)
    for node in nodes:
        written.write(node, "started", 0)
    written.round(0)
    for node in nodes[:2]:
        written.write(node, "stopped", 1, fault=None)
    folder.read()
    assert not folder.stage().stopped
    written.write("validator-1", "stopped", 1, fault=None)
    folder.read()
    assert folder.stage().stopped
    kind, told = health(folder)
    assert kind == "waiting"
    assert told.startswith("Stopped on request after 1 round: 2 of 3 contributed")
    written.write("validator-1", "started", 1)
    folder.read()
    assert not folder.stage().stopped
    written.write("validator-1", "stopped", 1, fault="the chain is gone")
    folder.read()
    assert not folder.stage().stopped


def test_a_network_whose_last_events_lie_in_the_future_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, folder = synthetic.Folder(tmp_path), Folder(tmp_path)
    written.round(0)
    folder.read()
    assert not folder.stage().troubles
    monkeypatch.setattr("murmur.page.folder.time.time", lambda: 1e9 - 7 * 86400)  # the events are of 1e9 and later
    kind, told = health(folder)
    assert kind == "wrong"
    assert "in the future" in told
