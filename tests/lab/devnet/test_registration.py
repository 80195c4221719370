"""What a slot costs, and who has to go when the subnet is full."""

from collections.abc import Callable

import pytest
from bittensor.sp_core import Keypair

from tests.lab.devnet.conftest import ALICE, BOB, OWNER, Chain, hotkey_of

MakeChain = Callable[..., Chain]


def enter(chain: Chain, index: int, coldkey: Keypair = BOB) -> str | None:
    params = {"netuid": 1, "hotkey": hotkey_of(index).ss58_address}
    return chain.run(coldkey, "SubtensorModule", "burned_register", **params)


def uids(chain: Chain) -> list[int | None]:
    """Of the first five hotkeys."""
    return [chain.get("Uids", 1, hotkey_of(index).ss58_address) for index in range(5)]


def test_each_registration_makes_the_next_one_dearer_and_time_makes_it_cheaper(real: Chain) -> None:
    first = real.get("Burn", 1)
    real.register(5)
    assert real.get("Burn", 1) == pytest.approx(first * 1.26**5, rel=0.01)
    before = real.get("Burn", 1)
    real.step(360)
    assert real.get("Burn", 1) == pytest.approx(before / 2, rel=0.001)


def test_the_price_stays_within_its_bounds(make_chain: MakeChain) -> None:
    chain = make_chain(real=True, burn_rao=600_000)
    chain.step(360)
    assert chain.get("Burn", 1) == chain.get("MinBurn", 1) == 500_000
    top = {"netuid": 1, "max_burn": 700_000}
    assert chain.run(OWNER, "AdminUtils", "sudo_set_max_burn", **top) is None
    chain.register(3)
    assert chain.get("Burn", 1) == 700_000


def test_immune_ones_go_when_too_few_others_are_left(make_chain: MakeChain) -> None:
    """The longest registered of equal emission: immunity is no promise."""
    chain = make_chain(max_uids=4, immunity_blocks=5000)
    assert [enter(chain, index) for index in range(3)] == [None] * 3
    assert enter(chain, 3) is None
    assert uids(chain) == [None, 2, 3, 1, None]
    assert enter(chain, 4) is None
    assert uids(chain) == [None, None, 3, 1, 2]


def test_those_that_are_not_immune_go_first_once_they_are_more_than_ten(make_chain: MakeChain) -> None:
    chain = make_chain(max_uids=13, immunity_blocks=20)
    for index in range(11):
        assert enter(chain, index) is None  # uids 1 to 11, in blocks 1 to 11
    chain.step(20)
    assert enter(chain, 11) is None  # the one immune uid, 12
    assert enter(chain, 12, ALICE) is None
    assert chain.get("Uids", 1, hotkey_of(0).ss58_address) is None
    assert chain.get("Uids", 1, hotkey_of(11).ss58_address) == 12
    assert enter(chain, 13, ALICE) is None  # ten are left that are not immune: the oldest immune one goes
    assert chain.get("Uids", 1, hotkey_of(11).ss58_address) is None


def test_the_least_emission_goes_before_the_longest_registered(make_chain: MakeChain) -> None:
    chain = make_chain(max_uids=4, emission_rao=10**9)
    validator, *_ = chain.register(3)
    chain.stake(validator, 100)
    chain.step(10)
    row = {"netuid": 1, "dests": [2], "weights": [1], "version_key": 0}
    assert chain.run(validator, "SubtensorModule", "set_weights", **row) is None
    chain.step(10)
    assert chain.get("Emission", 1)[3] == 0
    assert enter(chain, 3) is None
    assert uids(chain) == [1, 2, None, 3, None]


def test_the_owner_is_never_evicted(make_chain: MakeChain) -> None:
    chain = make_chain(max_uids=2)
    for index in range(3):
        assert enter(chain, index) is None
    assert chain.get("Uids", 1, chain.genesis.owner_hotkey) == 0
    chain = make_chain(max_uids=1)
    assert enter(chain, 0) == "NoNeuronIdAvailable"
