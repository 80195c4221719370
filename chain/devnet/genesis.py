"""Block 0 of a development chain: one subnet with its owner, and accounts that hold money.

Everything else (registration, stake, weights) goes over real extrinsics from the funded coldkeys. Values that the
runtime derives from time alone start as on a subnet whose emissions were switched on.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chain.devnet.neurons import append_neuron
from chain.devnet.storage import Storage
from protocol.errors import ConfigError
from protocol.types import peer_id


@dataclass(frozen=True, slots=True)
class Genesis:
    """What the operator chooses. Addresses are SS58, balances rao, lengths blocks.

    The owner's hotkey is registered as uid 0, as the real `register_network` does it. `sudo` (default: the owner's
    coldkey) may dispatch Sudo.sudo.
    """

    owner_coldkey: str
    owner_hotkey: str
    balances: dict[str, int] = field(default_factory=dict)
    netuid: int = 1
    tempo_blocks: int = 20
    max_uids: int = 256
    max_validators: int = 64
    immunity_blocks: int = 4096
    weights_rate_limit_blocks: int = 20
    min_allowed_weights: int = 1
    burn_rao: int = 100_000_000
    sudo: str | None = None
    seed: str = field(default_factory=lambda: secrets.token_hex(16))
    """Hex. Makes the genesis hash, and with it every signature, this network's own."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Genesis":
        """Raises ConfigError when the file is missing, is not JSON, or does not describe a genesis."""
        try:
            genesis = cls(**json.loads(path.read_text()))
            genesis.check()
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not a devnet genesis: {error}. See chain/devnet/genesis.py") from error
        return genesis

    def check(self) -> None:
        """Raises ValueError naming the first value that no runtime could hold."""
        bytes.fromhex(self.seed)
        for address in (self.owner_coldkey, self.owner_hotkey, *self.balances, *([self.sudo] if self.sudo else [])):
            peer_id(address)
        sixteen_bit = ("netuid", "tempo_blocks", "max_uids", "max_validators", "immunity_blocks", "min_allowed_weights")
        for name in sixteen_bit:
            if not 0 <= getattr(self, name) < 1 << 16:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 to 65535")
        if self.netuid == 0 or self.tempo_blocks == 0 or self.max_uids == 0:
            raise ValueError("netuid, tempo_blocks and max_uids must be at least 1")
        for amount in (self.burn_rao, self.weights_rate_limit_blocks, *self.balances.values()):
            if amount < 0:
                raise ValueError(f"{amount} is negative")
        issuance = sum(self.balances.values())
        if max(issuance, self.burn_rao, self.weights_rate_limit_blocks) >= 1 << 64:
            raise ValueError(f"the balances sum to {issuance}, or another value is as large: 64 bits hold every amount")


def write_genesis(storage: Storage, genesis: Genesis) -> None:
    """Write the state of block 0."""
    netuid = genesis.netuid
    for address, rao in genesis.balances.items():
        account = storage.get("System.Account", address)
        account["providers"] = 1
        account["data"]["free"] = rao
        storage.put("System.Account", address, value=account)
    storage.put("Balances.TotalIssuance", value=sum(genesis.balances.values()))
    storage.put("TotalIssuance", value=sum(genesis.balances.values()))
    storage.put("Sudo.Key", value=genesis.sudo or genesis.owner_coldkey)

    storage.put("TotalNetworks", value=1)
    storage.put("SubnetOwner", netuid, value=genesis.owner_coldkey)
    storage.put("SubnetOwnerHotkey", netuid, value=genesis.owner_hotkey)
    subnet = {
        "NetworksAdded": True,
        "NetworkRegisteredAt": 0,
        "NetworkRegistrationAllowed": True,
        "NetworkPowRegistrationAllowed": False,
        "SubtokenEnabled": True,
        "FirstEmissionBlockNumber": 1,
        "SubnetMechanism": 0,  # stable: one alpha is one tao, no pool
        "CommitRevealWeightsEnabled": False,
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
