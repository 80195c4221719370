"""From configuration to the two doors and the keys: the only place that chooses implementations."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from chain.adapter import open_chain
from chain.keys import HotkeySigner, open_wallet, verify
from node.config import NodeConfig
from protocol.errors import ConfigError
from protocol.messages import encode_pointer
from protocol.ports import Chain, Signer, Time, Verify
from protocol.types import Pointer
from storage.realtime import REAL
from storage.s3 import RangedBucket, open_bucket, open_pointer

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Doors:
    """A node's connections. `pointer` is what the node publishes of its own bucket; `open_pointer` opens a peer's
    bucket by what that peer published; `time` is the only clock that it knows."""

    chain: Chain
    signer: Signer
    verify: Verify
    bucket: RangedBucket
    pointer: Pointer
    open_pointer: Callable[[Pointer], RangedBucket]
    time: Time = REAL


def is_local(network: str) -> bool:
    """True for a chain on this machine: only then may buckets be on private addresses."""
    return network == "local" or urlsplit(network).hostname in LOCAL_HOSTS


def connect(config: NodeConfig) -> Doors:
    """Open wallet, chain and bucket. Raises ConfigError for what the operator has to fix, ChainError when the chain
    does not answer."""
    local = is_local(config.network)
    wallet = open_wallet(config.wallet.name, config.wallet.hotkey, str(config.wallet.path.expanduser()))
    own = config.bucket
    if not local and urlsplit(own.endpoint).scheme != "https":
        raise ConfigError(f"bucket.endpoint must be an https URL on network {config.network}: peers refuse all others")
    bucket = open_bucket(own.endpoint, own.name, own.access_key, own.secret_key.get_secret_value(), local=local)
    pointer = Pointer(own.endpoint, own.name, own.read_access_key, own.read_secret_key.get_secret_value())
    encode_pointer(pointer)  # what cannot be published is found out now, not in the first round
    return Doors(
        chain=open_chain(config.network, config.netuid, wallet, call_timeout_seconds=config.call_timeout_seconds),
        signer=HotkeySigner(wallet.hotkey),
        verify=verify,
        bucket=bucket,
        pointer=pointer,
        # Opening a client costs tens of milliseconds of CPU; peers' pointers seldom change.
        open_pointer=lru_cache(maxsize=512)(lambda pointer: open_pointer(pointer, local=local)),
    )
