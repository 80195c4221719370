"""The real miner with keys that must not be published: it ends with status 2 and the setting to change, and its slot on
chain is empty. Over a real chain interface and a real S3 server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chain import operator
from chain.adapter import SubtensorChain, open_chain
from chain.devnet import launch
from chain.devnet.genesis import Genesis
from chain.keys import create_wallet
from localnet.store import StoreReady, StoreUser, read_ready
from protocol.types import PeerId, peer_id
from storage.s3 import RangedBucket, open_bucket
from tests.specs import to_toml, toy_table
from tests.storage.conftest import served
from tests.storage.permissive import permissive
from tests.storage.public import public

ROOT = Path(__file__).parents[2]
NETUID = 1
ID, SECRET = "MURMUR_BUCKET__ACCESS_KEY", "MURMUR_BUCKET__SECRET_KEY"
READ_ID, READ_SECRET = "MURMUR_BUCKET__READ_ACCESS_KEY", "MURMUR_BUCKET__READ_SECRET_KEY"


@dataclass(frozen=True)
class World:
    """A chain with one registered hotkey, a store with its bucket and another one, and a spec of a run on them."""

    folder: Path
    url: str
    chain: SubtensorChain
    hotkey: PeerId
    store: StoreReady

    def pointer_on_chain(self) -> object:
        peers = self.chain.peers(self.chain.finalized().block)
        (me,) = [peer for peer in peers if peer.id == self.hotkey]
        return None if me.slot is None else me.slot.pointer

    def mine(self, user: StoreUser, endpoint: str | None, public_url: str | None) -> subprocess.CompletedProcess[str]:
        """The miner, as an operator starts it, until it ends."""
        table: dict[str, Any] = {
            "network": self.url,
            "netuid": NETUID,
            "spec": str(self.folder / "spec.toml"),
            "home": str(self.folder / "home"),
            "device": "cpu",
            "wallet": {"name": "miner", "path": str(self.folder / "wallets")},
            "bucket": {
                "endpoint": endpoint or self.store.endpoint,
                "name": user.bucket,
                "access_key": user.write_access_key,
                "secret_key": user.write_secret_key,
            },
        }
        table["bucket"] |= (
            {"read_access_key": user.read_access_key, "read_secret_key": user.read_secret_key}
            if public_url is None
            else {"public_url": public_url}
        )
        config = self.folder / "node.toml"
        config.write_text(to_toml(table))
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MURMUR_", "BT_"))}
        return subprocess.run(
            [sys.executable, "-m", "neurons.miner", "--config", str(config)],
            env={**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    wallets = {name: create_wallet(name, "default", str(folder / "wallets")) for name in ("owner", "miner")}
    genesis = Genesis(
        owner_coldkey=wallets["owner"].coldkeypub.ss58_address,
        owner_hotkey=wallets["owner"].hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: 100 * 10**9 for wallet in wallets.values()},
        netuid=NETUID,
    )
    store, ready = folder / "store", folder / "store" / "ready.json"
    devnet = launch.start(folder / "chain", genesis, block_seconds=0.1)
    try:
        chain = open_chain(devnet.url, NETUID, wallets["miner"])
        operator.register(chain, wallets["miner"])
        spec = toy_table(
            {"chain": devnet.genesis.removeprefix("0x"), "netuid": NETUID, "gauntlet.weight_rounds": 3}
        )
        (folder / "spec.toml").write_text(to_toml(spec))
        with served(["-m", "localnet.seaweed", "--folder", str(store), "miner", "another"], ready):
            peer = peer_id(wallets["miner"].hotkey.ss58_address)
            yield World(folder, devnet.url, chain, peer, read_ready(ready))
        chain.close()
    finally:
        devnet.stop()


def refused(world: World, user: StoreUser, endpoint: str | None = None, public_url: str | None = None) -> str:
    """What the miner says when it ends with status 2 before it has posted anything."""
    done = world.mine(user, endpoint, public_url)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert "Traceback" not in told
    for secret in (user.write_secret_key, user.read_secret_key):
        assert secret not in told
    assert world.pointer_on_chain() is None
    return done.stderr


def user(world: World) -> StoreUser:
    return world.store.users["miner"]


def test_equal_keys_are_refused_by_the_configuration(world: World) -> None:
    own = user(world)
    same_secret = replace(own, read_secret_key=own.write_secret_key)
    told = refused(world, same_secret)
    assert SECRET in told
    assert READ_SECRET in told
    told = refused(world, replace(same_secret, read_access_key=own.write_access_key))
    assert ID in told
    assert READ_ID in told


def test_swapped_keys_are_refused_before_anything_is_on_chain(world: World) -> None:
    own = user(world)
    swapped = StoreUser(
        own.bucket, own.read_access_key, own.read_secret_key, own.write_access_key, own.write_secret_key
    )
    told = refused(world, swapped)
    assert "exchange the tokens" in told
    for name in (ID, SECRET, READ_ID, READ_SECRET):
        assert name in told


def test_a_published_key_that_may_write_is_refused_before_it_is_on_chain(world: World) -> None:
    with permissive() as endpoint:
        told = refused(world, user(world), endpoint)
    assert "may also write" in told
    assert READ_ID in told


def test_a_published_key_of_another_bucket_is_refused_before_it_is_on_chain(world: World) -> None:
    own, other = user(world), world.store.users["another"]
    told = refused(world, replace(own, read_access_key=other.read_access_key, read_secret_key=other.read_secret_key))
    assert "may not read" in told
    assert READ_ID in told


def test_a_public_bucket_that_everybody_may_change_is_refused_before_it_is_on_chain(world: World) -> None:
    with permissive() as endpoint:
        told = refused(world, user(world), endpoint, endpoint)
    assert "everybody may write" in told
    assert "MURMUR_BUCKET__PUBLIC_URL" in told


def own_bucket(world: World) -> RangedBucket:
    own = user(world)
    return open_bucket(world.store.endpoint, own.bucket, own.write_access_key, own.write_secret_key, local=True)


@pytest.mark.parametrize("is_public", [False, True])
def test_right_keys_and_a_public_bucket_are_tried_and_taken(world: World, is_public: bool) -> None:
    """The run of these tests has nothing to train on: that is found out after what is published was tried."""
    with public(own_bucket(world)) as server:
        told = refused(world, user(world), public_url=server.endpoint if is_public else None)
    assert "the run's owner" in told
    assert "was tried" not in told
    assert any(method == "PUT" for method, _, _ in server.requests) == is_public


def test_nothing_of_these_tries_is_left_in_the_bucket(world: World) -> None:
    assert own_bucket(world).list("", max_keys=10, timeout_seconds=10) == ()
