"""The epoch of a subnet, every tempo blocks: who may validate, what the validators' weights amount to.

Yuma consensus without bonds: permits go to the K highest stakes; each target's weights are clipped at their
stake-weighted median (`kappa` of the stake gave at least that much), and incentive is the stake-weighted sum of what
is left, normalised. Emission is what a neuron would earn in the tempo; it orders evictions and is never paid out.
Quantised values are PerU16. Source: subtensor's epoch, whose bonds and liquid alpha matter to nobody here.
"""

from chain.devnet.staking import stake_of
from chain.devnet.storage import Storage

U16_MAX = 0xFFFF
EMISSION_PER_BLOCK_RAO = 10**9


def run_due_epoch(storage: Storage, netuid: int, block: int) -> None:
    """At the start of `block`: run the subnet's epoch if its tempo has passed, else count the blocks since."""
    since = block - storage.get("LastEpochBlock", netuid)
    due = since >= storage.get("Tempo", netuid) > 0
    if due:
        _run(storage, netuid, block)
        storage.put("LastEpochBlock", netuid, value=block)
        storage.put("LastMechansimStepBlock", netuid, value=block)
        storage.put("SubnetEpochIndex", netuid, value=storage.get("SubnetEpochIndex", netuid) + 1)
    storage.put("BlocksSinceLastStep", netuid, value=0 if due else since)


def _run(storage: Storage, netuid: int, block: int) -> None:
    count = storage.get("SubnetworkN", netuid)
    stakes = [stake_of(storage, storage.get("Keys", netuid, uid), netuid) for uid in range(count)]
    updates = storage.get("LastUpdate", netuid)
    cutoff = storage.get("ActivityCutoff", netuid)
    active = [updated + cutoff >= block for updated in updates]
    permits = top_stakes(stakes, storage.get("MaxAllowedValidators", netuid), storage.get("StakeThreshold"))
    # Weights count from those permitted until now; new permits hold from the next block on.
    voting = [
        stake if is_active and permit else 0
        for stake, is_active, permit in zip(stakes, active, storage.get("ValidatorPermit", netuid), strict=True)
    ]
    rows = [_row(storage, netuid, uid, count) if voting[uid] else {} for uid in range(count)]
    consensus, incentive, trust, dividends = yuma(voting, rows, storage.get("Kappa", netuid) / U16_MAX)
    earned = storage.get("Tempo", netuid) * EMISSION_PER_BLOCK_RAO // 2
    storage.put("ValidatorPermit", netuid, value=permits)
    storage.put("Active", netuid, value=active)
    storage.put("Consensus", netuid, value=_per_u16(consensus))
    storage.put("Incentive", netuid, value=_per_u16(incentive))
    storage.put("ValidatorTrust", netuid, value=_per_u16(trust))
    storage.put("Dividends", netuid, value=_per_u16(dividends))
    emission = [int(earned * (mine + voted)) for mine, voted in zip(incentive, dividends, strict=True)]
    storage.put("Emission", netuid, value=emission)


def top_stakes(stakes: list[int], limit: int, threshold: int) -> list[bool]:
    """Permits: the `limit` highest non-zero stakes of at least `threshold`; equal stakes go to the lower uid."""
    ranked = sorted((-stake, uid) for uid, stake in enumerate(stakes) if stake > 0 and stake >= threshold)
    chosen = {uid for _, uid in ranked[:limit]}
    return [uid in chosen for uid in range(len(stakes))]


def _row(storage: Storage, netuid: int, uid: int, count: int) -> dict[int, float]:
    """A validator's weights on others, summing to 1; empty when it gives none."""
    row = {target: weight for target, weight in storage.get("Weights", netuid, uid) if target < count and target != uid}
    total = sum(row.values())
    return {target: weight / total for target, weight in row.items()} if total else {}


def yuma(
    stakes: list[int], rows: list[dict[int, float]], kappa: float
) -> tuple[list[float], list[float], list[float], list[float]]:
    """(consensus, incentive, validator trust, dividends), each per uid in 0 .. 1, from voting stakes and weight rows.

    Incentive and dividends each sum to 1, or to 0 when nobody votes. With one validator consensus is its own weights.
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
    """The largest weight that more than `majority` of the stake stands behind."""
    behind = 0
    for weight, stake in sorted(((w, s) for w, s in zip(weights, stakes, strict=True) if s), reverse=True):
        behind += stake
        if behind > majority:
            return weight
    return 0.0


def _normalised(values: list[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values] if total else values


def _per_u16(values: list[float]) -> list[int]:
    return [min(U16_MAX, round(value * U16_MAX)) for value in values]
