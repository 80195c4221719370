"""Reads of a subnet, each at the hash of one block: headers, hotkeys, demands, balances, commits.

Coroutines over a session; murmur/chain/adapter.py decides when to call them and what to cache. Answers of another shape
than the runtime's raise Python's own exceptions. Source: subtensor's pallets SubtensorModule and Commitments; bittensor
11.3.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from murmur.chain.session import Session
from murmur.chain.slots import decode_fields, decode_slot
from murmur.protocol.errors import ChainError
from murmur.protocol.types import DIGEST_BYTES, MAX_UIDS, Digest, Header, Peer, PeerId, Subnet, Uid, hotkey, peer_id

_METAGRAPH = ("SubnetInfoRuntimeApi", "get_metagraph")
_SELECTIVE_METAGRAPH = ("SubnetInfoRuntimeApi", "get_selective_metagraph")
_COLUMNS = [52, 57, 59, 62, 69]
"""SelectiveMetagraphIndex of hotkeys, validator_permit, last_update, incentives and total_stake: a twentieth of a
metagraph."""
_NOBODY = hotkey(PeerId(bytes(32)))
"""The chain's value for a missing owner."""


async def block_hash(session: Session, block: int) -> str:
    """Return the hash of any block, in the SDK's form."""
    return "0x" + hash_bytes(await session.substrate.block_hash(block)).hex()


async def header(session: Session, block: int, block_hash: str) -> Header:
    milliseconds = await session.substrate.query("Timestamp", "Now", [], block_hash=block_hash)
    return Header(block, Digest(hash_bytes(block_hash)), int(milliseconds) / 1000.0)


def hash_bytes(text: str) -> bytes:
    """Return the 32 bytes of a block's hash; ValueError or AttributeError for an invalid one."""
    found = bytes.fromhex(text.removeprefix("0x"))
    if len(found) != DIGEST_BYTES:
        raise ValueError("a block's hash has 32 bytes")
    return found


async def neurons(session: Session, netuid: int, block_hash: str) -> tuple[Peer, ...]:
    """Return every registered hotkey by uid, without its slot, in one call. Stake comes from the runtime itself, which
    weighs alpha and root stake by rules that change with its version."""
    try:
        columns = await session.substrate.runtime_call(*_SELECTIVE_METAGRAPH, [netuid, _COLUMNS], block_hash=block_hash)
    except ValueError:  # raised by the SDK for a method that is not in the runtime's metadata
        columns = await session.substrate.runtime_call(*_METAGRAPH, [netuid], block_hash=block_hash)
    if not isinstance(columns, dict) or columns.get("hotkeys") is None:
        raise _no_subnet(netuid)
    names = ("hotkeys", "total_stake", "validator_permit", "last_update", "incentives")
    rows = zip(*(columns[name] for name in names), strict=True)
    return tuple(
        Peer(peer_id(str(address)), Uid(uid), int(stake), bool(permit), int(updated), incentive=int(incentive))
        for uid, (address, stake, permit, updated, incentive) in enumerate(rows)
    )


async def peers(session: Session, netuid: int, block_hash: str) -> tuple[Peer, ...]:
    """Return every registered hotkey with its slot, by uid."""
    found = await neurons(session, netuid, block_hash)
    keys = [[netuid, hotkey(peer.id)] for peer in found]
    registrations = await session.substrate.query_batch("Commitments", "CommitmentOf", keys, block_hash=block_hash)
    return tuple(
        replace(peer, slot=decode_slot(registration)) for peer, registration in zip(found, registrations, strict=True)
    )


def _no_subnet(netuid: int) -> ChainError:
    return ChainError(
        f"there is no subnet {netuid} on this chain: correct the netuid, or the network", "SubnetNotExists"
    )


async def subnet(session: Session, netuid: int, block_hash: str) -> Subnet:
    async def read(pallet: str, item: str, *params: int) -> Any:
        return await session.substrate.query(pallet, item, list(params), block_hash=block_hash)

    tempo, space, limit, conceals, owner, max_uids, mechanisms, reveal = await asyncio.gather(
        read("SubtensorModule", "Tempo", netuid),
        read("Commitments", "MaxSpace"),
        read("SubtensorModule", "WeightsSetRateLimit", netuid),
        read("SubtensorModule", "CommitRevealWeightsEnabled", netuid),
        read("SubtensorModule", "SubnetOwnerHotkey", netuid),
        read("SubtensorModule", "MaxAllowedUids", netuid),
        read("SubtensorModule", "MechanismCountCurrent", netuid),
        read("SubtensorModule", "RevealPeriodEpochs", netuid),
    )
    if not tempo:
        raise _no_subnet(netuid)
    return Subnet(
        int(tempo),
        int(space),
        int(limit),
        bool(conceals),
        None if owner in (None, _NOBODY) else peer_id(str(owner)),
        MAX_UIDS if max_uids is None else int(max_uids),
        1 if mechanisms is None else int(mechanisms),
        1 if reveal is None else int(reveal),
    )


async def weights(session: Session, netuid: int, uid: Uid, block_hash: str) -> dict[Uid, int]:
    rows = await session.substrate.query("SubtensorModule", "Weights", [netuid, int(uid)], block_hash=block_hash)
    return {Uid(int(target)): int(weight) for target, weight in rows or []}


async def payer(session: Session, address: str, block_hash: str | None = None) -> tuple[str, int]:
    """Return the address of the coldkey that owns a hotkey and pays its fees, and its free balance in rao; at the head
    without a hash."""
    owner = await session.substrate.query("SubtensorModule", "Owner", [address], block_hash=block_hash)
    if owner in (None, _NOBODY):
        raise ChainError(f"no coldkey owns hotkey {address}: register it on the subnet", code="HotKeyAccountNotExists")
    return str(owner), await balance(session, str(owner), block_hash)


async def balance(session: Session, address: str, block_hash: str | None = None) -> int:
    """Return the free balance of an account, in rao; at the head without a hash."""
    account = await session.substrate.query("System", "Account", [address], block_hash=block_hash)
    return int(account["data"]["free"])


async def commits_wait(
    session: Session, netuid: int, epochs: Iterable[int], committed_in: int, block_hash: str
) -> bool:
    """Whether weights committed in block `committed_in`, in one of these epochs, still wait to be revealed."""
    for epoch in epochs:
        waiting = await session.substrate.query(
            "SubtensorModule", "TimelockedWeightCommits", [netuid, epoch], block_hash=block_hash
        )
        if any(int(commit[1]) == committed_in for commit in waiting or []):
            return True
    return False


async def epoch(session: Session, netuid: int, block_hash: str) -> int:
    """Return the number of the subnet's epoch; 0 on a runtime that does not count epochs and reveals by other rules."""
    index = await session.substrate.query("SubtensorModule", "SubnetEpochIndex", [netuid], block_hash=block_hash)
    return int(index or 0)


async def block_seconds(session: Session, block_hash: str) -> float:
    """Return the seconds between blocks according to the runtime: by Aura, or by Babe, to which subtensor is about to
    move.

    Does not use the SDK's `block_time`, which knows only Aura and keeps its value across an upgrade. Raises ChainError
    where the runtime gives no value.
    """
    substrate = session.substrate
    found = await substrate.constant("Aura", "SlotDuration")
    found = found or await _said(session, "AuraApi", "slot_duration", block_hash)
    found = found or await substrate.constant("Babe", "ExpectedBlockTime")
    if not found:
        configured = await _said(session, "BabeApi", "configuration", block_hash)
        found = configured["slot_duration"] if isinstance(configured, dict) else None
    if not found:
        raise ChainError(
            "the chain's runtime says neither by Aura nor by Babe how long a block takes, so nobody knows when sealed "
            "weights would be opened: update murmuration"
        )
    return float(found) / 1000.0


async def _said(session: Session, api: str, method: str, block_hash: str) -> Any:
    """Return the result of a runtime method; None where the runtime does not have it, or lists it without having it."""
    from bittensor.result import ChainError as Refusal

    try:
        return await session.substrate.runtime_call(api, method, [], block_hash=block_hash)
    except (ValueError, LookupError, Refusal):
        return None


async def own_slot(session: Session, netuid: int, address: str) -> tuple[int, tuple[bytes, ...]]:
    """Return block and fields of a hotkey's slot at the head; block -1 when there is none."""
    value = await session.substrate.query("Commitments", "CommitmentOf", [netuid, address])
    return (int(value["block"]), decode_fields(value["info"])) if isinstance(value, dict) else (-1, ())


async def own_update(session: Session, netuid: int, address: str) -> int:
    """Return `last_update` of a hotkey's uid at the head."""
    block_hash = await session.substrate.block_hash()
    uid = await session.substrate.query("SubtensorModule", "Uids", [netuid, address], block_hash=block_hash)
    if uid is None:
        raise ChainError(f"hotkey {address} is not registered on subnet {netuid}", code="HotKeyNotRegisteredInSubNet")
    updates = await session.substrate.query("SubtensorModule", "LastUpdate", [netuid], block_hash=block_hash)
    return int(updates[uid])
