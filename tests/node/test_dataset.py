"""The data set from others: few bytes for few sequences, from whoever gives the right ones."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gauntlet.agreement import abstention
from murmur.data import build as building
from murmur.data.index import BLOCK_BYTES, INDEX
from murmur.data.shards import Shards
from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.node.sync.dataset import RemoteShards, open_data
from murmur.protocol import keys
from murmur.protocol.errors import ConfigError, StorageError
from murmur.protocol.messages import encode_slot
from murmur.protocol.run import Run
from murmur.protocol.types import Page, Pointer, PublicPointer, hotkey
from tests.fakes.bucket import FakeBucket, FakeStore, Faults
from tests.fakes.chain import FakeChain, FakeSigner, FakeWorld, fake_verify
from tests.small_run import recut
from tests.specs import toy_spec

OWNER, HOLDER, READER = FakeSigner("owner"), FakeSigner("holder"), FakeSigner("reader")
SHARD_TOKENS = 1_000_000
NUM_SHARDS = 4
CONTEXT = 2048


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shards]:
    """Four full shards of 2 MB and a bit."""
    folder = tmp_path_factory.mktemp("data")
    text = folder / "text.jsonl"
    numbers = np.random.default_rng(0).integers(0, 10**9, 500_000)
    text.write_text("".join(json.dumps({"text": " ".join(map(str, each))}) + "\n" for each in numbers.reshape(-1, 500)))
    building.build(str(text), folder / "out", held_out=0.05)
    recut(folder / "out", SHARD_TOKENS)
    shards = Shards.open(folder / "out")
    assert len(shards.index.train) > NUM_SHARDS
    return folder / "out", shards


class Network:
    """A chain, and buckets of an owner and of a validator that may have the data set. `bytes_read`: from each."""

    def __init__(self, folder: Path, shards: Shards) -> None:
        self.folder, self.shards = folder, shards
        self.world, self.store = FakeWorld(epoch_blocks=100), FakeStore()
        self.bytes_read = {"owner": 0, "holder": 0}
        self._lock = threading.Lock()
        spec = toy_spec({"chain": self.world.genesis().hex(), "owner": hotkey(OWNER.peer)})
        data = spec.data.model_copy(update={"index": shards.digest.hex()})
        self.run = Run(spec.model_copy(update={"data": data}))
        for signer, stake in ((OWNER, 0), (HOLDER, 1), (READER, 0)):
            self.world.register(signer.peer, stake=stake, validates=stake > 0)
        self.world.publish(OWNER.peer, encode_slot(self.store.pointer("owner"), None))
        vote = abstention(0)
        self.world.publish(HOLDER.peer, encode_slot(self.store.pointer("holder"), vote))
        self.world.step(1)
        self.put("owner")
        self.store.bucket("holder")

    def put(self, name: str) -> None:
        """Everything of the data set goes into a bucket."""
        bucket = self.store.bucket(name)
        index = self.shards.index
        for digest, file in [(self.shards.digest, INDEX)] + [
            pair
            for entry in (*index.train, *index.held_out)
            for pair in ((entry.digest, entry.file), (entry.leaves_digest, entry.leaves_file))
        ]:
            bucket.put(keys.blob(digest), self.folder / file, timeout_seconds=1)
        self.store.log.clear()

    def open(self, folder: Path) -> Shards:
        copies = RemoteShards(self.run, self.ports(), folder / INDEX)
        opened = Shards.open(folder, index_digest=self.shards.digest, remote=copies)
        self.bytes_read = dict.fromkeys(self.bytes_read, 0)
        self.store.log.clear()
        return opened

    def ports(self) -> Ports:
        bucket = self.store.bucket("reader", reader="reader")
        pointer = self.store.pointer("reader")
        return Ports(FakeChain(self.world, READER.peer), READER, fake_verify, bucket, pointer, self._open)

    def _open(self, pointer: Pointer | PublicPointer) -> FakeBucket:
        assert isinstance(pointer, Pointer)
        return self.store.open(pointer, reader="reader", link=self._counting(pointer.bucket))

    def _counting(self, name: str) -> Callable[..., float]:
        def link(key: str, num_bytes: int, *, up: bool) -> float:
            with self._lock:
                self.bytes_read[name] += num_bytes
            return 0.0

        return link

    def keys_read(self, name: str) -> list[str]:
        return [key for bucket, verb, key in self.store.log if (bucket, verb) == (name, "get")]


@pytest.fixture
def network(made: tuple[Path, Shards]) -> Network:
    return Network(*made)


def scattered(count: int) -> list[tuple[int, int]]:
    """Sequences over all full shards."""
    span = NUM_SHARDS * SHARD_TOKENS // count
    return [(number * span + 7 * number, CONTEXT + 1) for number in range(count)]


def test_scattered_sequences_cost_their_blocks_and_not_their_shards(network: Network, tmp_path: Path) -> None:
    here = network.open(tmp_path / "data")
    runs = scattered(16)
    for mine, theirs in zip(here.train.read(runs), network.shards.train.read(runs), strict=True):
        assert np.array_equal(mine, theirs)
    lists = sum((tmp := network.folder / f"train-{number:05d}.leaves").stat().st_size for number in range(NUM_SHARDS))
    assert tmp.exists()
    assert 0 < network.bytes_read["owner"] <= 16 * 2 * BLOCK_BYTES + lists
    assert network.bytes_read["owner"] < NUM_SHARDS * 2 * SHARD_TOKENS / 3
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [INDEX]


def test_of_a_held_shard_nothing_is_read(network: Network, tmp_path: Path) -> None:
    here = network.open(tmp_path / "data")
    here.train.hold([Page(0, SHARD_TOKENS - 1)])
    assert network.bytes_read["owner"] == network.shards.index.file_bytes(network.shards.index.train[0])
    network.store.log.clear()
    assert np.array_equal(here.train.tokens(5, 5000), network.shards.train.tokens(5, 5000))
    assert not network.store.log


def test_several_holders_are_asked_beside_each_other(network: Network, tmp_path: Path) -> None:
    network.put("holder")
    here = network.open(tmp_path / "data")
    here.train.hold([Page(0, NUM_SHARDS * SHARD_TOKENS - 1)])
    each = network.shards.index.file_bytes(network.shards.index.train[0])
    assert network.bytes_read["owner"] - network.bytes_read["holder"] in (0, -256)
    assert sum(network.bytes_read.values()) - NUM_SHARDS * each in (0, 256)


def test_who_does_not_show_the_index_is_not_asked_for_text(network: Network, tmp_path: Path) -> None:
    here = network.open(tmp_path / "data")
    here.train.read(scattered(4))
    assert not network.keys_read("holder")
    assert len(network.keys_read("owner")) == 8


@pytest.mark.parametrize("fault", ["lies", "down", "denied", "lacks", "short"])
def test_another_holder_is_asked_when_one_is_hostile_or_broken(fault: str, network: Network, tmp_path: Path) -> None:
    network.put("holder")
    here = network.open(tmp_path / "data")
    here.train.tokens(0, 10)
    match fault:
        case "lacks":
            network.store.buckets["owner"].clear()
        case "short":
            network.store.faults["owner"] = Faults(head_size=5)
        case _:
            network.store.faults["owner"] = Faults(**{fault: True})
    runs = scattered(8)
    for mine, theirs in zip(here.train.read(runs), network.shards.train.read(runs), strict=True):
        assert np.array_equal(mine, theirs)
    here.train.hold([Page(0, 2 * SHARD_TOKENS - 1)])
    assert np.array_equal(here.train.tokens(0, 5000), network.shards.train.tokens(0, 5000))
    network.store.log.clear()
    here.train.read(scattered(2)[1:])
    assert not [entry for entry in network.store.log if entry[0] == "owner"], "who failed is asked last"


def test_what_nobody_has_is_a_storage_error_and_leaves_nothing_half_made(network: Network, tmp_path: Path) -> None:
    here = network.open(tmp_path / "data")
    network.store.faults["owner"] = Faults(lies=True)
    with pytest.raises(StorageError, match="could not be fetched"):
        here.train.read(scattered(2))
    with pytest.raises(StorageError, match="could not be fetched"):
        here.train.hold([Page(0, 10)])
    assert not list((tmp_path / "data").glob("*.npy"))
    network.store.faults.clear()
    assert np.array_equal(here.train.tokens(0, 10), network.shards.train.tokens(0, 10))


def test_what_a_killed_process_left_half_fetched_goes(network: Network, tmp_path: Path) -> None:
    here = network.open(tmp_path / "data")
    coming = tmp_path / "data" / "coming"
    coming.mkdir()
    (coming / f"{'0' * 64}.part").write_bytes(bytes(1000))
    here.train.hold([Page(0, 10)])
    assert not coming.exists()


def test_a_configured_node_fills_its_home_within_its_budget(network: Network, tmp_path: Path) -> None:
    spec, owner = network.run.first, hotkey(OWNER.peer)
    data = spec.data.model_copy(update={"num_tokens": network.shards.train.num_tokens, "held_out_sequences": 1})
    model = spec.model.model_copy(update={"vocabulary": 264})
    run = Run(spec.model_copy(update={"data": data, "model": model}))

    def config(**values: float) -> NetworkConfig:
        return NetworkConfig(network="local", netuid=spec.netuid, owner=owner, home=tmp_path, **values)

    shards = open_data(config(), run, network.ports(), tmp_path)
    assert np.array_equal(shards.train.tokens(0, 10), network.shards.train.tokens(0, 10))
    assert [path.name for path in (tmp_path / "data").iterdir()] == [spec.data.index[:16]]
    with pytest.raises(ConfigError, match="--data_gigabytes"):
        open_data(config(data_gigabytes=0.001), run, network.ports(), tmp_path)
    network.world.register(FakeSigner("another").peer, uid=0)  # the owner is no longer registered
    network.world.step(1)
    network.put("holder")
    again = open_data(config(), run, network.ports(), tmp_path)
    assert np.array_equal(again.train.tokens(10, 20), network.shards.train.tokens(10, 20))
    with pytest.raises(ConfigError, match="has published no bucket"):
        open_data(config(), run, network.ports(), tmp_path / "new")
    assert NetworkConfig(network="local", netuid=1, owner=owner).data_gigabytes == 100
