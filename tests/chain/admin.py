"""A subnet's settings and its runtime, changed by the owner's or the chain's sudo key. Product code changes neither."""

from collections.abc import Callable
from typing import Any

from murmur.chain.adapter import SubtensorChain
from murmur.chain.extrinsics import Call
from murmur.chain.operator import submit


def set_hyperparameter(chain: SubtensorChain, wallet: Any, name: str, value: int | bool, *, root: bool) -> int:
    """Set one of the subnet's hyperparameters, by its name in AdminUtils.sudo_set_<name>.

    The wallet's coldkey is the subnet's owner, or with `root` the chain's sudo key: some may be set only by root.
    Return the block that included it.
    """
    from bittensor import calls

    builder: Callable[..., Any] | None = getattr(calls.AdminUtils, f"sudo_set_{name}", None)
    if builder is None:
        raise ValueError(f"no hyperparameter {name!r}: AdminUtils has no sudo_set_{name}")
    call = Call(*builder(chain.netuid, value))
    return submit(chain, wallet.coldkey, call, root=root)


def upgrade_runtime(chain: SubtensorChain, wallet: Any) -> int:
    """Upgrade a devnet's runtime, by its sudo key; return the block that included it."""
    return submit(chain, wallet.coldkey, Call("System", "set_code", {"code": "0x00"}), root=True)
