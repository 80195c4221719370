"""Extrinsics: signing and sending a call, and the chain's answer as a block number or a ChainError.

One attempt each; murmur/chain/submission.py decides on retries. Source: docs/protocol.md sections 1 and 9; the author
RPC of Substrate nodes; bittensor 11.3.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from murmur.chain.session import Session
from murmur.protocol.errors import STATE_PRUNED, ChainError

if TYPE_CHECKING:
    from bittensor.result import ExtrinsicResult

_PALLET_NAMES = {"RateLimitExceeded": "SettingWeightsTooFast"}
"""The transaction pool's names of some refusals, mapped to the pallet's names, which callers compare `code` with."""

_MEANINGS = {
    "AccountNotAllowedCommit": "this hotkey is not registered on the subnet, or not any more: register it",
    "HotKeyNotRegisteredInSubNet": "this hotkey is not registered on the subnet, or not any more: register it",
    "SpaceLimitExceeded": "posts of this hotkey have used up its bytes for this epoch; the next epoch gives new ones",
}
"""What the chain's names say to somebody who does not know its pallets."""

_POOL_WORDS = {
    "invalid transaction": "InvalidTransaction",
    "verification error": "VerificationError",
    "unknown transaction validity": "UnknownTransactionValidity",
    "transaction is temporarily banned": "TemporarilyBanned",
    "immediately dropped": "Dropped",
}
"""How an author RPC's error begins (codes 1010, 1002, 1011, 1012 and 1016) where the SDK has no name for its reason."""

_FATE_UNKNOWN = frozenset(
    {
        "Usurped",
        "Retracted",
        "FinalityTimeout",
        "Dropped",
        "Invalid",
        "Stale",
        "Future",
        "AncientBirthBlock",
        "ExhaustsResources",
        "AlreadyImported",
        "PriorityTooLow",
        "TemporarilyBanned",
    }
)
"""Pool statuses after which the submission, or another copy of it, may be in a block all the same."""


class Call(NamedTuple):
    """An extrinsic by name, in the shape that the SDK composes."""

    module: str
    function: str
    params: dict[str, Any]


async def send_call(session: Session, call: Call, keypair: Any, *, again: bool) -> "ExtrinsicResult":
    """Sign and send one call, wait for its block, and return the result there.

    `again`: an earlier copy may still be in flight. The call then gets the account's next nonce on chain, which that
    copy also has if the pool still holds it: at most one of the two gets into a block.
    """
    address = keypair.ss58_address
    composed = await session.substrate.compose(call)
    if again:
        nonce = await account_nonce(session, address)
    else:
        nonce = await session.substrate.account_next_index(address)
    return await session.substrate.submit(
        composed, keypair, nonce=nonce, wait_for_inclusion=True, wait_for_finalization=False
    )


async def account_nonce(session: Session, address: str) -> int:
    """Return the number of an account's extrinsics in blocks."""
    account = await session.substrate.query("System", "Account", [address])
    return int(account["nonce"])


def included(result: "ExtrinsicResult") -> int:
    """Return the block number of a successful submission. Otherwise raise ChainError: with `code` when the chain
    refused, without one when the outcome is unknown."""
    if result.success and result.extrinsic_id is not None:
        return int(result.extrinsic_id.split("-")[0])
    code = _code(result.error, result.message) if result.error is not None else None
    if not result.success and code is not None and code not in _FATE_UNKNOWN:
        raise _refusal(code, result.message)
    if not result.success and result.block_hash is not None:
        raise ChainError(f"the chain refused: {result.message}", code="ExtrinsicFailed")
    raise ChainError(f"the submission's outcome is unknown: {code or 'no word from the pool'}: {result.message}")


def refused(error: Any, block: int | None) -> ChainError:
    """Translate a bittensor ChainError into ours."""
    if "discarded" in str(error).lower():
        where = f"block {block}" if block is not None else "that block"
        return ChainError(
            f"{where} is below the pruning horizon of this chain node: the node has deleted that state. Name "
            "an archive (--archives), or start from a peer's checkpoint",
            STATE_PRUNED if block is not None else None,
        )
    code = _code(error, str(error))
    if code is None or code in _FATE_UNKNOWN:
        return ChainError(f"the chain's node answered with an error: {error}")
    return _refusal(code, str(error))


def _refusal(code: str, message: str) -> ChainError:
    return ChainError(f"the chain refused: {code}: {_MEANINGS.get(code, message)}", code=code)


def _code(error: Any, message: str) -> str | None:
    """Return the chain's name of an error, or the pool's where the SDK has none.

    The SDK's error class is no reliable name: it is guessed from words, and an overloaded endpoint says "rate limit"
    too.
    """
    said = message.lower()
    pool = next((name for words, name in _POOL_WORDS.items() if said.startswith(words)), None)
    name = error.name or pool
    return _PALLET_NAMES.get(name, name) if name else None
