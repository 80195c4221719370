"""What a run folder says, of a network that started itself or of nodes that were started by hand."""

from pathlib import Path

from dashboard.folder import Folder
from node.config.run_file import RunFile
from protocol.run import Run
from tests.dashboard import synthetic
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
