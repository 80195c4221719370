"""Who is in a network, by name."""

import argparse
from pathlib import Path

import pytest

from murmur.cli import localnet as command
from murmur.configs import presets
from murmur.lab.localnet import worker
from murmur.lab.localnet.fault_kinds import FAULTS
from murmur.lab.localnet.plan import NEWCOMER, Link, Plan
from murmur.lab.localnet.seaweed import _NAME
from murmur.node.config import adapters
from murmur.owner.folder import to_toml
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer


def test_every_member_has_a_name_of_its_own_that_tells_its_role(tmp_path: Path) -> None:
    plan = Plan(tmp_path, miners=3, validators=2, faults=(*FAULTS, "noise", "noise"), newcomers=2)
    names = plan.names()
    assert len(names) == 1 + 3 + 2 + len(FAULTS) + 2 + 2
    assert next(iter(names)) == "owner"
    assert [name for name, (role, _) in names.items() if role == "validator"] == ["validator-1", "validator-2"]
    assert [name for name, (_, fault) in names.items() if fault == "noise"] == ["noise-1", "noise-2", "noise-3"]
    newcomers = [name for name in names if name.startswith(NEWCOMER)]
    assert newcomers == ["newcomer-1", "newcomer-2"]
    assert all(names[name] == ("miner", None) for name in newcomers)
    assert all(_NAME.fullmatch(name) for name in names)  # every one is a bucket's name too


def test_a_preset_of_ones_own_keeps_its_clock_and_is_what_its_nodes_links_are(tmp_path: Path) -> None:
    table = presets.table("covenant-72b-110")
    path = tmp_path / "mine.toml"
    path.write_text(to_toml({name: table[name] for name in ("model", "inner", "data", "clock")}))
    plan = Plan(tmp_path, preset=str(path), links={"miner": Link(1.0, 2.0)})
    assert plan.clock == table["clock"]
    assert Plan(tmp_path).clock is None


@pytest.mark.parametrize(
    "words",
    [["--up", "1"], ["--down", "1"], ["--up", "0", "--down", "1"], ["--up", "1", "--down", "1", "--chaos", "1"]],
)
def test_half_a_link_and_a_link_beside_chaos_are_refused(tmp_path: Path, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(ConfigError, match="--up"):
        command.run(parser.parse_args([*words, "--folder", str(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()


def test_by_its_own_link_a_node_reaches_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "opener", adapters.opener)  # and put back
    worker.reach_all_at("http://127.0.0.1:1")
    bucket = adapters.opener(local=True)(Pointer("http://127.0.0.1:2", "theirs", "key", "secret"))
    assert repr(bucket) == "S3Bucket('http://127.0.0.1:1', 'theirs')"
