"""Commitment slots: conversion between bytes and the SDK's decoded values.

`Commitments.set_commitment` takes at most 3 fields, each a variant of `Data`: Raw0 .. Raw128, whose name must equal the
length exactly, or BigRaw up to 512 bytes. Source: subtensor, pallets/commitments; bittensor 11.3.
"""

from typing import Any

from murmur.protocol.messages import parse_slot
from murmur.protocol.types import Slot

MAX_FIELDS = 3
RAW_MAX_BYTES = 128
BIG_RAW_MAX_BYTES = 512


def encode_fields(fields: tuple[bytes, ...]) -> dict[str, Any]:
    """Return the `info` argument of set_commitment. ValueError for fields that the pallet cannot take: a bug of the
    caller."""
    if not 1 <= len(fields) <= MAX_FIELDS:
        raise ValueError(f"{len(fields)} fields in a commitment slot, 1 to {MAX_FIELDS} fit")
    return {"fields": [[_encode(field) for field in fields]]}


def decode_fields(info: Any) -> tuple[bytes, ...]:
    """Return the bytes of each field, in order. A field without raw bytes (a hash, a timelocked value) reads as empty:
    it keeps its place and is never parsed as a message."""
    entries = info.get("fields", []) if isinstance(info, dict) else []
    if len(entries) == 1 and isinstance(entries[0], list | tuple):  # some runtimes decode the newtype as one more list
        entries = entries[0]
    return tuple(_decode(entry) for entry in entries)


def decode_slot(registration: Any) -> Slot | None:
    """Return a value of `Commitments.CommitmentOf` as a Slot; None when the hotkey has posted nothing."""
    if not isinstance(registration, dict):
        return None
    return parse_slot(int(registration["block"]), decode_fields(registration.get("info")))


def _encode(field: bytes) -> dict[str, bytes]:
    if len(field) <= RAW_MAX_BYTES:
        return {f"Raw{len(field)}": field}
    if len(field) <= BIG_RAW_MAX_BYTES:
        return {"BigRaw": field}
    raise ValueError(f"a commitment field of {len(field)} bytes, at most {BIG_RAW_MAX_BYTES} fit")


def _decode(entry: Any) -> bytes:
    if not isinstance(entry, dict) or len(entry) != 1:
        return b""
    ((variant, value),) = entry.items()
    if not variant.startswith("Raw") and variant != "BigRaw":
        return b""
    return raw_bytes(value)


def raw_bytes(value: Any) -> bytes:
    """Return the bytes of a decoded vector of bytes.

    The SDK returns text when the bytes are UTF-8 and hex otherwise, so text that itself looks like hex reads as the
    bytes it spells. (Raw<n> is always hex.) Every node reads a slot so, and the result is a function of the bytes on
    chain: a peer only gains a second spelling of its own slot.
    """
    if not isinstance(value, str):
        return bytes(value)
    if not value.startswith("0x"):
        return value.encode()
    try:
        return bytes.fromhex(value[2:])
    except ValueError:
        return value.encode()
