"""A validator's row of weights: complete, checked before it is sent, plain or sealed as the subnet demands.

The SDK's own intent sends no zeros and refuses fewer weights than MinAllowedWeights: 1024 by default, more than a
subnet has uids. The chain counts entries, zeros included, so the row names every uid. Under commit-reveal the chain
checks little when it accepts a commit and is silent when it refuses the reveal. So everything is checked here, in the
runtime's order and by its names. Source: subtensor, pallets/subtensor (set_weights, timelocked commits);
docs/decisions/0029-complete-rows-local-beacon-fate-by-blocks.md.
"""

import asyncio
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Any

from murmur.chain import beacon, reading
from murmur.chain.extrinsics import Call
from murmur.chain.session import Session
from murmur.chain.slots import raw_bytes
from murmur.protocol.errors import UNKNOWN_BEACON, ChainError
from murmur.protocol.types import PeerId, Uid, hotkey

U16_MAX = 65535
_MECHANISM = 0
"""The subnet's first, and in most subnets only, incentive mechanism."""
_QUICKNET = bytes.fromhex(
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
"""Public key of the drand network whose pulses a real chain opens commits with, and to which the SDK seals."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The chain's demands on this hotkey's row at one block, the head. Stakes in the runtime's own weighting."""

    block: int
    num_uids: int
    stake: int
    stake_threshold: int
    permitted: bool
    last_update: int
    rate_limit: int
    max_weight: int
    version_key: int
    commit_reveal: bool
    commit_version: int


async def read_terms(session: Session, netuid: int, peer: PeerId) -> Terms:
    """Read the terms at the head. Raises ChainError HotKeyNotRegisteredInSubNet."""
    block = int(await session.substrate.block_number())
    block_hash = await session.substrate.block_hash(block)

    async def read(item: str, *params: int) -> Any:
        return await session.substrate.query("SubtensorModule", item, list(params), block_hash=block_hash)

    peers, threshold, limit, most, version, conceals, commit_version, owner = await asyncio.gather(
        reading.neurons(session, netuid, block_hash),
        read("StakeThreshold"),
        read("WeightsSetRateLimit", netuid),
        read("MaxWeightsLimit", netuid),
        read("WeightsVersionKey", netuid),
        read("CommitRevealWeightsEnabled", netuid),
        read("CommitRevealWeightsVersion"),
        read("SubnetOwnerHotkey", netuid),
    )
    me = next((found for found in peers if found.id == peer), None)
    if me is None:
        raise ChainError(
            f"hotkey {hotkey(peer)} is not registered on subnet {netuid}", code="HotKeyNotRegisteredInSubNet"
        )
    return Terms(
        block=block,
        num_uids=len(peers),
        stake=me.stake,
        stake_threshold=int(threshold or 0),
        permitted=me.validates or owner == hotkey(peer),
        last_update=me.last_update,
        rate_limit=int(limit or 0),
        max_weight=U16_MAX if most is None else int(most),
        version_key=int(version or 0),
        commit_reveal=bool(conceals),
        commit_version=int(commit_version or 0),
    )


def require(terms: Terms) -> None:
    """Raise ChainError, by the runtime's name, when the chain would refuse any row."""
    if terms.stake < terms.stake_threshold:
        raise ChainError(
            f"a stake of {terms.stake} rao is below the {terms.stake_threshold} that weights need on this chain",
            code="NotEnoughStakeToSetWeights",
        )
    due = terms.last_update + terms.rate_limit
    if terms.last_update > 0 and terms.block + 1 < due:
        raise ChainError(
            f"weights were set in block {terms.last_update} and may be set again from block {due} on",
            code="CommittingWeightsTooFast" if terms.commit_reveal else "SettingWeightsTooFast",
        )
    if not terms.permitted:
        raise ChainError(
            "this hotkey has no validator permit: it needs more stake, and then an epoch",
            code="NeuronNoValidatorPermit",
        )


def require_meaning(weights: Mapping[Uid, float]) -> None:
    """Raise ValueError for weights that no chain could accept."""
    if not all(isfinite(weight) and weight >= 0 for weight in weights.values()) or not any(weights.values()):
        raise ValueError("weights must be finite and non-negative, and at least one positive")


def row(weights: Mapping[Uid, float], num_uids: int, max_weight: int) -> list[int]:
    """Return the u16 weight of every uid, the largest 65535; absent ones weigh zero. Where a share may not exceed
    `max_weight` / 65535, the heaviest are reduced to that.

    Raises ChainError for a uid that is not registered, and for too few positive weights to obey the limit.
    """
    if any(uid >= num_uids for uid in weights):
        raise ChainError("weights for a uid that is not registered (any more)", code="UidVecContainInvalidOne")
    positive = {uid: float(weight) for uid, weight in weights.items() if weight > 0}
    limited = max_weight < U16_MAX
    if limited:
        from bittensor.intents.weights import clip_to_max_weight

        clipped = clip_to_max_weight(list(positive.values()), max_weight / U16_MAX)
        positive = dict(zip(positive, clipped, strict=True))
    top = max(positive.values())
    # Round up under a limit: rounding must not push the heaviest share above it.
    quantise = ceil if limited else round
    found = [int(quantise(positive.get(Uid(uid), 0.0) / top * U16_MAX)) for uid in range(num_uids)]
    if limited and max(found) * U16_MAX > max_weight * sum(found):
        raise ChainError(
            f"no weight may be more than {max_weight / U16_MAX:.4f} of all on this subnet, and {len(positive)} "
            "positive ones cannot obey that",
            code="MaxWeightExceeded",
        )
    return found


async def compose(session: Session, netuid: int, peer: PeerId, weights: Mapping[Uid, float], *, local: bool) -> Call:
    """Return the call that sets this row, or under commit-reveal commits to it, checked at the head. Raises
    ChainError."""
    return await _composed(session, netuid, peer, weights, await read_terms(session, netuid, peer), local)


async def rehearse(session: Session, netuid: int, peer: PeerId, weights: Mapping[Uid, float], *, local: bool) -> None:
    """Raise the errors that `compose` would raise once the rate limit has passed."""
    await _composed(
        session, netuid, peer, weights, replace(await read_terms(session, netuid, peer), last_update=0), local
    )


async def _composed(
    session: Session, netuid: int, peer: PeerId, weights: Mapping[Uid, float], terms: Terms, local: bool
) -> Call:
    require(terms)
    values = row(weights, terms.num_uids, terms.max_weight)
    uids = list(range(terms.num_uids))
    if not terms.commit_reveal:
        params = {"netuid": netuid, "dests": uids, "weights": values, "version_key": terms.version_key}
        return Call("SubtensorModule", "set_weights", params)
    sealed, opens_at = await _seal(session, netuid, peer, uids, values, terms, local)
    params = {
        "netuid": netuid,
        "mecid": _MECHANISM,
        "commit": sealed,
        "reveal_round": opens_at,
        "commit_reveal_version": terms.commit_version,
    }
    return Call("SubtensorModule", "commit_timelocked_mechanism_weights", params)


async def _seal(
    session: Session, netuid: int, peer: PeerId, uids: list[int], values: list[int], terms: Terms, local: bool
) -> tuple[bytes, int]:
    """Return the commit's ciphertext, and the round of the beacon that opens it; for a local beacon, the subnet's
    epoch."""
    block_hash = await session.substrate.block_hash(terms.block)

    async def read(item: str) -> int:
        value = await session.substrate.query("SubtensorModule", item, [netuid], block_hash=block_hash)
        return int(value or 0)

    config = await session.substrate.query("Drand", "BeaconConfig", [], block_hash=block_hash)
    key = raw_bytes(config["public_key"]) if isinstance(config, dict) else b""
    epoch, reveal_epochs = await read("SubnetEpochIndex"), await read("RevealPeriodEpochs")
    if local and len(key) == beacon.KEY_BYTES:
        said = beacon.Weights(bytes(peer), tuple(uids), tuple(values), terms.version_key)
        return beacon.seal(beacon.encode(said), key), epoch + reveal_epochs
    if key != _QUICKNET:
        raise ChainError(
            "weights are sealed on this chain to a beacon other than drand's quicknet, so it is unknown who "
            "can open them. Only a local run may use such a chain",
            code=UNKNOWN_BEACON,
        )
    # Untyped native module, loaded on use.
    core = importlib.import_module("bittensor_core")
    sealed, opens_at = core.get_encrypted_commit_v2(
        uids=uids,
        weights=values,
        version_key=terms.version_key,
        last_epoch_block=await read("LastEpochBlock"),
        pending_epoch_at=await read("PendingEpochAt"),
        subnet_epoch_index=epoch,
        tempo=await read("Tempo"),
        blocks_since_last_step=await read("BlocksSinceLastStep"),
        current_block=terms.block,
        subnet_reveal_period_epochs=reveal_epochs,
        block_time=await reading.block_seconds(session, block_hash),
        hotkey=bytes(peer),
    )
    return bytes(sealed), int(opens_at)
