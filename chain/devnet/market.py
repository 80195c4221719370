"""The pool of a subnet's alpha against TAO: what staking, unstaking and registration pay. Amounts in rao.

A dynamic subnet has two reserves whose product no swap lowers, so that the price moves with every swap; a stable one
(and root) gives one alpha for one TAO. Source: subtensor's pallet_swap with equal weights. Left out: the emission that
a real chain injects into pools, and liquidity of users.
"""

from chain.devnet.call import Call
from chain.devnet.storage import Storage

U16_MAX = 0xFFFF
MINIMUM_RESERVE = 1_000_000
"""Swap.MinimumReserve of the pinned runtime: less is never left in a pool."""
_DYNAMIC = 1


def is_dynamic(storage: Storage, netuid: int) -> bool:
    return bool(storage.get("SubnetMechanism", netuid) == _DYNAMIC)


def buy(call: Call, netuid: int, tao: int) -> tuple[int, int]:
    """Put `tao` into the pool: (alpha that comes out, what of `tao` was the pool's fee)."""
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
    """Put `alpha` into the pool: (TAO that comes out, what of `alpha` was the pool's fee)."""
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
    """The least TAO that buys at least `wanted` alpha from a pool of these reserves, which takes `fee` / 65535 of it.
    The pool must hold more than that."""
    entering = -(-tao * wanted // (alpha - wanted))
    return -(-entering * U16_MAX // (U16_MAX - fee))


def _out(into: int, out_of: int, amount: int) -> int:
    """What leaves a pool of two reserves when `amount` enters it: rounded down, so that the product never falls."""
    return out_of * amount // (into + amount)


def _fee(storage: Storage, netuid: int, amount: int) -> int:
    """The pool's share, which stays in it."""
    return int(amount * storage.get("Swap.FeeRate", netuid) // U16_MAX)


def _add(storage: Storage, netuid: int, *, tao: int, out: int, alpha: int = 0) -> None:
    """Move the reserves, and the alpha that is outside of the pool."""
    for item, amount in (("SubnetTAO", tao), ("SubnetAlphaIn", alpha), ("SubnetAlphaOut", out)):
        storage.put(item, netuid, value=storage.get(item, netuid) + amount)
    storage.put("TotalStake", value=storage.get("TotalStake") + tao)
