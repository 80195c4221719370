"""A devnet with an owner, an S3 server and a data set, for `murmur run`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.keys import create_wallet
from murmur.cli.main import main
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.lab.localnet.store import StoreReady, StoreUser, read_ready
from murmur.protocol.types import Digest, PeerId, Slot, peer_id
from storage.s3 import RangedBucket, open_bucket
from tests.small_run import data_set
from tests.specs import to_toml, toy_table
from tests.storage.conftest import served

ROOT = Path(__file__).parents[2]
NETUID = 1
BLOCK_SECONDS = 0.1
CLOCK = {"round_blocks": 60, "commit": 30, "reveal": 34, "words": 50}
"""Seconds on the chain, but planned for blocks of 12 s: what nodes need is not the question here."""
TABLE: dict[str, Any] = {
    name: table for name, table in toy_table().items() if name in ("model", "inner", "compression")
} | {
    "data": {"page_sequences": 8, "held_out_sequences": 2},
    "clock": CLOCK | {"block_seconds": 12.0},
    "gauntlet": {"contributors": 4, "reserve": 1},
}


@dataclass(frozen=True)
class World:
    """A chain with an owner, a miner and a stranger, who is not registered; buckets for the first two; a data set."""

    folder: Path
    url: str
    chain: SubtensorChain
    store: StoreReady
    peers: dict[str, PeerId]

    def user(self, name: str) -> StoreUser:
        return self.store.users[name]

    def table(self, name: str) -> dict[str, Any]:
        user = self.user(name)
        return {
            "network": self.url,
            "netuid": NETUID,
            "wallet": {"name": name, "path": str(self.folder / "wallets")},
            "bucket": {
                "endpoint": self.store.endpoint,
                "name": user.bucket,
                "access_key": user.write_access_key,
                "secret_key": user.write_secret_key,
                "read_access_key": user.read_access_key,
                "read_secret_key": user.read_secret_key,
            },
        }

    def file(self, name: str, table: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(to_toml(table))
        return path

    @property
    def config(self) -> Path:
        return self.file("owner.toml", self.table("owner"))

    def bucket(self, name: str) -> RangedBucket:
        user = self.user(name)
        return open_bucket(self.store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)

    def slot(self) -> Slot | None:
        peers = self.chain.peers(self.chain.finalized().block)
        return next(peer.slot for peer in peers if peer.id == self.peers["owner"])

    def named(self) -> Digest | None:
        slot = self.slot()
        return slot.amendment if slot is not None else None

    def create(self, folder: Path, *words: str, table: dict[str, Any] = TABLE, data: str = "data") -> int:
        spec = self.file("spec.toml", table)
        where = ["--config", str(self.config), "--spec", str(spec), "--data", str(self.folder / data)]
        return main(["run", "create", str(folder), *where, "--local", "--device", "cpu", *words])

    def run(self, action: str, folder: Path, *words: str) -> int:
        return main(["run", action, str(folder), *words, "--config", str(self.config)])

    def publish(self, folder: Path, *words: str) -> int:
        return self.run("publish", folder, "--start-in", "60", *words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    names = ("owner", "miner", "stranger")
    wallets = {name: create_wallet(name, "default", str(folder / "wallets")) for name in names}
    genesis = Genesis.fast(
        wallets["owner"].coldkeypub.ss58_address,
        wallets["owner"].hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: 100 * 10**9 for wallet in wallets.values()},
        netuid=NETUID,
    )
    data_set(folder / "data")
    store, credentials = folder / "store", folder / "store" / "ready.json"
    with ExitStack() as stack:
        devnet = launch.start(folder / "chain", genesis, block_seconds=BLOCK_SECONDS)
        stack.callback(devnet.stop)
        chain = open_chain(devnet.url, NETUID, wallets["miner"])
        stack.callback(chain.close)
        operator.register(chain, wallets["miner"])
        stack.enter_context(
            served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "owner", "miner"], credentials)
        )
        peers = {name: peer_id(wallet.hotkey.ss58_address) for name, wallet in wallets.items()}
        yield World(folder, devnet.url, chain, read_ready(credentials), peers)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this shell reaches a command."""
    for name in [name for name in os.environ if name.startswith(("MURMUR_", "BT_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder that nobody publishes."""
    folder = tmp_path_factory.mktemp("made") / "My Run"
    assert world.create(folder) == 0
    return folder
