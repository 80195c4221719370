"""The commitment slot: one per hotkey and subnet, overwritten by each post, with the real runtime's quota.

Source: subtensor's pallet_commitments: at most 3 fields, `MaxSpace` (3100) bytes of fields per hotkey and epoch, each
post counted as at least 100. A Raw field holds up to 128 bytes, a BigRaw field up to 512.
"""

from typing import Any

from murmur.lab.devnet.call import Call
from murmur.lab.devnet.codec import read_compact

MAX_FIELDS = 3
MAX_BIG_RAW_BYTES = 512
MIN_CHARGED_BYTES = 100
_CALL_HEAD_BYTES = 4  # pallet, call, netuid
_TIMELOCKED = ("TimelockEncrypted", "TimelockRevealFailed")
_COUNTED = ("BigRaw", *_TIMELOCKED)
_HASHES = ("BlakeTwo256", "Sha256", "Keccak256", "ShaThree256")


def set_commitment(call: Call, netuid: int, info: dict[str, Any]) -> None:
    who, storage = call.signer(), call.storage
    registered = bool(storage.get("NetworksAdded", netuid)) and storage.get("Uids", netuid, who) is not None
    call.ensure(registered, "AccountNotAllowedCommit", "Commitments")
    variants = _variants(info)
    call.ensure("TimelockRevealFailed" not in variants, "TimelockRevealFailedNotAllowed", "Commitments")
    call.ensure("TimelockEncrypted" not in variants, "CallFiltered", "System")  # the devnet could never reveal it
    # Sizes and bytes come from the call: decoded values are ambiguous between text and hex.
    encoded = call.raw[_CALL_HEAD_BYTES:]
    charged = max(MIN_CHARGED_BYTES, sum(_field_sizes(variants, encoded)))
    epoch = storage.get("SubnetEpochIndex", netuid)
    usage = storage.get("Commitments.UsedSpaceOf", netuid, who)
    used = usage["used_space"] if usage and usage["last_epoch"] == epoch else 0
    call.ensure(used + charged <= storage.get("Commitments.MaxSpace"), "SpaceLimitExceeded", "Commitments")
    storage.put("Commitments.UsedSpaceOf", netuid, who, value={"last_epoch": epoch, "used_space": used + charged})
    deposit, block = bytes(8), call.block.to_bytes(4, "little")
    storage.put_raw("Commitments.CommitmentOf", netuid, who, value=deposit + block + encoded)
    storage.put("Commitments.LastCommitment", netuid, who, value=call.block)
    call.events.emit("Commitments", "Commitment", {"netuid": netuid, "who": who})


def check_bounds(info: dict[str, Any], raw: bytes) -> None:
    """Raise ValueError for a set_commitment that the real runtime could not decode: its vectors are bounded, which the
    metadata does not state."""
    variants = _variants(info)
    if len(variants) > MAX_FIELDS:
        raise ValueError(f"BoundedVec exceeds its limit: {len(variants)} fields, at most {MAX_FIELDS}")
    longest = max(_field_sizes(variants, raw[_CALL_HEAD_BYTES:]), default=0)
    if longest > MAX_BIG_RAW_BYTES:
        raise ValueError(f"BoundedVec exceeds its limit: a field of {longest} bytes, at most {MAX_BIG_RAW_BYTES}")


def _variants(info: dict[str, Any]) -> list[str]:
    return [field if isinstance(field, str) else next(iter(field)) for field in info["fields"]]


def _field_sizes(variants: list[str], encoded: bytes) -> list[int]:
    """Return the bytes that each field holds, given their encoding as a vector of enums (already decoded, so
    well-formed)."""
    sizes: list[int] = []
    _count, at = read_compact(encoded, 0)
    for variant in variants:
        at += 1
        if variant in _COUNTED:
            size, at = read_compact(encoded, at)
        elif variant in _HASHES:
            size = 32
        else:
            size = int(variant[3:]) if variant.startswith("Raw") else 0
        sizes.append(size)
        at += size + (8 if variant in _TIMELOCKED else 0)  # the round that they open at
    return sizes
