"""What stake costs and is worth: the pool's price, shares, root."""

from collections.abc import Callable

import pytest
from bittensor.sp_core import Keypair
from hypothesis import given
from hypothesis import strategies as st

from murmur.lab.devnet import staking
from murmur.lab.devnet.codec import Codec
from murmur.lab.devnet.market import MINIMUM_RESERVE, cost
from murmur.lab.devnet.pool import PoolError
from murmur.lab.devnet.storage import Storage
from tests.lab.devnet.conftest import ALICE, BOB, OWNER, TAO, Chain, hotkey_of

MakeChain = Callable[..., Chain]
FEE = 33 / 65535


def test_staking_moves_the_price(make_chain: MakeChain) -> None:
    chain = make_chain(real=True, emission_rao=0)
    first, second = chain.register(2)
    tao, alpha = chain.get("SubnetTAO", 1), chain.get("SubnetAlphaIn", 1)
    assert tao > 1000 * TAO > alpha, "registrations have bought alpha already"
    assert chain.stake(first, 900) is None
    got = chain.get("TotalHotkeyAlpha", first.ss58_address, 1)
    assert got == pytest.approx(alpha * 900 * (1 - FEE) / (tao / TAO + 900 * (1 - FEE)), rel=1e-9)
    assert 450 * TAO < got < 480 * TAO, "900 TAO count as much less"
    ((_, _, staked, bought, netuid, fee),) = chain.events("StakeAdded")
    assert (staked, bought, netuid, fee) == (900 * TAO, got, 1, 900 * TAO * 33 // 65535)
    assert chain.stake(second, 900, coldkey=BOB) is None
    assert chain.get("TotalHotkeyAlpha", second.ss58_address, 1) < got / 2
    assert chain.get("SubnetTAO", 1) * chain.get("SubnetAlphaIn", 1) >= tao * alpha


def test_what_was_staked_sells_for_no_more_than_it_cost(make_chain: MakeChain) -> None:
    chain = make_chain(real=True, emission_rao=0)
    (hotkey,) = chain.register(1)
    before = chain.free(ALICE)
    assert chain.stake(hotkey, 500) is None
    paid = before - chain.free(ALICE)
    held = chain.get("TotalHotkeyAlpha", hotkey.ss58_address, 1)
    back = {"hotkey": hotkey.ss58_address, "netuid": 1, "amount_unstaked": held}
    before = chain.free(ALICE)
    assert chain.run(ALICE, "SubtensorModule", "remove_stake", **back) is None
    assert chain.get("TotalHotkeyAlpha", hotkey.ss58_address, 1) == 0
    assert 0.998 * paid < chain.free(ALICE) - before < paid


def test_a_pool_is_never_emptied(make_chain: MakeChain) -> None:
    chain = make_chain(real=True, pool_rao=2 * MINIMUM_RESERVE, burn_rao=1, emission_rao=0)
    (hotkey,) = chain.register(1)
    assert chain.stake(hotkey, 900) == "InsufficientLiquidity"


def test_stake_on_root_counts_by_its_weight_on_every_subnet(make_chain: MakeChain) -> None:
    chain = make_chain(real=True, emission_rao=0)
    (hotkey,) = chain.register(1)
    params = {"hotkey": hotkey.ss58_address, "netuid": 0, "amount_staked": 100 * TAO}
    assert chain.run(ALICE, "SubtensorModule", "add_stake", **params) is None
    storage = chain.author.storage_at(chain.head)
    weight = storage.get("TaoWeight") / 2**64
    assert staking.stake_of(storage, hotkey.ss58_address, 1) == pytest.approx(100 * TAO * weight, rel=1e-9)
    assert staking.alpha_of(storage, hotkey.ss58_address, 1) == 0


def test_below_the_stake_threshold_nobody_gets_a_permit_or_sets_weights(make_chain: MakeChain) -> None:
    chain = make_chain()
    (hotkey,) = chain.register(1)
    chain.stake(hotkey, 100)
    inner = chain.codec.compose_call("AdminUtils", "sudo_set_stake_threshold", {"min_stake": 101 * TAO})
    assert chain.run(OWNER, "Sudo", "sudo", call=inner) is None
    chain.step(10)
    assert chain.get("ValidatorPermit", 1) == [True, False]
    params = {"netuid": 1, "dests": [0, 1], "weights": [1, 1], "version_key": 0}
    with pytest.raises(PoolError, match="Custom error: 1"):
        chain.run(hotkey, "SubtensorModule", "set_weights", **params)


@given(
    tao=st.integers(10**9, 10**15),
    alpha=st.integers(10**9, 10**15),
    share=st.floats(1e-6, 0.9),
    fee=st.integers(0, 100),
)
def test_the_cost_of_alpha_is_the_least_that_buys_it(tao: int, alpha: int, share: float, fee: int) -> None:
    wanted = max(1, int(alpha * share))
    price = cost(tao, alpha, fee, wanted)

    def bought(paid: int) -> int:
        entering = paid - paid * fee // 65535
        return alpha * entering // (tao + entering)

    assert bought(price) >= wanted
    assert bought(price - 3) < wanted, "but for what is lost in rounding"


moves = st.lists(st.tuples(st.sampled_from([ALICE, BOB]), st.booleans(), st.integers(1, 10**15)), max_size=20)


@given(moves=moves)
def test_without_dividends_shares_are_a_plain_ledger(codec: Codec, moves: list[tuple[Keypair, bool, int]]) -> None:
    storage = Storage(codec, lambda key: None)
    hotkey, ledger = hotkey_of(0).ss58_address, {ALICE.ss58_address: 0, BOB.ss58_address: 0}
    for key, adds, amount in moves:
        holder = key.ss58_address
        if adds:
            staking.credit(storage, hotkey, holder, 1, amount)
            ledger[holder] += amount
        elif ledger[holder]:
            taken = min(ledger[holder], amount)
            staking.withdraw(storage, hotkey, holder, 1, taken)
            ledger[holder] -= taken
        assert {address: staking.held_by(storage, hotkey, address, 1) for address in ledger} == ledger
        assert staking.alpha_of(storage, hotkey, 1) == sum(ledger.values())


def test_a_dividend_goes_to_all_who_stake_by_share(codec: Codec) -> None:
    storage = Storage(codec, lambda key: None)
    hotkey = BOB.ss58_address
    staking.credit(storage, hotkey, ALICE.ss58_address, 1, 300)
    staking.credit(storage, hotkey, BOB.ss58_address, 1, 100)
    staking.pay_dividend(storage, hotkey, 1, 40)
    held = [staking.held_by(storage, hotkey, key.ss58_address, 1) for key in (ALICE, BOB)]
    assert held == [330, 110]
    staking.credit(storage, hotkey, BOB.ss58_address, 1, 110)
    held = [staking.held_by(storage, hotkey, key.ss58_address, 1) for key in (ALICE, BOB)]
    assert held == [330, 220], "who comes later buys shares at what they are worth by then"
