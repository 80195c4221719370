"""Registration: uids, who owns which hotkey, and who is evicted from a full subnet.

Source: subtensor's burned registration. Left out: the per-block and per-interval limits and the rise of the burn with
demand, which would only slow a local network down; the burn stays what genesis or the owner set it to.
"""

from chain.devnet import balances
from chain.devnet.call import Call
from chain.devnet.storage import Storage

PER_NEURON = {"Active": True, "Emission": 0, "Consensus": 0, "Dividends": 0, "ValidatorTrust": 0, "Incentive": 0}
"""Per-uid vectors of a subnet with a new neuron's value, besides ValidatorPermit and LastUpdate."""


def burned_register(call: Call, netuid: int, hotkey: str) -> None:
    coldkey, storage = call.signer(), call.storage
    call.ensure(netuid != 0, "RegistrationNotPermittedOnRootSubnet")
    call.ensure(storage.get("NetworksAdded", netuid), "SubnetNotExists")
    call.ensure(storage.get("NetworkRegistrationAllowed", netuid), "SubNetRegistrationDisabled")
    call.ensure(storage.get("Uids", netuid, hotkey) is None, "HotKeyAlreadyRegisteredInSubNet")
    burn = storage.get("Burn", netuid)
    call.ensure(balances.free(storage, coldkey) >= burn, "NotEnoughBalanceToStake")
    call.ensure(not is_owned(storage, hotkey) or owner(storage, hotkey) == coldkey, "NonAssociatedColdKey")
    full = storage.get("SubnetworkN", netuid) >= storage.get("MaxAllowedUids", netuid)
    evicted = _lowest(storage, netuid, call.block) if full else None
    if full and evicted is None:
        call.fail("SubtensorModule", "NoNeuronIdAvailable")
    balances.add(storage, coldkey, -burn)
    for total in ("Balances.TotalIssuance", "TotalIssuance"):
        storage.put(total, value=max(0, storage.get(total) - burn))
    if evicted is None:
        uid = append_neuron(storage, netuid, hotkey, coldkey, call.block)
    else:
        uid = evicted
        _replace_neuron(storage, netuid, uid, hotkey, coldkey, call.block)
    call.events.emit("SubtensorModule", "NeuronRegistered", (netuid, uid, hotkey))


def owner(storage: Storage, hotkey: str) -> str:
    return str(storage.get("Owner", hotkey))


def is_owned(storage: Storage, hotkey: str) -> bool:
    """Whether the hotkey's account exists: any coldkey ever registered it."""
    return storage.raw(storage.codec.key("Owner", hotkey)) is not None


def append_neuron(storage: Storage, netuid: int, hotkey: str, coldkey: str, block: int) -> int:
    """Give the hotkey the next free uid; returns it. Its last update is its registration, as in the real runtime."""
    uid = int(storage.get("SubnetworkN", netuid))
    storage.put("SubnetworkN", netuid, value=uid + 1)
    for name, value in {**PER_NEURON, "ValidatorPermit": False, "LastUpdate": block}.items():
        storage.put(name, netuid, value=[*storage.get(name, netuid), value])
    _occupy(storage, netuid, uid, hotkey, coldkey, block)
    return uid


def _replace_neuron(storage: Storage, netuid: int, uid: int, hotkey: str, coldkey: str, block: int) -> None:
    """The old hotkey keeps its stake and its commitment; everything that belonged to the slot goes."""
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


def _lowest(storage: Storage, netuid: int, block: int) -> int | None:
    """The uid to evict: least emission, then longest registered, among those neither immune nor the owner's."""
    emission = storage.get("Emission", netuid)
    immunity = storage.get("ImmunityPeriod", netuid)
    owner_hotkey = storage.get("SubnetOwnerHotkey", netuid)
    candidates = []
    for uid, earned in enumerate(emission):
        registered = storage.get("BlockAtRegistration", netuid, uid)
        if block - registered >= immunity and storage.get("Keys", netuid, uid) != owner_hotkey:
            candidates.append((earned, registered, uid))
    return min(candidates)[2] if candidates else None
