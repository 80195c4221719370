"""NodeConfig: one operator's settings for one node. Consensus constants are in murmur/protocol/spec.py, never here.

Sources, strongest first: flags (`--wallet.name`), environment (`MURMUR_WALLET__NAME`; for wallet, network and netuid
also btcli's `BT_WALLET_NAME`, `BT_NETWORK`, ...), the TOML file named by `--config`. Secrets come from environment or
file only: every user of the machine can read argv.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from murmur import files
from murmur.homes import expanded
from murmur.node.config.settings_sources import (
    BTCLI,
    PREFIX,
    environment_values,
    file_values,
    flat,
    is_secret,
    leaves,
    values,
    variable_of,
)
from murmur.protocol.errors import ConfigError, DiskFull
from murmur.protocol.fields import fault_lines

_KEY = "access_key", "secret_key"
READ_KEY = " and ".join(variable_of(f"bucket.read_{part}") for part in _KEY)
WRITE_KEY = " and ".join(variable_of(f"bucket.{part}") for part in _KEY)
PUBLIC_URL = variable_of("bucket.public_url")


def _listed(said: Any) -> Any:
    """Split a comma-separated flag or variable into a list; "none" is the empty list."""
    return [part.strip() for part in said.split(",") if part.strip() != "none"] if isinstance(said, str) else said


Archives = Annotated[
    tuple[Annotated[str, Field(pattern=r"^wss?://[^\s,]+$")], ...] | None,
    BeforeValidator(_listed),
    Field(
        description="ws(s):// URLs of archive nodes, asked for state that the chain's node has pruned; none: use no "
        "archive; default: the public ones of a named network"
    ),
]
"""We take block hashes from our own chain node only. An archive could lie about a block's state, since nothing is
proved."""


def _chain(said: str) -> str:
    """Check a network's URL; the SDK knows the names."""
    if "://" in said:
        try:
            parts = urlsplit(said)
            usable = parts.scheme in ("ws", "wss") and parts.hostname is not None and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("expected ws://HOST:PORT or wss://HOST; an IPv6 address is written ws://[::1]:9944")
    return said


def plain_key(said: str) -> str:
    """Return a bucket's key without a line's end. Raises ValueError for what is none."""
    said = said.strip()
    if not said.isascii() or not said.isprintable() or " " in said:
        raise ValueError("a key has printable ASCII characters and no blanks: copy it again from the provider's page")
    return said


Network = Annotated[str, AfterValidator(_chain), Field(description="finney, test, local or a ws(s):// URL")]
Key = Annotated[str, AfterValidator(plain_key)]
Secret = Annotated[SecretStr, AfterValidator(lambda said: SecretStr(plain_key(said.get_secret_value())))]


class _Table(BaseModel):
    # A line's end comes with what is read from files: $(cat secret), or an orchestrator's.
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class WalletConfig(_Table):
    """A Bittensor wallet. Only the hotkey is needed to run a node; keep the coldkey off the machine."""

    name: Annotated[str, Field(description="wallet name; create one with `btcli wallet create`")]
    hotkey: Annotated[str, Field(description="hotkey name within the wallet")] = "default"
    path: Annotated[Path, Field(description="folder of the wallets")] = Path("~/.bittensor/wallets")


class BucketConfig(_Table):
    """This node's own bucket: a read-write key that stays here, and the published part: a read-only key, or the address
    of a public bucket."""

    endpoint: Annotated[str, Field(description="S3 endpoint; for R2 https://ACCOUNT_ID.r2.cloudflarestorage.com")]
    name: Annotated[str, Field(description="bucket name; one bucket per hotkey")]
    access_key: Annotated[Key, Field(description="access key id of the read-write token")]
    secret_key: Annotated[Secret, Field(description="secret of the read-write token (environment or file)")]
    read_access_key: Annotated[
        Key | None, Field(description="access key id of the read-only token, published on chain")
    ] = None
    read_secret_key: Annotated[
        Secret | None, Field(description="secret of the read-only token, published on chain")
    ] = None
    public_url: Annotated[
        str | None,
        Field(description="of a public bucket, instead of a read-only token: https://HOST before its objects' keys"),
    ] = None

    def model_post_init(self, context: Any) -> None:
        published = self.read_access_key, self.read_secret_key
        if (None in published) if self.public_url is None else any(published):
            raise ValueError(f"give either both of {READ_KEY} (a read-only token) or {PUBLIC_URL} (a public bucket)")
        for name, ours, theirs in zip(_KEY, (self.access_key, self.secret_key), published, strict=True):
            if ours == theirs:
                raise ValueError(
                    f"{variable_of(f'bucket.{name}')} and {variable_of(f'bucket.read_{name}')} are the same, "
                    "and the second one is published on chain: create a read-only token for this bucket, and "
                    "use that as the second"
                )


class MinerConfig(_Table):
    """Settings of a miner only."""

    speculate: Annotated[
        bool,
        Field(
            description="miners: start a round from the expected selection of the one before, and correct it if it was "
            "wrong; without it the GPUs wait for the decision"
        ),
    ] = True


class MachineConfig(_Table):
    """A node's machine: its disk and its processors."""

    data: Annotated[
        Path | None, Field(description="folder of tokenised shards; default: fetched into home from the run's bucket")
    ] = None
    data_gigabytes: Annotated[
        float,
        Field(
            gt=0, description="most disk for fetched shards, in 10^9 bytes; shards that were unused longest are deleted"
        ),
    ] = 100.0
    home: Annotated[Path, Field(description="folder of this node's state; one per hotkey or member")] = Path(
        "~/.murmur"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to train")] = "auto"
    codec: Annotated[
        Literal["auto", "native", "reference"],
        Field(description="codec backend; auto: native if it is built (same bytes, dozens of times faster)"),
    ] = "auto"


class NetworkConfig(MachineConfig):
    """Where a run is: its chain, its subnet, its spec, its data. Enough for a program that only reads."""

    network: Network = "finney"
    netuid: Annotated[int, Field(ge=0, description="the subnet of the run")]
    owner: Annotated[
        str | None,
        Field(description="SS58 hotkey of the run's owner, whose slot on chain names the run (or --spec FILE)"),
    ] = None
    spec: Annotated[Path | None, Field(description="the run's spec as a TOML or JSON file, instead of --owner")] = None
    archives: Archives = None
    call_timeout_seconds: Annotated[float, Field(gt=0, description="hard time-out of one chain call")] = 60.0

    def model_post_init(self, context: Any) -> None:
        if (self.owner is None) == (self.spec is None):
            raise ValueError("give exactly one of owner (the run owner's hotkey) and spec (a file)")


class TrackConfig(_Table):
    """Where a node's numbers are shown, besides its own page and metrics."""

    to: Annotated[
        Literal["wandb", "tensorboard", "trackio"] | None,
        Field(description="tracker of losses, phases and pay (the extra `track`); default: none"),
    ] = None
    project: Annotated[str | None, Field(description="its project; default: the run's name")] = None


class TelemetryConfig(_Table):
    """Logs and metrics of a node, and where they go."""

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], Field(description="least severe log line")] = (
        "INFO"
    )
    metrics_port: Annotated[
        int | None, Field(ge=1, le=65535, description="port for Prometheus' scrapes at /metrics; default: none")
    ] = None
    metrics_address: Annotated[str, Field(description="address to listen at for scrapes; 0.0.0.0 for all")] = (
        "127.0.0.1"
    )
    track: TrackConfig = TrackConfig()


class NodeConfig(TelemetryConfig, NetworkConfig):
    """Everything that a miner or a validator needs to know before it finds the run."""

    wallet: WalletConfig
    bucket: BucketConfig
    miner: MinerConfig = MinerConfig()


class ClusterConfig(TelemetryConfig, MachineConfig):
    """Everything that a cluster's member needs to know before it finds the run; its token holds the rest."""

    token_file: Annotated[Path, Field(description="file with the cluster's token (murmur cluster invite)")]
    name: Annotated[
        str,
        Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="this machine's name, for people: a-z, 0-9 and '-'"),
    ]


class HotkeyConfig(_Table):
    """A hotkey on a subnet: enough to draft a run for it."""

    network: Network = "finney"
    netuid: Annotated[int, Field(ge=0, description="the subnet of the run")]
    wallet: WalletConfig
    archives: Archives = None
    call_timeout_seconds: Annotated[float, Field(gt=0, description="hard time-out of one chain call")] = 60.0


class OwnerConfig(HotkeyConfig):
    """Settings with which the owner of a run publishes it."""

    bucket: BucketConfig


Part = TypeVar("Part", bound=BaseModel)
"""A model whose fields are some of NodeConfig's."""


def load(program: str, summary: str, argv: Sequence[str], environment: Mapping[str, str]) -> NodeConfig:
    """Load the configuration from flags, environment and file. Raises ConfigError that lists every missing or bad value
    with where to get it; exits 0 after --help."""
    fields = dict(leaves(NodeConfig))
    table = values(fields, _flags(NodeConfig, program, summary, argv), environment)
    try:
        return NodeConfig.model_validate(table)
    except ValidationError as fault:
        raise ConfigError(_explain(program, fault, fields, table)) from None


def load_cluster(program: str, summary: str, argv: Sequence[str], environment: Mapping[str, str]) -> ClusterConfig:
    """Load a cluster member's settings in the same way. Settings of a node on a chain, or of the owner's commands, are
    ignored: on the machine that created the run, the bucket's secret may be in the environment."""
    return load_part(ClusterConfig, program, _flags(ClusterConfig, program, summary, argv), environment)


def load_network(program: str, flags: Mapping[str, Any], environment: Mapping[str, str]) -> NetworkConfig:
    """Load a network's settings, for a program that only reads."""
    return load_part(NetworkConfig, program, flags, environment)


def load_part(model: type[Part], program: str, flags: Mapping[str, Any], environment: Mapping[str, str]) -> Part:
    """Load some of a node's settings, from `flags` (by name; `config` is a file), environment and file, so that a
    node's own file will do. Other settings are ignored. Raises ConfigError."""
    fields = dict(leaves(model))
    table = values(dict(leaves(NodeConfig)) | fields, dict(flags), environment)
    try:
        return model.model_validate({name: value for name, value in table.items() if name in model.model_fields})
    except ValidationError as fault:
        raise ConfigError(_explain(program, fault, fields, table)) from None


def given(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return every given setting of a node by its dotted name, not yet validated. Raises ConfigError."""
    return dict(flat(values(dict(leaves(NodeConfig)), dict(flags), environment)))


def required(model: type[BaseModel]) -> dict[str, str]:
    """Return dotted name -> description of every setting without a default, and of a read-only token's two parts."""
    return {name: text for name, text in leaves(model) if _default(name) is _NONE or name in _READ_TOKEN}


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Add --config, and a flag for every setting except secrets. Flags that are not given are absent afterwards."""
    parser.add_argument(
        "--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML file with any of the values below"
    )
    for name, description in leaves(model):
        if not is_secret(name):
            parser.add_argument(
                *dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")),
                dest=name,
                metavar="X",
                default=argparse.SUPPRESS,
                help=description.replace("%", "%%"),
            )


def flags_in(options: argparse.Namespace, model: type[BaseModel]) -> dict[str, Any]:
    """Return the values of `add_flags`' flags."""
    names = ("config", *(name for name, _ in leaves(model)))
    return {name: value for name, value in vars(options).items() if name in names}


def load_home(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Path:
    """Return the folder of the state of a node or a cluster's member, by the same flags, environment and file; it may
    not exist."""
    known = dict(leaves(NodeConfig)) | dict(leaves(ClusterConfig))
    said = values(known, dict(flags), environment).get("home", NodeConfig.model_fields["home"].default)
    return expanded(str(said))


def settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (name, value, origin) of every setting of a node, as it would be used. Secrets are masked. Raises
    ConfigError for a file or variable that cannot be read."""
    fields, given = dict(leaves(NodeConfig)), dict(flags)
    file = given.pop("config", None) or environment.get("MURMUR_CONFIG")
    from_file = dict(flat(file_values(Path(file)))) if file else {}
    variables = {name: variable_of(name) for name in fields} | {
        name: variable
        for variable, name in BTCLI.items()
        if not environment.get(variable_of(name)) and environment.get(variable)
    }
    from_environment = environment_values(fields, environment)
    found = []
    for name in [*fields, *(name for name in from_file if name not in fields)]:
        if name in given:
            value, origin = given[name], f"--{name}"
        elif name in from_environment:
            value, origin = from_environment[name], variables[name]
        elif name in from_file:
            value, origin = from_file[name], str(file) if name in fields else f"{file}: no such setting"
        else:
            default = _default(name)
            value, origin = None if default is _NONE else default, "default"
        # An unknown name may be a misspelt secret, so its value is masked too.
        masked = value is not None and (is_secret(name) or name not in fields)
        found.append((name, "********" if masked else "-" if value is None else str(value), origin))
    return found


_NONE = object()
"""Marks a setting without a default."""


def _default(name: str) -> Any:
    model: type[BaseModel] = NodeConfig
    *parents, leaf = name.split(".")
    for parent in parents:
        model = model.model_fields[parent].annotation  # type: ignore[assignment]
    value = model.model_fields[leaf]
    return _NONE if value.is_required() else value.default


def _flags(model: type[BaseModel], program: str, summary: str, argv: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog=program,
        description=summary,
        epilog="Every flag can be in the TOML file of --config, or in the environment as MURMUR_<NAME> with two "
        "underscores for each dot (MURMUR_BUCKET__SECRET_KEY). Secrets: environment or file only.",
        allow_abbrev=False,
    )
    add_flags(parser, model)
    named = (word.split("=")[0].replace("-", "_") for word in argv if word.startswith("--"))
    if any(name.endswith("secret_key") for name in named):
        raise ConfigError(
            "a secret is on the command line, where every user of this machine can read it: revoke it, then "
            f"give the new one as {PREFIX}BUCKET__SECRET_KEY or in the file of --config"
        )
    return vars(parser.parse_args(list(argv)))


def _explain(program: str, fault: ValidationError, fields: Mapping[str, str], table: Mapping[str, Any]) -> str:
    missing: list[str] = []
    for error in fault.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in error["loc"])
        if error["type"] == "missing":
            missing += [name for name in fields if name == where or name.startswith(where + ".")]
    required = [name for name in missing if name not in _DEFAULTED]
    if "bucket.name" in fields and not table.get("bucket"):
        required += [name for part in _KEY if (name := f"bucket.read_{part}") in fields]
    if "owner" in fields and not table.get("owner") and not table.get("spec"):
        required.append("owner")
    lines = []
    if required:
        width = max(len(name) for name in required)
        lines.append(f"{program} is not configured yet. Missing:")
        for name in required:
            how = variable_of(name) if is_secret(name) else f"--{name}"
            lines.append(f"  {name:<{width}}  {fields[name]} [{how}]")
    others = []
    for line, error in zip(fault_lines(fault).splitlines(), fault.errors(include_url=False), strict=True):
        if error["type"] == "extra_forbidden":
            others.append(_unknown(line.partition(":")[0], error["loc"], fields))
        elif error["type"] != "missing":
            others.append(line)
    if others:
        lines += ["Not valid:", *others]
    page, trial = ("run-a-miner", "localnet") if "token_file" not in fields else ("cluster", "cluster demo")
    lines.append(
        f"Give them as flags, in the environment or in a TOML file (`{program} --help`); docs/{page}.md has a "
        f"walk-through. To try everything on this machine without any account: murmur {trial}"
    )
    return "\n".join(lines)


def _unknown(shown: str, where: Sequence[int | str], fields: Mapping[str, str]) -> str:
    """Return the error line for an unknown name, with the nearest name of its table, or the same name in another
    one."""
    *tables, name = (str(part) for part in where)
    prefix = "".join(f"{table}." for table in tables)
    there = {field.removeprefix(prefix).split(".")[0] for field in fields if field.startswith(prefix)}
    near = [prefix + close for close in get_close_matches(name, sorted(there), n=1, cutoff=0.6)]
    near += [field for field in fields if field == name or field.endswith(f".{name}")]
    return f"{shown}: no such setting" + (f"; did you mean {near[0]}?" if near else "")


_READ_TOKEN = {f"bucket.read_{part}" for part in _KEY}
_DEFAULTED = {"wallet.hotkey", "wallet.path", "bucket.public_url", *_READ_TOKEN}


def home(config: NetworkConfig | ClusterConfig) -> Path:
    """Create the node's state folder, readable by its owner only (it holds sealing keys)."""
    path = expanded(config.home)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as fault:
        raise (DiskFull if files.is_full(fault) else ConfigError)(
            f"cannot create the state folder {path}: {fault.strerror}; choose another --home"
        ) from None
    if not os.access(path, os.W_OK, effective_ids=True):
        owner, user = path.stat().st_uid, os.geteuid()
        fix = "fix its permissions"
        if owner != user:
            fix = f"it belongs to uid {owner}, and this user is uid {user} (of a container: docker/README.md, state)"
        raise ConfigError(f"the state folder {path} is not writable; {fix}, or choose another --home")
    return path
