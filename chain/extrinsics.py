"""Extrinsics: how a call is signed and sent, and the chain's word on it as a block number or a ChainError.

One attempt each: when to try again is for chain/adapter.py. Source: docs/protocol.md sections 1 and 9.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from loguru import logger

from chain.session import Session
from protocol.errors import STATE_PRUNED, ChainError

if TYPE_CHECKING:
    from bittensor.result import ExtrinsicResult

_U16_MAX = 65535

_PALLET_NAMES = {
    "rate_limited": "SettingWeightsTooFast",
    "RateLimitExceeded": "SettingWeightsTooFast",
    "not_registered": "HotKeyNotRegisteredInSubNet",
    "not_authorized": "NeuronNoValidatorPermit",
}
"""The SDK checks some conditions of set_weights before signing and the transaction pool others. Both name the same
refusals differently from the pallet, whose names are what callers compare `code` with."""

_FATE_UNKNOWN = frozenset(
    {
        "Usurped",
        "Retracted",
        "FinalityTimeout",
        "Dropped",
        "Invalid",
        "Stale",
        "Future",
        "AlreadyImported",
        "PriorityTooLow",
    }
)
"""What the pool says of a submission that, or an earlier copy of which, may stand in a block all the same."""


class Call(NamedTuple):
    """An extrinsic by name, in the shape that the SDK composes."""

    module: str
    function: str
    params: dict[str, Any]


async def send_weights(session: Session, netuid: int, targets: dict[int, float], keypair: Any) -> "ExtrinsicResult":
    """The SDK's intent knows about commit-reveal and the subnet's limits. On a runtime without the call that it makes,
    the older, plain extrinsic does the same."""
    from bittensor import SetWeights

    try:
        return await session.client.execute(
            SetWeights(netuid=netuid, weights=targets), keypair, wait_for_finalization=False
        )
    except ValueError as error:
        logger.info("set_weights by the plain extrinsic: the intent does not fit this runtime", error=str(error))
    top = max(targets.values())
    scaled = [(uid, round(weight / top * _U16_MAX)) for uid, weight in targets.items()]
    kept = [(uid, weight) for uid, weight in scaled if weight]
    call = Call(
        "SubtensorModule",
        "set_weights",
        {"netuid": netuid, "dests": [u for u, _ in kept], "weights": [w for _, w in kept], "version_key": 0},
    )
    return await send_call(session, call, keypair)


async def send_call(session: Session, call: Call, keypair: Any) -> "ExtrinsicResult":
    """Sign and send one call; what became of it in its block."""
    return await session.client.submit_call(call, keypair, wait_for_inclusion=True, wait_for_finalization=False)


def included(result: "ExtrinsicResult") -> int:
    """Block number of a successful submission. Otherwise ChainError: with `code` when the chain refused, without one
    when the outcome is unknown."""
    if result.success and result.extrinsic_id is not None:
        return int(result.extrinsic_id.split("-")[0])
    code = _code(result.error) if result.error is not None else None
    if not result.success and code is not None and code not in _FATE_UNKNOWN:
        raise ChainError(f"the chain refused: {code}: {result.message}", code=code)
    if not result.success and result.block_hash is not None:
        raise ChainError(f"the chain refused: {result.message}", code="ExtrinsicFailed")
    raise ChainError(f"the submission's outcome is unknown: {result.message}")


def refused(error: Any, block: int | None) -> ChainError:
    """A bittensor ChainError as ours."""
    if "discarded" in str(error).lower():
        where = f"block {block}" if block is not None else "that block"
        return ChainError(
            f"{where} is below the pruning horizon of this chain node: its state is gone there; "
            "use an archive endpoint, or take what is needed from a peer's checkpoint",
            STATE_PRUNED if block is not None else None,
        )
    code = _code(error)
    return ChainError(f"the chain refused: {code or 'unnamed'}: {error}", code=code)


def _code(error: Any) -> str | None:
    """The chain's name of an error; a pallet's name where the SDK has only its own class of errors to offer."""
    name = error.name or (error.code.value if error.code.value != "unknown" else None)
    return _PALLET_NAMES.get(name, name) if name else None
