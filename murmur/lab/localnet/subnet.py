"""The chain of a local network: a devnet with one subnet, all members registered, and validators with stake."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from murmur.chain import operator
from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.lab.devnet.genesis import TAO, Genesis
from murmur.lab.devnet.launch import Devnet, start
from murmur.lab.devnet.market import cost
from murmur.lab.localnet.plan import NETUID, Plan
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import PeerId

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

STAKE_RAO = 100 * TAO
"""Alpha of each validator. Its cost rises with each of them: eight of them have four fifths of the pool's."""
FUNDS_RAO = 10_000 * TAO
"""Each member's funds: the most expensive stake and slot, and the fees of a run of a million posts."""
PERMIT_BLOCKS = 120
"""Blocks after the epoch within which a permit must be visible, on a busy machine."""


def start_devnet(plan: Plan, wallets: "Mapping[str, Wallet]") -> Devnet:
    """Start a chain on which the owner has its subnet, and all members have funds."""
    owner = wallets["owner"]
    genesis = Genesis(
        owner_coldkey=owner.coldkeypub.ss58_address,
        owner_hotkey=owner.hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: FUNDS_RAO for wallet in wallets.values()},
        netuid=NETUID,
    )
    with (plan.folder / "logs" / "devnet.log").open("a") as log:
        lag = (plan.clock or {}).get("finality_blocks", 0)
        chain = plan.folder / "chain"
        return start(chain, genesis, block_seconds=plan.block_seconds, finality_lag_blocks=lag, log=log)


def open_subnet(url: str, wallet: "Wallet") -> SubtensorChain:
    """Return the chain for one of its members."""
    return open_chain(url, NETUID, wallet)


def register(url: str, wallets: "Mapping[str, Wallet]", names: Mapping[str, tuple[str, str | None]]) -> None:
    """Register every hotkey and stake the validators. They come first, one after another: every registration and every
    stake raises the price of the next."""

    def enter(name: str, alpha_rao: int = 0) -> None:
        chain = open_subnet(url, wallets[name])
        operator.register(chain, wallets[name])
        if alpha_rao:
            operator.add_stake(chain, wallets[name], cost(*_pool(chain), alpha_rao))
        chain.close()

    others = [name for name, (role, _) in names.items() if role == "miner"]
    for name, (role, _) in names.items():
        if role == "validator":
            enter(name, STAKE_RAO)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, others))


def _pool(chain: SubtensorChain) -> tuple[int, int, int]:
    """Return TAO and alpha in the subnet's pool, and its fee in parts of 65,535."""

    def read(pallet: str, item: str) -> int:
        return int(chain.call(lambda session: session.substrate.query(pallet, item, [NETUID])))

    return read("SubtensorModule", "SubnetTAO"), read("SubtensorModule", "SubnetAlphaIn"), read("Swap", "FeeRate")


def skip_epoch(devnet: Devnet, wallet: "Wallet") -> None:
    """Make the blocks of an epoch at once: the first epoch only matters for the permits at its end."""
    chain = open_subnet(devnet.url, wallet)
    devnet.admin().step(chain.subnet(chain.finalized().block).tempo)
    chain.close()


def end_epoch(devnet: Devnet) -> None:
    """Make the remaining blocks of the subnet's epoch at once, and the one that begins the next, which opens the
    commits. Raises ChainError."""
    chain = open_chain(devnet.url, NETUID, None)

    def read(item: str) -> int:
        return int(chain.call(lambda session: session.substrate.query("SubtensorModule", item, [NETUID])))

    try:
        left = read("LastEpochBlock") + read("Tempo") - int(devnet.admin().info()["head"])
        devnet.admin().step(max(1, left))
    finally:
        chain.close()


def await_permits(
    devnet: Devnet,
    wallets: "Mapping[str, Wallet]",
    names: Mapping[str, tuple[str, str | None]],
    say: Callable[[str], None],
    block_seconds: float,
) -> None:
    """Wait for the epoch that gives the validators their permits. No round has begun, so the blocks before it are made
    at once."""
    validators = {
        PeerId(bytes(wallets[name].hotkey.public_key)) for name, (role, _) in names.items() if role == "validator"
    }
    chain = open_subnet(devnet.url, wallets["owner"])
    try:
        final = chain.finalized().block
        left = max(0, chain.subnet(final).tempo - final)
        if left:
            say(f"the chain's first epoch gives the validators their permits: making its last {left} blocks")
            devnet.admin().step(left)
        deadline = time.monotonic() + 2 * PERMIT_BLOCKS * block_seconds
        while validators - {peer.id for peer in chain.peers(chain.finalized().block) if peer.validates}:
            if time.monotonic() > deadline:
                raise ConfigError("the validators got no permit from the chain: see logs/devnet.log in the run folder")
            time.sleep(block_seconds)
    finally:
        chain.close()
