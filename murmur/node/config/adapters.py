"""Open the two ports and the keys from the configuration: the only module that chooses implementations."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from murmur.chain.adapter import SubtensorChain, open_chain
from murmur.chain.keys import HotkeySigner, open_wallet, verify
from murmur.homes import expanded
from murmur.node.config.ports import Opener, Ports, is_local
from murmur.node.config.settings import BucketConfig, HotkeyConfig, NetworkConfig, NodeConfig, OwnerConfig
from murmur.protocol.errors import ConfigError
from murmur.protocol.pointers import encode_pointer
from murmur.protocol.ports import Signer, Verify
from murmur.protocol.types import Pointer, PublicPointer
from murmur.proxies import proxy_for
from storage.behaviour import server_time
from storage.s3 import open_bucket, open_pointer

if TYPE_CHECKING:
    from murmur.chain.keys import Wallet


ANY_PEER = "https://peer.invalid"
DATE_SECONDS = 5.0
"""Longest wait for the store's clock."""


@dataclass(frozen=True, slots=True)
class ChainAccess:
    """A node's connection to the chain, enough to find its run."""

    chain: SubtensorChain
    signer: Signer
    verify: Verify


def opener(*, local: bool) -> Opener:
    """Return a function that opens buckets by their pointers, on private addresses only when `local`. Opening a client
    costs tens of milliseconds of CPU, and pointers seldom change, so open ones are cached."""
    return lru_cache(maxsize=512)(lambda pointer: open_pointer(pointer, local=local))


def owner_opener(config: NetworkConfig) -> Opener:
    """Return a function that opens the owner's bucket while its run is not known yet. The operator named the owner, and
    the data read has to hash to the digest on chain. So if the chain is on this machine, the bucket may be too."""
    return opener(local=is_local(config.network))


def own_wallet(config: NodeConfig | HotkeyConfig) -> "Wallet":
    """Open the wallet with its hotkey. Raises ConfigError."""
    return open_wallet(config.wallet.name, config.wallet.hotkey, str(expanded(config.wallet.path)))


def own_chain(config: NetworkConfig | HotkeyConfig, wallet: "Wallet | None") -> SubtensorChain:
    """Return the chain, which connects on its first call; read-only without a wallet."""
    return open_chain(
        config.network,
        config.netuid,
        wallet,
        archives=config.archives,
        call_timeout_seconds=config.call_timeout_seconds,
    )


def signer_of(wallet: "Wallet") -> Signer:
    """Return a signer with the wallet's hotkey. Raises ConfigError for a kind of key that peers do not verify."""
    return HotkeySigner(wallet.hotkey)


def connect(config: NodeConfig | OwnerConfig) -> ChainAccess:
    """Open wallet and chain. Raises ConfigError for a fault that the operator has to fix."""
    wallet = own_wallet(config)
    return ChainAccess(own_chain(config, wallet), signer_of(wallet), verify)


def published(own: BucketConfig) -> Pointer | PublicPointer:
    """Return the pointer to a node's own bucket that is published."""
    if own.public_url is not None:
        return PublicPointer(own.public_url)
    assert own.read_access_key is not None
    assert own.read_secret_key is not None
    return Pointer(own.endpoint, own.name, own.read_access_key, own.read_secret_key.get_secret_value())


def open_ports(config: NodeConfig | OwnerConfig, access: ChainAccess, *, local: bool) -> Ports:
    """Open the bucket, and return it with the chain, for a run that is `local` or not. Raises ConfigError."""
    own, pointer = config.bucket, published(config.bucket)
    if not local:
        proxy_for(ANY_PEER)  # one that cannot be used fails now, not as peers whose buckets seem to be missing
    if not local and urlsplit(pointer.endpoint).scheme != "https":
        name = "bucket.public_url" if isinstance(pointer, PublicPointer) else "bucket.endpoint"
        raise ConfigError(f"{name} must be an https URL in a run that is not local: peers refuse all others")
    bucket = open_bucket(own.endpoint, own.name, own.access_key, own.secret_key.get_secret_value(), local=local)
    encode_pointer(pointer)  # a pointer that cannot be published fails now, not in the first round
    chain = access.chain.as_local() if local else access.chain
    date = partial(server_time, own.endpoint, timeout_seconds=DATE_SECONDS)
    return Ports(chain, access.signer, access.verify, bucket, pointer, opener(local=local), store_time=date)
