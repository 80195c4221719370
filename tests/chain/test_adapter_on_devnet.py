"""The adapter on devnets that tests must hold in their hand: pruned, or killed in mid-submission."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from murmur.chain import operator, reading
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.keys import HotkeySigner
from murmur.chain.session import Session
from murmur.chain.submission import GIVE_UP_BLOCKS
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.protocol.errors import STATE_PRUNED, ChainError
from murmur.protocol.types import Uid
from tests.chain import admin
from tests.chain.harness import NETUID, wallet

OWNER = wallet("//adapter//owner")


class Devnets:
    """Devnets on one folder, one at a time: all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[launch.Devnet] = []

    def start(self, **options: Any) -> launch.Devnet:
        fresh = None if self._started else genesis()
        self._started.append(launch.start(self._folder / "data", fresh, **{"step": True, **options}))
        return self._started[-1]

    def end(self) -> None:
        for devnet in self._started:
            devnet.stop()


@pytest.fixture
def devnets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devnets]:
    monkeypatch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(tmp_path / "runtime"))
    devnets = Devnets(tmp_path)
    yield devnets
    devnets.end()


def genesis() -> Genesis:
    address = OWNER.coldkey.ss58_address
    return Genesis.fast(address, OWNER.hotkey.ss58_address, balances={address: 10**9}, netuid=NETUID)


def test_a_height_below_the_pruning_horizon_is_a_chain_error_that_says_so(devnets: Devnets) -> None:
    devnet = devnets.start(keep_blocks=10)
    chain, fresh = (open_chain(devnet.url, NETUID, None, call_timeout_seconds=30.0) for _ in range(2))
    devnet.admin().step(3)
    old = chain.finalized()
    devnet.admin().step(11)
    assert chain.header(old.block) == old, "what was read while it was there stays known"
    for read in (fresh.header, fresh.peers, lambda block: fresh.weights(block, Uid(0))):
        with pytest.raises(ChainError, match=f"block {old.block} is below the pruning horizon"):
            read(old.block)
    with pytest.raises(ChainError, match="pruning horizon"):
        chain.peers(old.block)
    assert fresh.genesis() == chain.genesis()
    fresh.close()
    chain.close()


def test_what_the_chains_node_has_pruned_is_read_from_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(tmp_path / "runtime"))
    keeps, prunes = tmp_path / "keeps", tmp_path / "prunes"
    first = launch.start(keeps, genesis(), step=True)
    first.admin().step(5)
    first.stop()
    shutil.copytree(keeps, prunes)
    archive, own = launch.start(keeps, step=True), launch.start(prunes, step=True, keep_blocks=10)
    own.admin().step(20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"ws://127.0.0.1:{server.getsockname()[1]}"

        def opened(*archives: str) -> SubtensorChain:
            return open_chain(own.url, NETUID, None, archives=archives, call_timeout_seconds=9.0)

        chains = opened(), opened("ws://127.0.0.1:1", own.url, archive.url), opened(silent)
        without, with_archives, with_a_silent_one = chains
        for read in (without.header, without.peers, without.keeper):
            with pytest.raises(ChainError) as fault:
                read(3)
            assert fault.value.code == STATE_PRUNED
        assert with_archives.header(3).hash.hex() == archive.admin().request("chain_getBlockHash", 3)[2:]
        assert [peer.id for peer in with_archives.peers(3)] == [HotkeySigner(OWNER.hotkey).peer]
        assert with_archives.subnet(3).owner == HotkeySigner(OWNER.hotkey).peer
        assert with_archives.weights(3, Uid(0)) == {}
        assert (with_archives.keeper(3), with_archives.keeper(20)) == (archive.url, own.url)
        began = time.monotonic()
        with pytest.raises(ChainError, match="did not answer within") as fault:
            with_a_silent_one.peers(3)
        assert fault.value.code == STATE_PRUNED
        with pytest.raises(ChainError, match="No archive has it either"):
            with_a_silent_one.peers(4)
        assert time.monotonic() - began < 2 * 9.0, "it is not asked again at once"
        assert with_a_silent_one.peers(20)
    for chain in chains:
        chain.close()
    for devnet in (archive, own):
        devnet.stop()


def test_the_runtimes_metadata_says_how_long_a_block_takes(devnets: Devnets) -> None:
    """By Aura's constant; what it has no method for is not said."""
    chain = open_chain(devnets.start().url, NETUID, None, call_timeout_seconds=30.0)

    async def seconds(session: Session) -> float:
        return await reading.block_seconds(session, await reading.block_hash(session, 0))

    async def babes(session: Session) -> object:
        return await reading._said(session, "BabeApi", "configuration", await reading.block_hash(session, 0))

    assert chain.call(seconds) == 0.25
    assert chain.call(babes) is None


def test_an_upgrade_of_the_runtime_under_an_open_session_costs_no_submission(devnets: Devnets) -> None:
    devnet = devnets.start(step=False, block_seconds=0.25)
    chain = open_chain(devnet.url, NETUID, OWNER, call_timeout_seconds=30.0)
    chain.publish((b"before",))
    other = open_chain(devnet.url, NETUID, OWNER, call_timeout_seconds=30.0)
    admin.upgrade_runtime(other, OWNER)
    upgraded = other.head()
    assert chain.publish((b"after",)) <= upgraded + 3
    assert admin.upgrade_runtime(other, OWNER)
    chain.close()
    other.close()


def test_a_submission_whose_node_is_killed_is_found_on_chain_and_not_sent_twice(devnets: Devnets) -> None:
    devnet = devnets.start()
    port = int(devnet.url.rsplit(":", 1)[1].strip("/"))
    chain = open_chain(devnet.url, NETUID, OWNER, call_timeout_seconds=30.0)
    admin = devnet.admin()
    admin.step(2)
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(chain.publish, (b"slot",))
        # counts what the pool holds
        wait_for(lambda: admin.request("account_nextIndex", OWNER.hotkey.ss58_address) == 1)
        devnet.kill()
        devnets.start(port=port).admin().step(1)
        assert published.result(120.0) == 3
    chain.wait(3, 60.0)
    slot = chain.peers(3)[0].slot
    assert slot is not None
    assert slot.block == 3
    assert operator.nonce(chain, OWNER.hotkey.ss58_address) == 1, "one submission, one nonce"
    chain.close()


def test_a_submission_that_waits_in_the_pool_for_long_is_sent_again_and_gets_into_one_block(devnets: Devnets) -> None:
    devnet = devnets.start(finality_lag_blocks=20)
    chain = open_chain(devnet.url, NETUID, OWNER, call_timeout_seconds=30.0)
    admin = devnet.admin()
    admin.step(3)
    told: list[str] = []
    sink = logger.add(lambda message: told.append(message.record["extra"].get("error", "")))
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(chain.publish, (b"slot",))
        wait_for(lambda: admin.request("account_nextIndex", OWNER.hotkey.ss58_address) == 1)
        # A branch that is one block longer each time, and empty: the post stays in the pool.
        while not any("PriorityTooLow" in error for error in told):
            head = admin.reorg(1, empty_blocks=2)["head"]
            assert head < 3 + GIVE_UP_BLOCKS
            time.sleep(1.0)
        assert not published.done()
        assert admin.step(1)["head"] == published.result(120.0)
    logger.remove(sink)
    admin.step(2)
    assert operator.nonce(chain, OWNER.hotkey.ss58_address) == 1, "its copy had the same nonce"
    chain.close()


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
