"""On-chain calls of a subnet's operator or a local network's supervisor: register, fund, stake, tune.

A node never uses them: they need a coldkey. All are raw calls, because the SDK's intents for registration require MEV
protection that a local chain does not have. Amounts are rao (1e9 rao = 1 TAO). Source: subtensor's pallets
SubtensorModule, Balances, AdminUtils and Sudo.
"""

from typing import TYPE_CHECKING, Any

from murmur.chain import reading
from murmur.chain.adapter import SubtensorChain
from murmur.chain.extrinsics import Call, account_nonce, send_call
from murmur.chain.session import Session
from murmur.protocol.errors import ChainError
from murmur.protocol.types import PeerId, Uid, hotkey

if TYPE_CHECKING:
    from bittensor.result import ExtrinsicResult
    from bittensor.wallet import Wallet


def uid_of(chain: SubtensorChain, peer: PeerId) -> Uid | None:
    """Return the peer's uid at the head of the chain; None when it is not registered."""
    address = hotkey(peer)
    uid = chain.call(lambda session: session.substrate.query("SubtensorModule", "Uids", [chain.netuid, address]))
    return None if uid is None else Uid(int(uid))


def balance(chain: SubtensorChain, address: str) -> int:
    """Return the free balance of an account at the head of the chain, in rao."""
    return chain.call(lambda session: reading.balance(session, address))


def register(chain: SubtensorChain, wallet: "Wallet") -> Uid:
    """Register the wallet's hotkey, paid by its coldkey; return its uid. A registered hotkey keeps its uid."""
    peer = PeerId(bytes(wallet.hotkey.public_key))
    uid = uid_of(chain, peer)
    if uid is None:
        params = {"netuid": chain.netuid, "hotkey": wallet.hotkey.ss58_address}
        submit(chain, wallet.coldkey, Call("SubtensorModule", "burned_register", params))
        uid = uid_of(chain, peer)
    if uid is None:
        raise ChainError(f"hotkey {wallet.hotkey.ss58_address} is still not registered on subnet {chain.netuid}")
    return uid


def transfer(chain: SubtensorChain, wallet: "Wallet", address: str, rao: int) -> int:
    """Send `rao` from the wallet's coldkey to `address`; return the block that included it."""
    return submit(chain, wallet.coldkey, Call("Balances", "transfer_keep_alive", {"dest": address, "value": rao}))


def add_stake(chain: SubtensorChain, wallet: "Wallet", rao: int) -> int:
    """Stake `rao` of the wallet's coldkey on its hotkey; return the block that included it."""
    params = {"hotkey": wallet.hotkey.ss58_address, "netuid": chain.netuid, "amount_staked": rao}
    return submit(chain, wallet.coldkey, Call("SubtensorModule", "add_stake", params))


def submit(chain: SubtensorChain, keypair: Any, call: Call, *, root: bool = False) -> int:
    """Submit and wait for inclusion. When a lost connection hides the outcome, the account's nonce shows whether it was
    included; a caller that must know its effect reads it."""
    before = nonce(chain, keypair.ss58_address)

    def written() -> int | None:
        return chain.head() if nonce(chain, keypair.ss58_address) > before else None

    async def send(session: Session, again: bool) -> "ExtrinsicResult":
        outer = Call("Sudo", "sudo", {"call": await session.substrate.compose(call)}) if root else call
        return await send_call(session, outer, keypair, again=again)

    return chain.submit(send, written)


def nonce(chain: SubtensorChain, address: str) -> int:
    return chain.call(lambda session: account_nonce(session, address))
