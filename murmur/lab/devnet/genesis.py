"""Block 0 of a development chain: one subnet with its owner, and funded accounts.

Everything else (registration, stake, weights) uses real extrinsics from the funded coldkeys. By default a genesis
equals a new subnet of a real chain after `register_network` and `start_call`. `Genesis.fast` is the alternative, for
tests that cannot wait. Source: docs/decisions/0030-a-devnet-with-a-real-subnets-rules.md.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from murmur.lab.devnet.epoch import EMISSION_PER_BLOCK_RAO
from murmur.lab.devnet.neurons import append_neuron
from murmur.lab.devnet.storage import Storage
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import peer_id

TAO = 10**9


@dataclass(frozen=True, slots=True)
class Genesis:
    """The operator's choices. Addresses are SS58, balances rao, lengths blocks.

    The owner's hotkey is registered as uid 0, as by the real `register_network`. `sudo` (default: the owner's coldkey)
    may dispatch Sudo.sudo. `pool_rao` is the reserve on both sides of the subnet's pool; 0 makes a stable subnet, where
    one alpha is one TAO. `emission_rao` is the alpha that every block pays out.
    """

    owner_coldkey: str
    owner_hotkey: str
    balances: dict[str, int] = field(default_factory=dict)
    netuid: int = 1
    tempo_blocks: int = 360
    max_uids: int = 256
    max_validators: int = 64
    immunity_blocks: int = 5000
    weights_rate_limit_blocks: int = 100
    min_allowed_weights: int = 1024
    commit_reveal: bool = True
    burn_rao: int = 100_000_000
    pool_rao: int = 1000 * TAO
    emission_rao: int = EMISSION_PER_BLOCK_RAO
    sudo: str | None = None
    seed: str = field(default_factory=lambda: secrets.token_hex(16))
    """Hex. Makes the genesis hash, and so every signature, unique to this network."""

    @classmethod
    def fast(cls, owner_coldkey: str, owner_hotkey: str, **others: Any) -> Self:
        """Return a subnet on which everything happens within a few blocks and amounts are round: short epochs, plain
        weights of any length, alpha at one TAO, no emission. Fees, burn and permits are as on any other."""
        quick: dict[str, Any] = {
            "tempo_blocks": 20,
            "weights_rate_limit_blocks": 20,
            "min_allowed_weights": 1,
            "commit_reveal": False,
            "pool_rao": 0,
            "emission_rao": 0,
        }
        return cls(owner_coldkey, owner_hotkey, **{**quick, **others})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Genesis":
        """Load a genesis. Raises ConfigError when the file is missing, is not JSON, or does not describe a genesis."""
        try:
            genesis = cls(**json.loads(path.read_text()))
            genesis.check()
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not a devnet genesis: {error}. See murmur/lab/devnet/genesis.py") from error
        return genesis

    def check(self) -> None:
        """Raise ValueError naming the first value that no runtime could hold."""
        bytes.fromhex(self.seed)
        for address in (self.owner_coldkey, self.owner_hotkey, *self.balances, *([self.sudo] if self.sudo else [])):
            peer_id(address)
        sixteen_bit = ("netuid", "tempo_blocks", "max_uids", "max_validators", "immunity_blocks", "min_allowed_weights")
        for name in sixteen_bit:
            if not 0 <= getattr(self, name) < 1 << 16:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 to 65535")
        if self.netuid == 0 or self.tempo_blocks == 0 or self.max_uids == 0:
            raise ValueError("netuid, tempo_blocks and max_uids must be at least 1")
        amounts = (self.burn_rao, self.weights_rate_limit_blocks, self.pool_rao, self.emission_rao)
        for amount in (*amounts, *self.balances.values()):
            if amount < 0:
                raise ValueError(f"{amount} is negative")
        issuance = sum(self.balances.values()) + self.pool_rao
        if max(issuance, *amounts) >= 1 << 64:
            raise ValueError(f"the balances sum to {issuance}, or another value is as large: 64 bits hold every amount")


def write_genesis(storage: Storage, genesis: Genesis, beacon_key: bytes) -> None:
    """Write the state of block 0. `beacon_key`: the public key that commits are sealed to. Items not named here keep
    the default of the runtime's metadata."""
    netuid = genesis.netuid
    for address, rao in genesis.balances.items():
        account = storage.get("System.Account", address)
        account["providers"] = 1
        account["data"]["free"] = rao
        storage.put("System.Account", address, value=account)
    issuance = sum(genesis.balances.values()) + genesis.pool_rao
    storage.put("Balances.TotalIssuance", value=issuance)
    storage.put("TotalIssuance", value=issuance)
    storage.put("TotalStake", value=genesis.pool_rao)
    storage.put("Sudo.Key", value=genesis.sudo or genesis.owner_coldkey)
    config = storage.get("Drand.BeaconConfig")
    storage.put("Drand.BeaconConfig", value={**config, "public_key": beacon_key, "metadata": {"beacon_id": b"devnet"}})

    storage.put("TotalNetworks", value=2)
    storage.put("NetworksAdded", 0, value=True)  # root: stake on it counts on every subnet
    storage.put("SubtokenEnabled", 0, value=True)
    storage.put("SubnetOwner", netuid, value=genesis.owner_coldkey)
    storage.put("SubnetOwnerHotkey", netuid, value=genesis.owner_hotkey)
    subnet = {
        "NetworksAdded": True,
        "NetworkRegisteredAt": 0,
        "NetworkRegistrationAllowed": True,
        "NetworkPowRegistrationAllowed": False,
        "SubtokenEnabled": True,
        "FirstEmissionBlockNumber": 1,
        "SubnetMechanism": int(genesis.pool_rao > 0),
        "SubnetTAO": genesis.pool_rao,
        "SubnetAlphaIn": genesis.pool_rao,
        "SubnetAlphaOutEmission": genesis.emission_rao,
        "CommitRevealWeightsEnabled": genesis.commit_reveal,
        "Tempo": genesis.tempo_blocks,
        "MaxAllowedUids": genesis.max_uids,
        "MaxAllowedValidators": genesis.max_validators,
        "ImmunityPeriod": genesis.immunity_blocks,
        "WeightsSetRateLimit": genesis.weights_rate_limit_blocks,
        "MinAllowedWeights": genesis.min_allowed_weights,
        "MaxWeightsLimit": 0xFFFF,
        "Burn": genesis.burn_rao,
        "TokenSymbol": b"\xce\xb1",
        "SubnetworkN": 0,
    }
    for name, value in subnet.items():
        storage.put(name, netuid, value=value)
    append_neuron(storage, netuid, genesis.owner_hotkey, genesis.owner_coldkey, block=0)
