"""Stake: alpha of a subnet on a hotkey, held by coldkeys in shares, bought and sold at the pool's price.

All amounts in rao. Each hotkey has a pool of shares on each subnet: dividends raise a share's value. Source:
subtensor's staking and share pools. Left out: moving, swapping, locking and limits of stake, child hotkeys, and the
validators' take, which is irrelevant for an owner who stakes on his own hotkey.
"""

from murmur.lab.devnet import balances, market
from murmur.lab.devnet.call import Call
from murmur.lab.devnet.neurons import is_owned, owner
from murmur.lab.devnet.storage import Storage

MIN_STAKE_RAO = 2_000_000
"""SubtensorModule.InitialMinStake of the pinned runtime."""

ROOT = 0
_U64_MAX = (1 << 64) - 1


def add_stake(call: Call, hotkey: str, netuid: int, amount_staked: int) -> None:
    coldkey, storage = call.signer(), call.storage
    _ensure_stakable(call, hotkey, netuid)
    call.ensure(amount_staked >= MIN_STAKE_RAO, "AmountTooLow")
    call.ensure(balances.spendable(storage, coldkey) >= amount_staked, "NotEnoughBalanceToStake")
    balances.add(storage, coldkey, -amount_staked)
    alpha, fee = market.buy(call, netuid, amount_staked)
    credit(storage, hotkey, coldkey, netuid, alpha)
    call.events.emit("SubtensorModule", "StakeAdded", (coldkey, hotkey, amount_staked, alpha, netuid, fee))


def remove_stake(call: Call, hotkey: str, netuid: int, amount_unstaked: int) -> None:
    coldkey, storage = call.signer(), call.storage
    _ensure_stakable(call, hotkey, netuid)
    held = held_by(storage, hotkey, coldkey, netuid)
    call.ensure(0 < amount_unstaked <= held, "NotEnoughStakeToWithdraw")
    withdraw(storage, hotkey, coldkey, netuid, amount_unstaked)
    tao, fee = market.sell(call, netuid, amount_unstaked)
    call.ensure(tao >= MIN_STAKE_RAO or amount_unstaked == held, "AmountTooLow")
    balances.add(storage, coldkey, tao)
    call.events.emit("SubtensorModule", "StakeRemoved", (coldkey, hotkey, tao, amount_unstaked, netuid, fee))


def alpha_of(storage: Storage, hotkey: str, netuid: int) -> int:
    """Return all alpha on a hotkey on a subnet; on root, TAO."""
    return int(storage.get("TotalHotkeyAlpha", hotkey, netuid))


def root_weight_of(storage: Storage, hotkey: str) -> int:
    """Return the alpha that a hotkey's stake on root counts for on every subnet."""
    return int(alpha_of(storage, hotkey, ROOT) * storage.get("TaoWeight") // _U64_MAX)


def stake_of(storage: Storage, hotkey: str, netuid: int) -> int:
    """Return a hotkey's stake as the epoch weighs it: its alpha, and its stake on root times TaoWeight."""
    return alpha_of(storage, hotkey, netuid) + root_weight_of(storage, hotkey)


def held_by(storage: Storage, hotkey: str, coldkey: str, netuid: int) -> int:
    """Return the value of a coldkey's shares of a hotkey's stake."""
    total = _shares(storage, "TotalHotkeySharesV2", hotkey, netuid)
    return alpha_of(storage, hotkey, netuid) * _shares(storage, "AlphaV2", hotkey, coldkey, netuid) // max(total, 1)


def credit(storage: Storage, hotkey: str, coldkey: str, netuid: int, alpha: int) -> None:
    """Give a coldkey stake on a hotkey: new shares at the current value."""
    alpha_before, shares_before = alpha_of(storage, hotkey, netuid), _total_shares(storage, hotkey, netuid)
    shares = alpha * shares_before // alpha_before if shares_before else alpha
    _add_shares(storage, hotkey, coldkey, netuid, shares)
    storage.put("TotalHotkeyAlpha", hotkey, netuid, value=alpha_before + alpha)
    staking = storage.get("StakingHotkeys", coldkey)
    if hotkey not in staking:
        storage.put("StakingHotkeys", coldkey, value=[*staking, hotkey])


def pay_dividend(storage: Storage, hotkey: str, netuid: int, alpha: int) -> None:
    """Distribute a dividend among all stakers on the hotkey; to its owner alone where there are none."""
    if _total_shares(storage, hotkey, netuid):
        storage.put("TotalHotkeyAlpha", hotkey, netuid, value=alpha_of(storage, hotkey, netuid) + alpha)
    else:
        credit(storage, hotkey, owner(storage, hotkey), netuid, alpha)


def withdraw(storage: Storage, hotkey: str, coldkey: str, netuid: int, alpha: int) -> None:
    """Withdraw stake that the coldkey holds. Shares are rounded up, so that other stakers do not lose."""
    alpha_before, shares_before = alpha_of(storage, hotkey, netuid), _total_shares(storage, hotkey, netuid)
    held = _shares(storage, "AlphaV2", hotkey, coldkey, netuid)
    _add_shares(storage, hotkey, coldkey, netuid, -min(held, -(-alpha * shares_before // alpha_before)))
    storage.put("TotalHotkeyAlpha", hotkey, netuid, value=alpha_before - alpha)


def _total_shares(storage: Storage, hotkey: str, netuid: int) -> int:
    return _shares(storage, "TotalHotkeySharesV2", hotkey, netuid)


def _shares(storage: Storage, item: str, *params: str | int) -> int:
    return int(storage.get(item, *params)["mantissa"])


def _add_shares(storage: Storage, hotkey: str, coldkey: str, netuid: int, shares: int) -> None:
    entries: list[tuple[str, *tuple[str | int, ...]]] = [
        ("AlphaV2", hotkey, coldkey, netuid),
        ("TotalHotkeySharesV2", hotkey, netuid),
    ]
    for entry in entries:
        storage.put(*entry, value={"mantissa": _shares(storage, *entry) + shares, "exponent": 0})


def _ensure_stakable(call: Call, hotkey: str, netuid: int) -> None:
    call.ensure(call.storage.get("NetworksAdded", netuid), "SubnetNotExists")
    call.ensure(call.storage.get("SubtokenEnabled", netuid), "SubtokenDisabled")
    call.ensure(is_owned(call.storage, hotkey), "HotKeyAccountNotExists")
