"""Raw settings from flags, environment and file, merged by precedence, not yet validated.

Names are dotted (`wallet.name`); the models of murmur/node/config/settings.py define them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from murmur.homes import expanded
from murmur.protocol.errors import ConfigError

PREFIX = "MURMUR_"
BTCLI = {
    "BT_WALLET": "wallet.name",
    "BT_WALLET_NAME": "wallet.name",
    "BT_WALLET_HOTKEY": "wallet.hotkey",
    "BT_WALLET_PATH": "wallet.path",
    "BT_NETWORK": "network",
    "BT_NETUID": "netuid",
}
_NOT_OURS = {"MURMUR_FUZZ_CASES", "MURMUR_CACHE"}
_LINK = re.compile(
    r"_SERVICE_HOST=|_SERVICE_PORT(_[A-Z0-9_]+)?=|_PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?=|"
    r"_PORT=(tcp|udp|sctp)://"
)
"""Of an orchestrator: Kubernetes and Docker's links set such variables for a service that is called murmur-something,
and even MURMUR_METRICS_PORT=tcp://.. for one called murmur-metrics."""


def variable_of(name: str) -> str:
    """The environment variable of a setting: `bucket.name` as MURMUR_BUCKET__NAME."""
    return PREFIX + name.replace(".", "__").upper()


def is_secret(name: str) -> bool:
    """Whether a setting, by its dotted name, is a secret: never shown, saved or given as a flag."""
    return name.endswith("secret_key")


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value of a nested table, by its dotted name."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def values(fields: Mapping[str, str], flags: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return all given values as a nested table, not yet validated. Precedence: flags, environment, file."""
    file = flags.pop("config", None) or environment.get("MURMUR_CONFIG")
    table: dict[str, Any] = {}
    if file:
        _merge(table, file_values(Path(file)))
    for name, value in environment_values(fields, environment).items():
        _assign(table, name, value)
    for name, value in flags.items():
        _assign(table, name, value)
    return table


def leaves(model: type[BaseModel], prefix: str = "") -> "list[tuple[str, str]]":
    """Return (dotted name, description) of every single setting."""
    found: list[tuple[str, str]] = []
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found += leaves(info.annotation, f"{prefix}{name}.")
        else:
            found.append((prefix + name, info.description or ""))
    return found


def file_values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(expanded(path).read_text(encoding="utf-8-sig"))
    except OSError as fault:
        raise ConfigError(f"cannot read the configuration file {path}: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {fault}") from None


def environment_values(fields: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    values = {name: _unquoted(variable, environment) for variable, name in BTCLI.items() if environment.get(variable)}
    known = {variable_of(name): name for name in fields}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in _NOT_OURS or variable == "MURMUR_CONFIG":
            continue
        if _LINK.search(f"{variable}={value}"):
            continue
        if variable not in known:
            close = get_close_matches(variable, known, n=1, cutoff=0.8)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"the environment has {variable}, which is not a setting{hint}")
        if value:
            values[known[variable]] = _unquoted(variable, environment)
    return values


def _unquoted(variable: str, environment: Mapping[str, str]) -> str:
    value = environment[variable]
    if value[0] in "\"'" and value.rstrip().endswith(value[0]):
        raise ConfigError(
            f"{variable} has quotation marks around its value, which some readers of env files keep: leave them out"
        )
    return value


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _assign(table: dict[str, Any], name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        nested = table.setdefault(parent, {})
        if not isinstance(nested, dict):
            nested = table[parent] = {}
        table = nested
    table[leaf] = value
