"""Rounds whose text is fetched: miners have whole shards before they train, validators read parts and keep nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from murmur.data.index import INDEX
from murmur.data.shards import Shards
from murmur.node.node import Node
from murmur.node.sync.dataset import RemoteShards
from murmur.protocol import keys
from tests.network import FakeNetwork, Member


class Fetching(FakeNetwork):
    """Its nodes have no text of their own; the owner's bucket has it."""

    budget = 10**9

    def publish_data(self) -> Shards:
        data = Shards.open(self.data)
        entries = (*data.index.train, *data.index.held_out)
        files = {data.digest: INDEX}
        files |= {entry.digest: entry.file for entry in entries}
        files |= {entry.leaves_digest: entry.leaves_file for entry in entries}
        for digest, file in files.items():
            self._owner_bucket.put(keys.blob(digest), self.data / file, timeout_seconds=1)
        return data

    def folder_of(self, name: str) -> Path:
        return self[name].home / "data"

    def shards(self, member: Member, node: Node) -> Shards:
        folder, digest = self.folder_of(member.name), Shards.open(self.data).digest
        remote = RemoteShards(self.run, node.ports, folder / INDEX)
        return Shards.open(folder, index_digest=digest, remote=remote, max_bytes=self.budget)


@pytest.fixture
def network(tmp_path: Path, data_folder: Path, networks: Callable[..., FakeNetwork]) -> Fetching:
    made = Fetching(tmp_path / "network", data_folder)
    made.publish_data()
    return made


def test_rounds_are_played_with_text_of_others(network: Fetching) -> None:
    network.start()
    try:
        network.run_until(3)
    finally:
        network.close()
    agreed = network.assert_agreement("miner-1", "miner-2", "validator")
    assert len(set(agreed.values())) > 1
    held = {name: sorted(path.name for path in network.folder_of(name).iterdir()) for name in network.members}
    assert held["validator"] == [INDEX]
    assert any(name.startswith("train-") for name in held["miner-1"])
    assert any(event["peers"] for event in network["validator"].events("evaluated"))
