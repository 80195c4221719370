"""Setting weights: the runtime's checks in the runtime's order. Commit-reveal is off and stays off.

Source: subtensor's `internal_set_weights`. Weights are u16, upscaled so that the largest is 65535.
"""

from chain.devnet.call import Call
from chain.devnet.staking import stake_of

U16_MAX = 0xFFFF


def set_weights(call: Call, netuid: int, dests: list[int], weights: list[int], version_key: int) -> None:
    set_mechanism_weights(call, netuid, 0, dests, weights, version_key)


def set_mechanism_weights(
    call: Call, netuid: int, mecid: int, dests: list[int], weights: list[int], version_key: int
) -> None:
    hotkey, storage = call.signer(), call.storage
    call.ensure(len(dests) == len(weights), "WeightVecNotEqualSize")
    call.ensure(storage.get("NetworksAdded", netuid) and mecid == 0, "MechanismDoesNotExist")
    uid = storage.get("Uids", netuid, hotkey)
    if uid is None:
        call.fail("SubtensorModule", "HotKeyNotRegisteredInSubNet")
    count = storage.get("SubnetworkN", netuid)
    call.ensure(len(dests) <= count, "UidsLengthExceedUidsInSubNet")
    call.ensure(stake_of(storage, hotkey, netuid) >= storage.get("StakeThreshold"), "NotEnoughStakeToSetWeights")
    call.ensure(version_key >= storage.get("WeightsVersionKey", netuid), "IncorrectWeightVersionKey")
    updates = storage.get("LastUpdate", netuid)
    rested = updates[uid] == 0 or call.block - updates[uid] >= storage.get("WeightsSetRateLimit", netuid)
    call.ensure(rested, "SettingWeightsTooFast")
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
    updates[uid] = call.block
    storage.put("LastUpdate", netuid, value=updates)
    call.events.emit("SubtensorModule", "WeightsSet", (netuid, uid))
