"""The pool of a subnet's alpha against TAO, in which staking, unstaking and registration trade. Amounts in rao.

A dynamic subnet has two reserves whose product no swap lowers, so the price moves with every swap. A stable one (and
root) gives one alpha for one TAO. Source: subtensor's pallet_swap with equal weights. Left out: the emission that a
real chain injects into pools, and liquidity of users.
"""

from murmur.lab.devnet.call import Call
from murmur.lab.devnet.storage import Storage

U16_MAX = 0xFFFF
MINIMUM_RESERVE = 1_000_000
"""Swap.MinimumReserve of the pinned runtime: the least that a swap leaves in a pool."""
_DYNAMIC = 1


def is_dynamic(storage: Storage, netuid: int) -> bool:
    return bool(storage.get("SubnetMechanism", netuid) == _DYNAMIC)


def buy(call: Call, netuid: int, tao: int) -> tuple[int, int]:
    """Put `tao` into the pool; return (alpha that leaves it, the pool's fee in TAO)."""
    storage = call.storage
    if not is_dynamic(storage, netuid):
        _add(storage, netuid, tao=tao, out=tao)
        return tao, 0
    fee = _fee(storage, netuid, tao)
    alpha = _out(storage.get("SubnetTAO", netuid), storage.get("SubnetAlphaIn", netuid), tao - fee)
    call.ensure(storage.get("SubnetAlphaIn", netuid) - alpha >= MINIMUM_RESERVE, "InsufficientLiquidity")
    _add(storage, netuid, tao=tao, alpha=-alpha, out=alpha)
    return alpha, fee


def sell(call: Call, netuid: int, alpha: int) -> tuple[int, int]:
    """Put `alpha` into the pool; return (TAO that leaves it, the pool's fee in alpha)."""
    storage = call.storage
    if not is_dynamic(storage, netuid):
        _add(storage, netuid, tao=-alpha, out=-alpha)
        return alpha, 0
    fee = _fee(storage, netuid, alpha)
    tao = _out(storage.get("SubnetAlphaIn", netuid), storage.get("SubnetTAO", netuid), alpha - fee)
    call.ensure(storage.get("SubnetTAO", netuid) - tao >= MINIMUM_RESERVE, "InsufficientLiquidity")
    _add(storage, netuid, tao=-tao, alpha=alpha, out=-alpha)
    return tao, fee


def cost(tao: int, alpha: int, fee: int, wanted: int) -> int:
    """Return the least TAO that buys at least `wanted` alpha from a pool of these reserves, with a fee of `fee` /
    65535. The pool must hold more than `wanted`."""
    entering = -(-tao * wanted // (alpha - wanted))
    return -(-entering * U16_MAX // (U16_MAX - fee))


def _out(into: int, out_of: int, amount: int) -> int:
    """Return what leaves a pool of two reserves when `amount` enters it, rounded down, so that the product never
    falls."""
    return out_of * amount // (into + amount)


def _fee(storage: Storage, netuid: int, amount: int) -> int:
    """Return the pool's fee, which stays in it."""
    return int(amount * storage.get("Swap.FeeRate", netuid) // U16_MAX)


def _add(storage: Storage, netuid: int, *, tao: int, out: int, alpha: int = 0) -> None:
    """Update the reserves, and the alpha outside of the pool."""
    for item, amount in (("SubnetTAO", tao), ("SubnetAlphaIn", alpha), ("SubnetAlphaOut", out)):
        storage.put(item, netuid, value=storage.get(item, netuid) + amount)
    storage.put("TotalStake", value=storage.get("TotalStake") + tao)
