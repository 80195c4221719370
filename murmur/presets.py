"""Run specs by name (configs/*.toml) or path, completed with stand-ins for what only one network can know.

A preset may hold `[[amendments]]`: what its owner is to publish while the run goes on, as tables of `from_round` and
`changes`. A run made here is for planning: its id, chain, owner, data and theta_0 are nobody's.
"""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from protocol.errors import ConfigError
from protocol.run import Amendment, Run
from protocol.spec import RunSpec, fault_lines, parse_table
from protocol.types import PeerId, hotkey

FOLDER = Path(__file__).resolve().parents[1] / "configs"

STAND_INS: dict[str, Any] = {
    "chain": "00" * 32,
    "netuid": 0,
    "owner": hotkey(PeerId(bytes(32))),
    "genesis_checkpoint": "00" * 32,
    "data": {"index": "00" * 32, "num_tokens": 10**13},
    "clock": {"start_block": 1000},
}
WINDOWS = {"round_blocks": 86, "commit": 44, "reveal": 50, "leader_slot": 8, "attest": 84, "finality_blocks": 3}
"""For a preset whose clock is measured on the machine: those of the small presets."""


def names() -> list[str]:
    """The presets that come with this release."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(source: str) -> Run:
    """The run of the preset or TOML file `source`. Raises ConfigError for one that is not there or not valid."""
    path = FOLDER / f"{source}.toml"
    if source not in names():
        path = Path(source).expanduser()
        if not path.is_file():
            raise ConfigError(f"no spec {source!r}: expected a TOML file, or one of the presets {', '.join(names())}")
    try:
        table = parse_table(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{path} is neither TOML nor JSON: {fault}") from None
    try:
        amendments = _AMENDMENTS.validate_python(table.pop("amendments", []))
        run = Run(RunSpec.model_validate(_completed(table, path.stem if path.parent == FOLDER else "draft")))
        for fields in amendments:
            run = run.amended([Amendment.model_validate({"previous": run.head.hex()} | fields)])
    except ValidationError as fault:
        raise ConfigError(f"{path} is not a valid run spec:\n" + fault_lines(fault)) from None
    return run


_AMENDMENTS = TypeAdapter(list[dict[str, Any]])


def _completed(table: dict[str, Any], name: str) -> dict[str, Any]:
    """`table` with a stand-in for each field that it lacks."""
    completed = {"name": name, "clock": WINDOWS, "data": {}} | table
    for field, stand_in in STAND_INS.items():
        given = completed.setdefault(field, stand_in)
        if isinstance(stand_in, dict) and isinstance(given, dict):
            completed[field] = stand_in | given
    return completed
