"""A subnet's epoch, every tempo blocks: validator permits, consensus on weights, and pay.

Yuma consensus without bonds: permits go to the K highest stakes and to the owner's hotkey. Each target's weights are
clipped at their stake-weighted median (`kappa` of the stake gave at least that much). Incentive is the stake-weighted
sum of the clipped weights, normalised. Quantised values are PerU16. Emission accrues block by block and is paid as
stake: the owner's cut (18 %), then half of the rest each to miners by incentive and to validators by dividends. Source:
subtensor's epoch and coinbase. Left out: bonds and liquid alpha, root's earnings, and the halving.
"""

from collections.abc import Iterable

from murmur.lab.devnet import staking
from murmur.lab.devnet.call import Events
from murmur.lab.devnet.market import U16_MAX
from murmur.lab.devnet.neurons import owner
from murmur.lab.devnet.storage import Storage
from murmur.lab.devnet.timelock import reveal

EMISSION_PER_BLOCK_RAO = 10**9
"""Alpha that a subnet emits per block, until the first halving."""
_MILLI = 1000


def begin_block(storage: Storage, events: Events, netuid: int, block: int, private_key: bytes | None) -> None:
    """Update the subnet before a block's calls: accrue emission, and run the epoch when it is due. Before the epoch,
    the commits that it reveals are opened with the devnet's key, if there is one."""
    _accrue(storage, netuid)
    since = block - storage.get("LastEpochBlock", netuid)
    due = since >= storage.get("Tempo", netuid) > 0
    if due:
        index = storage.get("SubnetEpochIndex", netuid) + 1
        if private_key is not None:
            reveal(storage, events, netuid, block, index, private_key)
        _run(storage, netuid, block)
        storage.put("LastEpochBlock", netuid, value=block)
        storage.put("LastMechansimStepBlock", netuid, value=block)
        storage.put("SubnetEpochIndex", netuid, value=index)
    storage.put("BlocksSinceLastStep", netuid, value=0 if due else since)


def _accrue(storage: Storage, netuid: int) -> None:
    """Accrue a block's emission, which the next epoch pays out."""
    emitted = storage.get("SubnetAlphaOutEmission", netuid)
    if not emitted:
        return
    cut = emitted * storage.get("SubnetOwnerCut") // U16_MAX
    servers = (emitted - cut) // 2
    pending = {
        "PendingOwnerCut": cut,
        "PendingServerEmission": servers,
        "PendingValidatorEmission": emitted - cut - servers,
        "SubnetAlphaOut": emitted,
    }
    for item, amount in pending.items():
        storage.put(item, netuid, value=storage.get(item, netuid) + amount)


def _run(storage: Storage, netuid: int, block: int) -> None:
    count = storage.get("SubnetworkN", netuid)
    hotkeys = [storage.get("Keys", netuid, uid) for uid in range(count)]
    stakes = [staking.stake_of(storage, hotkey, netuid) for hotkey in hotkeys]
    updates = storage.get("LastUpdate", netuid)
    cutoff = storage.get("ActivityCutoffFactorMilli", netuid) * storage.get("Tempo", netuid) // _MILLI
    active = [updated + cutoff >= block for updated in updates]
    permits = top_stakes(stakes, storage.get("MaxAllowedValidators", netuid), storage.get("StakeThreshold"))
    owner_hotkey = storage.get("SubnetOwnerHotkey", netuid)
    permits = [permit or hotkey == owner_hotkey for permit, hotkey in zip(permits, hotkeys, strict=True)]
    # Weights count from the validators permitted until now; new permits take effect from the next block on.
    voting = [
        stake if is_active and permit else 0
        for stake, is_active, permit in zip(stakes, active, storage.get("ValidatorPermit", netuid), strict=True)
    ]
    rows = [shares(storage.get("Weights", netuid, uid), uid, count) if voting[uid] else {} for uid in range(count)]
    consensus, incentive, trust, dividends = yuma(voting, rows, storage.get("Kappa", netuid) / U16_MAX)
    storage.put("ValidatorPermit", netuid, value=permits)
    storage.put("Active", netuid, value=active)
    storage.put("Consensus", netuid, value=per_u16(consensus))
    storage.put("Incentive", netuid, value=per_u16(incentive))
    storage.put("ValidatorTrust", netuid, value=per_u16(trust))
    storage.put("Dividends", netuid, value=per_u16(dividends))
    if not any(dividends):  # without valid weights, stake alone decides
        dividends = _normalised([float(stake) for stake in (voting if any(voting) else stakes)])
    _pay(storage, netuid, hotkeys, incentive, dividends)


def _pay(storage: Storage, netuid: int, hotkeys: list[str], incentive: list[float], dividends: list[float]) -> None:
    """Pay out the accrued emission. When no miner has incentive, validators get the miners' part as well."""
    cut, servers, validators = (
        storage.get(item, netuid) for item in ("PendingOwnerCut", "PendingServerEmission", "PendingValidatorEmission")
    )
    if not any(incentive):
        servers, validators = 0, servers + validators
    mined = [int(servers * share) for share in incentive]
    voted = [int(validators * share) for share in dividends]
    owner_coldkey, owner_hotkey = storage.get("SubnetOwner", netuid), storage.get("SubnetOwnerHotkey", netuid)
    burned = 0
    if cut:
        staking.credit(storage, owner_hotkey, owner_coldkey, netuid, cut)
    for hotkey, earned, dividend in zip(hotkeys, mined, voted, strict=True):
        coldkey = owner(storage, hotkey)
        if hotkey == owner_hotkey or coldkey == owner_coldkey:  # weight on the owner is burned
            burned += earned
        elif earned:
            staking.credit(storage, hotkey, coldkey, netuid, earned)
        if dividend:
            staking.pay_dividend(storage, hotkey, netuid, dividend)
    storage.put("SubnetAlphaOut", netuid, value=storage.get("SubnetAlphaOut", netuid) - burned)
    storage.put("Emission", netuid, value=[m + v for m, v in zip(mined, voted, strict=True)])
    # Rounding remainders, and emission without a recipient, wait for the next epoch.
    left = {"PendingServerEmission": servers - sum(mined), "PendingValidatorEmission": validators - sum(voted)}
    for item, amount in {**left, "PendingOwnerCut": 0}.items():
        storage.put(item, netuid, value=max(0, amount))


def top_stakes(stakes: list[int], limit: int, threshold: int) -> list[bool]:
    """Return the permits: the `limit` highest non-zero stakes of at least `threshold`; ties go to the lower uid."""
    ranked = sorted((-stake, uid) for uid, stake in enumerate(stakes) if stake > 0 and stake >= threshold)
    chosen = {uid for _, uid in ranked[:limit]}
    return [uid in chosen for uid in range(len(stakes))]


def shares(weights: Iterable[tuple[int, int]], uid: int, count: int) -> dict[int, float]:
    """Return a validator's weights on others, summing to 1; empty when it gives none."""
    row = {target: weight for target, weight in weights if target < count and target != uid}
    total = sum(row.values())
    return {target: weight / total for target, weight in row.items()} if total else {}


def yuma(
    stakes: list[int], rows: list[dict[int, float]], kappa: float
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return (consensus, incentive, validator trust, dividends), each per uid in 0 .. 1, from voting stakes and weight
    rows.

    Incentive and dividends each sum to 1, or to 0 without votes. With one validator consensus is its own weights.
    """
    count, total = len(stakes), sum(stakes)
    if not total:
        return [0.0] * count, [0.0] * count, [0.0] * count, [0.0] * count
    consensus = [_weighted_median(stakes, [row.get(uid, 0.0) for row in rows], kappa * total) for uid in range(count)]
    clipped = [{target: min(weight, consensus[target]) for target, weight in row.items()} for row in rows]
    ranks = [
        sum(stake * row.get(uid, 0.0) for stake, row in zip(stakes, clipped, strict=True)) / total
        for uid in range(count)
    ]
    incentive = _normalised(ranks)
    trust = [sum(row.values()) for row in clipped]
    dividends = _normalised(
        [
            stake / total * sum(weight * incentive[target] for target, weight in row.items())
            for stake, row in zip(stakes, clipped, strict=True)
        ]
    )
    return consensus, incentive, trust, dividends


def _weighted_median(stakes: list[int], weights: list[float], majority: float) -> float:
    """Return the largest weight that more than `majority` of the stake gave or exceeded."""
    behind = 0
    for weight, stake in sorted(((w, s) for w, s in zip(weights, stakes, strict=True) if s), reverse=True):
        behind += stake
        if behind > majority:
            return weight
    return 0.0


def _normalised(values: list[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values] if total else values


def per_u16(values: list[float]) -> list[int]:
    """Return 0 .. 1 values as the chain quantises them."""
    return [min(U16_MAX, round(value * U16_MAX)) for value in values]
