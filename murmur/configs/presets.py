"""Tables of run specs as written, by name (murmur/configs/*.toml) or from a file. They lack values that depend on the
network, and may have `[[amendments]]` for the owner to publish during the run."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from murmur.homes import expanded
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import parse_table

FOLDER = Path(str(files("murmur.configs")))

WINDOWS = {"round_blocks": 72, "commit": 58, "reveal": 63, "words": 71, "finality_blocks": 3}
"""The windows of a table without a clock: those of the small presets."""


OF_A_CHAIN = ("chain", "netuid", "owner", "clock", "gauntlet", "amendments")
"""Tables and fields that a cluster does not use."""


def without_chain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a table that a cluster's spec uses."""
    return {key: value for key, value in table.items() if key not in OF_A_CHAIN}


def names() -> list[str]:
    """Return the names of this release's presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def is_preset(source: str) -> bool:
    return source in names()


def table(source: str) -> dict[str, Any]:
    """Return the table of the preset or file `source`; the caller may change it. Raises ConfigError for one that does
    not exist or cannot be read."""
    path = FOLDER / f"{source}.toml" if is_preset(source) else expanded(source)
    if not path.is_file():
        raise ConfigError(f"no spec {source!r}: expected a TOML file, or one of the presets {', '.join(names())}")
    try:
        return parse_table(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{path} is neither TOML nor JSON: {fault}") from None
