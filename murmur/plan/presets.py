"""Run specs by name or path (murmur/configs/presets.py), completed with placeholders for values that depend on the
network.

`[[amendments]]` are tables of `from_round` and `changes`. A run made here is for planning: its id, chain, owner, data
and theta_0 are placeholders.
"""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from murmur.configs import presets
from murmur.configs.presets import names as names
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.errors import ConfigError
from murmur.protocol.fields import fault_lines
from murmur.protocol.run import Amendment, Run
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import PeerId, hotkey

NO_DATA = "00" * 32
"""Stands for the index of a data set that is not known yet."""
STAND_INS: dict[str, Any] = {
    "chain": "00" * 32,
    "netuid": 0,
    "owner": hotkey(PeerId(bytes(32))),
    "genesis_checkpoint": "00" * 32,
    "data": {"index": NO_DATA, "num_tokens": 10**13},
    "clock": {"start_block": 1000},
}


def read(source: str) -> Run:
    """Return the run of the preset or TOML file `source`. Raises ConfigError for one that does not exist or is not
    valid."""
    table = presets.table(source)
    try:
        amendments = _AMENDMENTS.validate_python(table.pop("amendments", []))
        table = {"clock": presets.WINDOWS} | table
        name = source if presets.is_preset(source) else "draft"
        run = Run(RunSpec.model_validate(_completed(table, name, STAND_INS)))
        for fields in amendments:
            run = run.amended([Amendment.model_validate({"previous": run.head.hex()} | fields)])
    except ValidationError as fault:
        raise ConfigError(f"{source} is not a valid run spec:\n" + fault_lines(fault)) from None
    return run


def is_cluster(source: str) -> bool:
    """Whether the file is a cluster's spec. Raises ConfigError."""
    return "cluster" in presets.table(source)


def read_cluster(source: str) -> ClusterSpec:
    """Return the cluster's spec of the preset or file `source`; from a run on a chain, the part that a cluster uses.
    Raises ConfigError."""
    table = presets.without_chain(presets.table(source))
    return build_cluster(_completed(table, source if presets.is_preset(source) else "draft", _OF_ALL), source)


_OF_ALL = {name: STAND_INS[name] for name in ("genesis_checkpoint", "data")}
_AMENDMENTS = TypeAdapter(list[dict[str, Any]])


def _completed(table: dict[str, Any], name: str, stand_ins: dict[str, Any]) -> dict[str, Any]:
    """Return `table` with a placeholder for each field that it lacks."""
    completed = {"name": name} | table
    for field, stand_in in stand_ins.items():
        given = completed.setdefault(field, stand_in)
        if isinstance(stand_in, dict) and isinstance(given, dict):
            completed[field] = stand_in | given
    return completed
