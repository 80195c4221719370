"""Tables of run specs, by name (configs/*.toml) or from a file, as somebody wrote them: without what only one network
can know, and perhaps with `[[amendments]]`, what its owner is to publish while the run goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.spec import parse_table

FOLDER = Path(__file__).resolve().parents[1] / "configs"

WINDOWS = {"round_blocks": 72, "commit": 58, "reveal": 63, "words": 71, "finality_blocks": 3}
"""Of a table that leaves its clock open: those of the small presets."""


OF_A_CHAIN = ("chain", "netuid", "owner", "clock", "gauntlet", "amendments")
"""Tables and fields that a cluster has no use for."""


def without_chain(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a cluster's spec has of a table."""
    return {key: value for key, value in table.items() if key not in OF_A_CHAIN}


def names() -> list[str]:
    """The presets that come with this release."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def is_preset(source: str) -> bool:
    return source in names()


def table(source: str) -> dict[str, Any]:
    """The table of the preset or file `source`, ours to change. Raises ConfigError for one that is not there or cannot
    be read."""
    path = FOLDER / f"{source}.toml" if is_preset(source) else Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(f"no spec {source!r}: expected a TOML file, or one of the presets {', '.join(names())}")
    try:
        return parse_table(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{path} is neither TOML nor JSON: {fault}") from None
