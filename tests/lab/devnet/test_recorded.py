"""A chain read from its database says what the SDK says of the same chain, while it runs and after its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.lab.devnet import launch
from murmur.lab.devnet.recorded import open_recorded
from murmur.lab.devnet.state import _RECENT_BLOCKS
from murmur.protocol.errors import ChainError, ConfigError
from tests.chain.harness import wallet
from tests.lab.devnet.conftest import genesis

OWNER = wallet("//recorded//owner")


@pytest.fixture
def devnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[launch.Devnet]:
    monkeypatch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(tmp_path / "runtime"))
    start = genesis()
    devnet = launch.start(tmp_path / "chain", start, step=True, finality_lag_blocks=2)
    yield devnet
    devnet.stop()


def everything(chain: SubtensorChain, block: int) -> list[object]:
    peers = chain.peers(block)
    weights = [chain.weights(block, peer.uid) for peer in peers]
    stands = [chain.stands_from(peer.last_update) for peer in peers]
    return [chain.genesis(), chain.header(block), chain.subnet(block), peers, weights, stands]


def test_it_says_what_the_sdk_says_at_every_height_and_after_the_end(devnet: launch.Devnet, tmp_path: Path) -> None:
    devnet.admin().step(3)
    recorded = open_recorded(tmp_path / "chain")
    live = open_chain(devnet.url, recorded.netuid, None)
    assert recorded.finalized() == live.finalized()
    assert recorded.finalized().block == 1
    devnet.admin().step(_RECENT_BLOCKS + 3)  # so many that the first ones are not in the devnet's memory any more
    assert recorded.finalized() == live.finalized()
    before = {block: everything(live, block) for block in (0, 1, 4, live.finalized().block)}
    assert {block: everything(recorded, block) for block in before} == before
    with pytest.raises(ChainError, match="not final yet"):
        recorded.header(live.finalized().block + 1)
    live.close()
    devnet.kill()
    after = open_recorded(tmp_path / "chain")
    assert {block: everything(after, block) for block in before} == before


def test_a_folder_without_a_chain_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no chain in .*: chain.sqlite is missing"):
        open_recorded(tmp_path)
    (tmp_path / "chain.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="can't be read"):
        open_recorded(tmp_path)
