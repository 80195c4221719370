"""The chain of a local network: a devnet with one subnet, everybody registered on it, and validators with stake."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from chain import operator
from chain.adapter import SubtensorChain, open_chain
from chain.devnet.genesis import Genesis
from chain.devnet.launch import Devnet, start
from localnet.plan import BLOCK_SECONDS, NETUID, Plan
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from bittensor.wallet import Wallet

TAO = 10**9
STAKE_RAO = 1000 * TAO
FUNDS_RAO = 10_000 * TAO
PERMIT_SECONDS = 180.0


def start_devnet(plan: Plan, wallets: "Mapping[str, Wallet]") -> Devnet:
    """A chain on which the owner has its subnet, and everybody money."""
    owner = wallets["owner"]
    genesis = Genesis.fast(
        owner_coldkey=owner.coldkeypub.ss58_address,
        owner_hotkey=owner.hotkey.ss58_address,
        balances={wallet.coldkeypub.ss58_address: FUNDS_RAO for wallet in wallets.values()},
        netuid=NETUID,
        max_validators=max(1, sum(name.startswith("validator-") for name in wallets)),
        weights_rate_limit_blocks=1,
    )
    with (plan.folder / "logs" / "devnet.log").open("a") as log:
        return start(plan.folder / "chain", genesis, block_seconds=BLOCK_SECONDS, log=log)


def open_subnet(url: str, wallet: "Wallet") -> SubtensorChain:
    """The chain as one of its members uses it."""
    return open_chain(url, NETUID, wallet)


def register(url: str, wallets: "Mapping[str, Wallet]", names: Mapping[str, tuple[str, str | None]]) -> None:
    """Register every hotkey and stake the validators, all at once, then wait until they have their permits."""

    def enter(name: str) -> None:
        chain = open_subnet(url, wallets[name])
        operator.register(chain, wallets[name])
        if names[name][0] == "validator":
            operator.add_stake(chain, wallets[name], STAKE_RAO)
        chain.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, [name for name in names if name != "owner"]))
    chain = open_subnet(url, wallets["owner"])
    wanted = sum(role == "validator" for role, _ in names.values())
    until = time.monotonic() + PERMIT_SECONDS
    while sum(peer.validates and peer.stake > 0 for peer in chain.peers(chain.finalized().block)) < wanted:
        if time.monotonic() > until:
            raise ConfigError("the validators got no permit from the chain: see logs/devnet.log in the run folder")
        time.sleep(BLOCK_SECONDS)
    chain.close()
