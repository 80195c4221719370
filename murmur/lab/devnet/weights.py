"""Setting weights: the runtime's checks in the runtime's order, for a plain call and for a revealed commit.

Source: subtensor's `internal_set_weights`. Weights are u16, upscaled so that the largest is 65535. Where commit-reveal
is on, a plain call is refused; the rate limit and LastUpdate then apply to the commit, not to the set.
"""

from murmur.lab.devnet.call import Call
from murmur.lab.devnet.market import U16_MAX
from murmur.lab.devnet.staking import stake_of

MAIN_MECHANISM = 0
"""The only mechanism here; the storage index of its weights is the netuid."""


def set_weights(call: Call, netuid: int, dests: list[int], weights: list[int], version_key: int) -> None:
    set_mechanism_weights(call, netuid, MAIN_MECHANISM, dests, weights, version_key)


def set_mechanism_weights(
    call: Call, netuid: int, mecid: int, dests: list[int], weights: list[int], version_key: int
) -> None:
    call.ensure(not call.storage.get("CommitRevealWeightsEnabled", netuid), "CommitRevealEnabled")
    put_weights(call, netuid, mecid, dests, weights, version_key)


def put_weights(call: Call, netuid: int, mecid: int, dests: list[int], weights: list[int], version_key: int) -> None:
    """Set this row for the signer, unless a check fails."""
    hotkey, storage = call.signer(), call.storage
    plain = not storage.get("CommitRevealWeightsEnabled", netuid)
    call.ensure(len(dests) == len(weights), "WeightVecNotEqualSize")
    call.ensure(storage.get("NetworksAdded", netuid) and mecid == MAIN_MECHANISM, "MechanismDoesNotExist")
    uid = uid_of(call, netuid)
    count = storage.get("SubnetworkN", netuid)
    call.ensure(len(dests) <= count, "UidsLengthExceedUidsInSubNet")
    call.ensure(stake_of(storage, hotkey, netuid) >= storage.get("StakeThreshold"), "NotEnoughStakeToSetWeights")
    call.ensure(version_key >= storage.get("WeightsVersionKey", netuid), "IncorrectWeightVersionKey")
    call.ensure(not plain or has_rested(call, netuid, uid), "SettingWeightsTooFast")
    is_self_weight = dests == [uid]
    permitted = storage.get("ValidatorPermit", netuid)[uid] or hotkey == storage.get("SubnetOwnerHotkey", netuid)
    call.ensure(permitted or is_self_weight, "NeuronNoValidatorPermit")
    call.ensure(len(set(dests)) == len(dests), "DuplicateUids")
    call.ensure(all(target < count for target in dests), "UidVecContainInvalidOne")
    enough = min(storage.get("MinAllowedWeights", netuid), count)
    call.ensure(is_self_weight or len(dests) >= enough, "WeightVecLengthIsLow")
    top = max(weights, default=0)
    scaled = [weight * U16_MAX // top for weight in weights] if top else weights
    too_heavy = max(scaled, default=0) * U16_MAX > storage.get("MaxWeightsLimit", netuid) * sum(scaled)
    call.ensure(is_self_weight or not too_heavy, "MaxWeightExceeded")
    storage.put("Weights", netuid, uid, value=list(zip(dests, scaled, strict=True)))
    if plain:
        mark_update(call, netuid, uid)
    call.events.emit("SubtensorModule", "WeightsSet", (netuid, uid))


def uid_of(call: Call, netuid: int) -> int:
    """Return the signer's uid; refuse when it has none."""
    uid = call.storage.get("Uids", netuid, call.signer())
    if uid is None:
        call.fail("SubtensorModule", "HotKeyNotRegisteredInSubNet")
    return int(uid)


def has_rested(call: Call, netuid: int, uid: int) -> bool:
    """Whether the rate limit lets the uid set or commit weights again."""
    updated = call.storage.get("LastUpdate", netuid)[uid]
    return bool(updated == 0 or call.block - updated >= call.storage.get("WeightsSetRateLimit", netuid))


def mark_update(call: Call, netuid: int, uid: int) -> None:
    updates = call.storage.get("LastUpdate", netuid)
    updates[uid] = call.block
    call.storage.put("LastUpdate", netuid, value=updates)
