"""SCALE encoding and decoding by the pinned runtime metadata: keys, values, calls, events, errors.

A thin, typed wrapper of the SDK's native codec (`bittensor_core`), the same code that the client uses, so both ends
agree by construction. Decoded values are plain Python (accounts as SS58 strings, enums as names or one-entry dicts).
Knows nothing of state or rules.
"""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from murmur.lab.devnet.metadata import SPEC_VERSION, TRANSACTION_VERSION
from murmur.protocol.types import SS58_FORMAT

DEFAULT_PALLET = "SubtensorModule"


@dataclass(frozen=True, slots=True)
class Item:
    """One storage item of the runtime."""

    pallet: str
    name: str
    value_type: str
    default: bytes | None
    """Encoded value of an absent entry; None for Optional items, whose absence has its own meaning."""


def compact(value: int) -> bytes:
    """Return the SCALE compact encoding of a non-negative integer below 2**536."""
    if value < 1 << 6:
        return bytes([value << 2])
    if value < 1 << 14:
        return (value << 2 | 1).to_bytes(2, "little")
    if value < 1 << 30:
        return (value << 2 | 2).to_bytes(4, "little")
    size = (value.bit_length() + 7) // 8
    return bytes([(size - 4) << 2 | 3]) + value.to_bytes(size, "little")


def read_compact(data: bytes, offset: int) -> tuple[int, int]:
    """Return (value, next offset). Raises ValueError when the data ends too early."""
    mode = data[offset] & 3 if offset < len(data) else 0
    first, size = (offset + 1, (data[offset] >> 2) + 4) if mode == 3 else (offset, 1 << mode)
    if first + size > len(data) or offset >= len(data):
        raise ValueError(f"compact integer at byte {offset} runs past the end ({len(data)} bytes)")
    value = int.from_bytes(data[first : first + size], "little")
    return (value if mode == 3 else value >> 2), first + size


class Codec:
    """The runtime's types. Stateless except for caches; one instance serves the whole process."""

    def __init__(self, metadata: bytes) -> None:
        # Untyped native module, loaded on use: `--help` must not pay for it.
        self._core = importlib.import_module("bittensor_core")
        self._runtime = self._core.Runtime(metadata, SPEC_VERSION, TRANSACTION_VERSION, SS58_FORMAT)
        self._errors = {
            (pallet["name"], error["name"]): {"index": pallet["index"], "error": [error["index"], 0, 0, 0]}
            for pallet in self._runtime.metadata_ir()["pallets"]
            for error in pallet["errors"]
        }
        self.item: Callable[[str], Item] = lru_cache(maxsize=None)(self._item)
        """A storage item by "Pallet.Item"; without a dot it is one of SubtensorModule. Unknown names are a bug."""
        self.key: Callable[..., bytes] = lru_cache(maxsize=1 << 14)(self._key)
        """Storage key of an entry by its item's name and params; the prefix when given fewer params than the map
        has."""
        self.field_names: Callable[[str], list[str]] = lru_cache(maxsize=None)(self._field_names)
        """Names of the fields, in order, of the struct inside an Option type such as a runtime API's output."""
        self._events_type = self.item("System.Events").value_type
        self.apis: dict[str, dict[str, Any]] = self._runtime.runtime_api_map()

    def _item(self, name: str) -> Item:
        pallet, item = split(name)
        entry = self._runtime.storage_entry(pallet, item)
        default = bytes(entry.default_bytes) if entry.modifier == "Default" else None
        return Item(pallet, item, entry.value_type, default)

    def _key(self, name: str, *params: Any) -> bytes:
        pallet, item = split(name)
        return bytes(self._runtime.storage_key(pallet, item, list(params)))

    def encode(self, type_string: str, value: Any) -> bytes:
        return b"\x00" if value is None else bytes(self._runtime.encode(type_string, value))

    def decode(self, type_string: str, data: bytes) -> Any:
        """Decode exactly one value. Raises ValueError for other bytes."""
        return self._runtime.decode(type_string, data, True)

    def encode_value(self, name: str, value: Any) -> bytes:
        return self.encode(self.item(name).value_type, value)

    def decode_value(self, name: str, raw: bytes | None) -> Any:
        """Return an entry's value; for an absent one its default, or None for an Optional item."""
        item = self.item(name)
        data = item.default if raw is None else raw
        return None if data is None else self.decode(item.value_type, data)

    def compose_call(self, module: str, function: str, params: dict[str, Any]) -> bytes:
        return bytes(self._runtime.compose_call(module, function, params))

    def decode_call(self, data: bytes) -> dict[str, Any]:
        """Return {"call_module", "call_function", "call_args": [{"name", "value"}]}. Raises ValueError for anything
        else."""
        decoded: dict[str, Any] = self._runtime.decode_call(data)
        return decoded

    def encode_events(self, events: list[dict[str, Any]]) -> bytes:
        return self.encode(self._events_type, events)

    def module_error(self, pallet: str, name: str) -> dict[str, Any]:
        """Return the DispatchError value of a pallet's error, by its name in the metadata."""
        return {"Module": self._errors[pallet, name]}

    def _field_names(self, option: str) -> list[str]:
        types = {entry["id"]: entry["type"] for entry in json.loads(self._runtime.registry_json())["types"]}
        inner = types[int(option.removeprefix("scale_info::"))]["params"][0]["type"]
        return [field["name"] for field in types[inner]["def"]["composite"]["fields"]]

    def verify(self, public_key: bytes, scheme: int, message: bytes, signature: bytes) -> bool:
        """Whether `signature` over `message` is that of the key. `scheme`: 0 ed25519, 1 sr25519."""
        keypair = self._core.Keypair(public_key=public_key, crypto_type=scheme)
        return bool(keypair.verify(message, signature))


def split(name: str) -> tuple[str, str]:
    pallet, _, item = name.rpartition(".")
    return pallet or DEFAULT_PALLET, item
