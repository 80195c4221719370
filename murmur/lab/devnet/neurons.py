"""Registration: uids, ownership of hotkeys, the price of a slot, and eviction from a full subnet.

The price is multiplied by `BurnIncreaseMult` (1.26) with every registration and halves every `BurnHalfLife` (360
blocks), between `MinBurn` and `MaxBurn`. The payment buys alpha that is destroyed. Source: subtensor's registration
since its interval controller was removed (spec 461 has both items). Left out: proof of work and miners' collateral.
"""

from murmur.lab.devnet import balances, market
from murmur.lab.devnet.call import Call
from murmur.lab.devnet.storage import Storage

PER_NEURON = {"Active": True, "Emission": 0, "Consensus": 0, "Dividends": 0, "ValidatorTrust": 0, "Incentive": 0}
"""Per-uid vectors of a subnet with a new neuron's value, besides ValidatorPermit and LastUpdate."""
_FIXED_ONE = 1 << 64
"""One, in the runtime's fixed-point numbers for multipliers."""


def burned_register(call: Call, netuid: int, hotkey: str) -> None:
    coldkey, storage = call.signer(), call.storage
    call.ensure(netuid != 0, "RegistrationNotPermittedOnRootSubnet")
    call.ensure(storage.get("NetworksAdded", netuid), "SubnetNotExists")
    call.ensure(storage.get("NetworkRegistrationAllowed", netuid), "SubNetRegistrationDisabled")
    call.ensure(storage.get("Uids", netuid, hotkey) is None, "HotKeyAlreadyRegisteredInSubNet")
    burn = storage.get("Burn", netuid)
    call.ensure(balances.spendable(storage, coldkey) >= burn, "NotEnoughBalanceToStake")
    call.ensure(not is_owned(storage, hotkey) or owner(storage, hotkey) == coldkey, "NonAssociatedColdKey")
    full = storage.get("SubnetworkN", netuid) >= storage.get("MaxAllowedUids", netuid)
    evicted = to_prune(storage, netuid, call.block) if full else None
    if full and evicted is None:
        call.fail("SubtensorModule", "NoNeuronIdAvailable")
    balances.add(storage, coldkey, -burn)
    alpha, _fee = market.buy(call, netuid, burn)
    storage.put("SubnetAlphaOut", netuid, value=storage.get("SubnetAlphaOut", netuid) - alpha)
    if evicted is None:
        uid = append_neuron(storage, netuid, hotkey, coldkey, call.block)
    else:
        uid = evicted
        _replace_neuron(storage, netuid, uid, hotkey, coldkey, call.block)
    raised = burn * storage.get("BurnIncreaseMult", netuid)["bits"] // _FIXED_ONE
    storage.put("Burn", netuid, value=_bounded_burn(storage, netuid, raised))
    call.events.emit("SubtensorModule", "NeuronRegistered", (netuid, uid, hotkey))


def decay_burn(storage: Storage, netuid: int) -> None:
    """Apply one block's decay to the price of a registration."""
    half_life = storage.get("BurnHalfLife", netuid)
    burn = storage.get("Burn", netuid)
    decayed = round(burn * 0.5 ** (1 / half_life)) if half_life else burn
    bounded = _bounded_burn(storage, netuid, decayed)
    if bounded != burn:
        storage.put("Burn", netuid, value=bounded)


def _bounded_burn(storage: Storage, netuid: int, burn: int) -> int:
    return int(max(storage.get("MinBurn", netuid), min(burn, storage.get("MaxBurn", netuid))))


def owner(storage: Storage, hotkey: str) -> str:
    return str(storage.get("Owner", hotkey))


def is_owned(storage: Storage, hotkey: str) -> bool:
    """Whether the hotkey's account exists: some coldkey has registered it."""
    return storage.raw(storage.codec.key("Owner", hotkey)) is not None


def append_neuron(storage: Storage, netuid: int, hotkey: str, coldkey: str, block: int) -> int:
    """Give the hotkey the next free uid and return it. Its last update is its registration, as in the real runtime."""
    uid = int(storage.get("SubnetworkN", netuid))
    storage.put("SubnetworkN", netuid, value=uid + 1)
    for name, value in {**PER_NEURON, "ValidatorPermit": False, "LastUpdate": block}.items():
        storage.put(name, netuid, value=[*storage.get(name, netuid), value])
    _occupy(storage, netuid, uid, hotkey, coldkey, block)
    return uid


def _replace_neuron(storage: Storage, netuid: int, uid: int, hotkey: str, coldkey: str, block: int) -> None:
    """Replace a slot's hotkey. The old hotkey keeps its stake and its commitment; everything that belonged to the slot
    is removed."""
    old = storage.get("Keys", netuid, uid)
    storage.delete("Uids", netuid, old)
    storage.delete("IsNetworkMember", old, netuid)
    storage.delete("Weights", netuid, uid)
    for name, value in {**PER_NEURON, "ValidatorPermit": False, "LastUpdate": block}.items():
        values = storage.get(name, netuid)
        values[uid] = value
        storage.put(name, netuid, value=values)
    _occupy(storage, netuid, uid, hotkey, coldkey, block)


def _occupy(storage: Storage, netuid: int, uid: int, hotkey: str, coldkey: str, block: int) -> None:
    storage.put("Keys", netuid, uid, value=hotkey)
    storage.put("Uids", netuid, hotkey, value=uid)
    storage.put("IsNetworkMember", hotkey, netuid, value=True)
    storage.put("BlockAtRegistration", netuid, uid, value=block)
    if not is_owned(storage, hotkey):
        storage.put("Owner", hotkey, value=coldkey)
        storage.put("OwnedHotkeys", coldkey, value=[*storage.get("OwnedHotkeys", coldkey), hotkey])


def to_prune(storage: Storage, netuid: int, block: int) -> int | None:
    """Return the uid to evict: least emission, then longest registered, then lowest.

    An immune one is evicted only while no more than `MinNonImmuneUids` are not immune. The owner's hotkeys, up to
    `ImmuneOwnerUidsLimit`, are never evicted.
    """
    emission = storage.get("Emission", netuid)
    immunity = storage.get("ImmunityPeriod", netuid)
    spared = _owners_uids(storage, netuid)
    immune: list[tuple[int, int, int]] = []
    others: list[tuple[int, int, int]] = []
    for uid, earned in enumerate(emission):
        registered = storage.get("BlockAtRegistration", netuid, uid)
        if uid not in spared:
            (immune if block - registered < immunity else others).append((earned, registered, uid))
    candidates = others if len(others) > storage.get("MinNonImmuneUids", netuid) else immune
    return min(candidates)[2] if candidates else None


def _owners_uids(storage: Storage, netuid: int) -> list[int]:
    """Return the subnet owner's uids that are never evicted: first that of its hotkey, then the longest registered."""
    coldkey, hotkey = storage.get("SubnetOwner", netuid), storage.get("SubnetOwnerHotkey", netuid)
    keys = [storage.get("Keys", netuid, uid) for uid in range(storage.get("SubnetworkN", netuid))]
    owned = sorted(
        (key != hotkey, storage.get("BlockAtRegistration", netuid, uid), uid)
        for uid, key in enumerate(keys)
        if key == hotkey or owner(storage, key) == coldkey
    )
    return [uid for _, _, uid in owned][: storage.get("ImmuneOwnerUidsLimit", netuid)]
