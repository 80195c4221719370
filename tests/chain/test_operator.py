"""The operator's calls, on a devnet."""

from collections.abc import Iterator
from typing import Any

import pytest

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.lab.devnet import launch
from murmur.lab.devnet.genesis import Genesis
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId, Uid
from tests.chain import admin
from tests.chain.harness import NETUID, wallet

OWNER, MINER, POOR = wallet("//operator//owner"), wallet("//operator//miner"), wallet("//operator//poor")
TAO = 10**9
FEE = TAO // 200
"""More than any of these calls costs."""


def genesis() -> Genesis:
    return Genesis.fast(
        owner_coldkey=OWNER.coldkey.ss58_address,
        owner_hotkey=OWNER.hotkey.ss58_address,
        balances={OWNER.coldkey.ss58_address: 1000 * TAO, MINER.coldkey.ss58_address: 100 * TAO},
        netuid=NETUID,
        burn_rao=TAO,
    )


@pytest.fixture(scope="module")
def devnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[launch.Devnet]:
    folder = tmp_path_factory.mktemp("devnet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITTENSOR_RUNTIME_CACHE_DIR", str(folder / "runtime"))
        devnet = launch.start(folder, genesis(), block_seconds=0.1)
        yield devnet
        devnet.stop()


@pytest.fixture
def chain(devnet: launch.Devnet) -> Iterator[SubtensorChain]:
    chain = open_chain(devnet.url, NETUID, None, call_timeout_seconds=5.0)
    yield chain
    chain.close()


def peer(entry: Any) -> PeerId:
    return PeerId(bytes(entry.hotkey.public_key))


def test_a_registered_hotkey_keeps_its_uid_and_pays_once(chain: SubtensorChain) -> None:
    assert operator.uid_of(chain, peer(OWNER)) == Uid(0)
    assert operator.uid_of(chain, peer(MINER)) is None
    before = operator.balance(chain, MINER.coldkey.ss58_address)
    uid = operator.register(chain, MINER)
    after = operator.balance(chain, MINER.coldkey.ss58_address)
    assert before - TAO - FEE < after < before  # the price of a slot falls with time
    assert operator.register(chain, MINER) == uid == operator.uid_of(chain, peer(MINER))
    assert operator.balance(chain, MINER.coldkey.ss58_address) == after


def test_stake_moves_from_the_coldkey_to_the_hotkey(chain: SubtensorChain) -> None:
    uid = operator.register(chain, MINER)
    before = operator.balance(chain, MINER.coldkey.ss58_address)
    block = operator.add_stake(chain, MINER, 3 * TAO)
    chain.wait(block, 10.0)
    assert chain.peers(block)[uid].stake == 3 * TAO
    assert before - 3 * TAO - FEE < operator.balance(chain, MINER.coldkey.ss58_address) < before - 3 * TAO


def test_a_transfer_arrives_once(chain: SubtensorChain) -> None:
    address = POOR.coldkey.ss58_address
    before = operator.balance(chain, address)
    operator.transfer(chain, OWNER, address, 2 * TAO)
    assert operator.balance(chain, address) == before + 2 * TAO


def test_who_cannot_pay_is_refused_by_name(chain: SubtensorChain) -> None:
    with pytest.raises(ChainError) as caught:
        operator.add_stake(chain, MINER, 10**6 * TAO)
    assert caught.value.code == "NotEnoughBalanceToStake"


def test_root_and_owner_set_hyperparameters_and_others_do_not(chain: SubtensorChain) -> None:
    admin.set_hyperparameter(chain, OWNER, "weights_set_rate_limit", 7, root=True)
    admin.set_hyperparameter(chain, OWNER, "min_allowed_weights", 2, root=False)
    for item, value in (("WeightsSetRateLimit", 7), ("MinAllowedWeights", 2)):

        def read(session: Any, item: str = item) -> Any:
            return session.substrate.query("SubtensorModule", item, [NETUID])

        assert chain.call(read) == value
    with pytest.raises(ChainError) as caught:
        admin.set_hyperparameter(chain, MINER, "weights_set_rate_limit", 1, root=True)
    assert caught.value.code == "RequireSudo"
    with pytest.raises(ChainError) as caught:
        admin.set_hyperparameter(chain, MINER, "min_allowed_weights", 1, root=False)
    assert caught.value.code == "BadOrigin"
    with pytest.raises(ValueError, match="sudo_set_nonsense"):
        admin.set_hyperparameter(chain, OWNER, "nonsense", 1, root=True)
