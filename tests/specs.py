"""A valid run spec small enough for any test, as a table, as TOML and as a RunSpec; tests override single fields."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from murmur.protocol.spec import RunSpec

ALICE = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
"""The well-known development key //Alice."""

_TOY: dict[str, Any] = {
    "name": "toy",
    "chain": "11" * 32,
    "netuid": 1,
    "owner": ALICE,
    "genesis_checkpoint": "22" * 32,
    "local": True,
    "model": {"vocabulary": 264, "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 80, "context": 32},
    "inner": {
        "steps": 4,
        "sequences": 4,
        "peak_lr": 3e-3,
        "final_lr": 3e-4,
        "warmup_steps": 4,
        "decay_steps": 100,
    },
    "data": {"index": "33" * 32, "num_tokens": 100_001, "page_sequences": 8},
    "clock": {
        "start_block": 10,
        "round_blocks": 40,
        "commit": 20,
        "reveal": 24,
        "words": 36,
        "tempo": 200,
        "weights_rate_limit": 40,
        "block_seconds": 0.5,
    },
    "gauntlet": {"contributors": 4, "reserve": 1},
}


def toy_table(overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The toy run as a nested table; `overrides` names fields by dotted path."""
    table = deepcopy(_TOY)
    for path, value in (overrides or {}).items():
        *parents, leaf = path.split(".")
        target = table
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    return table


def toy_spec(overrides: Mapping[str, Any] | None = None) -> RunSpec:
    """The toy run; `overrides` as in `toy_table`."""
    return RunSpec.model_validate(toy_table(overrides))


def to_toml(table: Mapping[str, Any]) -> str:
    """A nested table of strings, numbers and booleans as TOML, in the table's own order."""
    lines = [f"{name} = {_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += [f"[{name}]", *(f"{field} = {_value(item)}" for field, item in value.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
