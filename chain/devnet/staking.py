"""Stake on a subnet of the stable mechanism: one alpha is one tao, so amounts move one to one, in rao.

Shares equal alpha (no emission is ever paid into a pool). Stake on root and moving stake do not exist here.
"""

from typing import Any

from chain.devnet import balances
from chain.devnet.call import Call
from chain.devnet.neurons import is_owned
from chain.devnet.storage import Storage

MIN_STAKE_RAO = 2_000_000
"""SubtensorModule.InitialMinStake of the pinned runtime."""


def add_stake(call: Call, hotkey: str, netuid: int, amount_staked: int) -> None:
    coldkey, storage = call.signer(), call.storage
    _ensure_stakable(call, hotkey, netuid)
    call.ensure(amount_staked >= MIN_STAKE_RAO, "AmountTooLow")
    call.ensure(balances.free(storage, coldkey) >= amount_staked, "NotEnoughBalanceToStake")
    balances.add(storage, coldkey, -amount_staked)
    _move(storage, hotkey, coldkey, netuid, amount_staked)
    call.events.emit("SubtensorModule", "StakeAdded", (coldkey, hotkey, amount_staked, amount_staked, netuid, 0))


def remove_stake(call: Call, hotkey: str, netuid: int, amount_unstaked: int) -> None:
    coldkey, storage = call.signer(), call.storage
    _ensure_stakable(call, hotkey, netuid)
    staked = int(storage.get("AlphaV2", hotkey, coldkey, netuid)["mantissa"])
    call.ensure(staked >= amount_unstaked, "NotEnoughStakeToWithdraw")
    call.ensure(amount_unstaked >= MIN_STAKE_RAO or amount_unstaked == staked, "AmountTooLow")
    balances.add(storage, coldkey, amount_unstaked)
    _move(storage, hotkey, coldkey, netuid, -amount_unstaked)
    call.events.emit("SubtensorModule", "StakeRemoved", (coldkey, hotkey, amount_unstaked, amount_unstaked, netuid, 0))


def stake_of(storage: Storage, hotkey: str, netuid: int) -> int:
    """All stake that stands behind a hotkey on a subnet, in rao."""
    return int(storage.get("TotalHotkeyAlpha", hotkey, netuid))


def _ensure_stakable(call: Call, hotkey: str, netuid: int) -> None:
    call.ensure(call.storage.get("NetworksAdded", netuid), "SubnetNotExists")
    call.ensure(call.storage.get("SubtokenEnabled", netuid), "SubtokenDisabled")
    call.ensure(is_owned(call.storage, hotkey), "HotKeyAccountNotExists")


def _move(storage: Storage, hotkey: str, coldkey: str, netuid: int, amount: int) -> None:
    sums: list[tuple[Any, ...]] = [("TotalHotkeyAlpha", hotkey, netuid), ("SubnetAlphaOut", netuid)]
    for entry in (*sums, ("SubnetTAO", netuid), ("TotalStake",)):
        storage.put(*entry, value=storage.get(*entry) + amount)
    shares: list[tuple[Any, ...]] = [("AlphaV2", hotkey, coldkey, netuid), ("TotalHotkeySharesV2", hotkey, netuid)]
    for entry in shares:
        held = int(storage.get(*entry)["mantissa"]) + amount
        storage.put(*entry, value={"mantissa": held, "exponent": 0})
    staking = storage.get("StakingHotkeys", coldkey)
    if hotkey not in staking:
        storage.put("StakingHotkeys", coldkey, value=[*staking, hotkey])
