"""Finding the run: a home that has it needs nobody, an owner's bucket that is down is waited for."""

import os
from pathlib import Path

import pytest

from murmur.node.config.run_file import NAME, RunFile, folder_of, saved_runs
from murmur.node.config.settings import NetworkConfig
from murmur.node.sync.amendments import settled
from murmur.node.sync.run_discovery import find_run
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.run import Run
from murmur.protocol.types import hotkey
from tests.node.test_amendments import ALPHA, OWNER, Owned
from tests.specs import to_toml, toy_spec

CONFIG = NetworkConfig(network="ws://127.0.0.1:1", netuid=1, owner=hotkey(OWNER.peer))


@pytest.fixture
def owned() -> Owned:
    owned = Owned()
    owned.until(5)
    return owned


def find(owned: Owned, home: Path, config: NetworkConfig = CONFIG) -> Run:
    ports = owned.ports()
    return find_run(config, ports.chain, ports.open_pointer, home)


def amended(owned: Owned) -> Run:
    """The run with an amendment that everybody follows by now."""
    owned.until(owned.clock.start(2))
    run = owned.publish(owned.run, from_round=5, changes=ALPHA)
    owned.until(owned.clock.start(6))
    assert owned.look() == run
    return run


def test_the_owners_slot_leads_back_to_the_first_spec(owned: Owned, tmp_path: Path) -> None:
    run = amended(owned)
    found = find(owned, tmp_path)
    assert found == owned.run
    assert settled(found, 0, owned.ports(), {}) == run


def test_a_restart_follows_what_it_followed_without_anybodys_bucket(owned: Owned, tmp_path: Path) -> None:
    run = amended(owned)
    RunFile(folder_of(tmp_path, run.id)).save(run)
    owned.store.buckets["owner"].clear()
    assert find(owned, tmp_path) == run
    later = owned.publish(run, from_round=20, changes={"outer": {"alpha": 0.5}})
    del owned.store.buckets["owner"][keys.blob(later.head)]
    assert find(owned, tmp_path) == run, "the slot names what nobody can read"


def test_a_restart_with_a_spec_file_follows_its_amendments_too(owned: Owned, tmp_path: Path) -> None:
    run = amended(owned)
    RunFile(folder_of(tmp_path, run.id)).save(run)
    file = tmp_path / "spec.toml"
    file.write_text(to_toml(run.first.model_dump(mode="json")))
    config = NetworkConfig(network="ws://127.0.0.1:1", netuid=1, spec=file)
    owned.store.buckets["owner"].clear()
    assert find(owned, tmp_path, config) == run


def test_another_run_of_the_same_owner_is_found_when_its_slot_names_one(owned: Owned, tmp_path: Path) -> None:
    RunFile(folder_of(tmp_path, owned.run.id)).save(owned.run)
    other = Run(toy_spec({"name": "other", "chain": owned.run.first.chain, "owner": owned.run.first.owner}))
    owned.bucket.put(keys.blob(other.id), other.first.to_bytes(), timeout_seconds=1)
    owned.name(other.id)
    owned.world.step(1)
    assert find(owned, tmp_path) == other


def test_an_owners_bucket_that_is_down_is_a_servers_fault(owned: Owned, tmp_path: Path) -> None:
    owned.store.buckets["owner"].clear()
    with pytest.raises(StorageError):
        find(owned, tmp_path)


def test_an_owner_that_names_no_run_is_the_operators_matter(owned: Owned, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"owner": hotkey(owned.ports().signer.peer)})
    with pytest.raises(ConfigError, match="names no run"):
        find(owned, tmp_path, config)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.99])
def test_a_run_file_that_the_disk_changed_is_as_good_as_none(owned: Owned, tmp_path: Path, where: float) -> None:
    run = amended(owned)
    file = RunFile(folder_of(tmp_path, run.id))
    file.save(run)
    path = folder_of(tmp_path, run.id) / NAME
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(data)
    assert file.load() is None
    assert saved_runs(tmp_path) == []
    assert find(owned, tmp_path) == owned.run


def test_a_run_file_is_the_old_one_or_the_new_one(
    owned: Owned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RunFile(tmp_path)
    file.save(owned.run)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        file.save(amended(owned))
    assert RunFile(tmp_path).load() == owned.run
