"""Shared parts of the owner's commands: settings, prompted for at a terminal, and progress."""

import os
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getpass
from pathlib import Path
from shlex import join
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from murmur.homes import expanded
from murmur.node.config import settings
from murmur.node.config.adapters import connect, open_ports
from murmur.node.config.ports import Ports
from murmur.node.config.settings import HotkeyConfig, NetworkConfig, OwnerConfig
from murmur.node.config.settings_sources import flat, is_secret
from murmur.owner.folder import OWNER, RunFolder
from murmur.owner.publish import Tell
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import hotkey

Settings = TypeVar("Settings", bound=HotkeyConfig)


def say(line: str = "") -> None:
    """Print a line of output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def command(options: Namespace, *words: str | Path) -> str:
    """`murmur run WORDS` for the owner to copy: with the same --config as this command."""
    config = ["--config", options.config] if getattr(options, "config", None) else []
    return join(["murmur", "run", *map(str, [*words, *config])])


def somebody_is_there() -> bool:
    """Whether there is a terminal to prompt at."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, default: str = "", *, secret: bool = False) -> str:
    """Prompt for a non-empty answer. Only with a terminal."""
    prompt = f"{question} [{default}]: " if default else f"{question}: "
    while True:
        if secret:
            try:
                answer = getpass(prompt)
            except EOFError:
                raise ConfigError(f"no answer to: {question}") from None
        else:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                raise ConfigError(f"no answer to the question: {question}")
            answer = line
        if answer.strip() or default:
            return answer.strip() or default


def agreed_to(question: str, *, yes: bool) -> bool:
    """Whether to continue: by --yes, or by an answer. Raises ConfigError without a terminal."""
    if yes:
        return True
    if not somebody_is_there():
        raise ConfigError(f"nothing was published: there is no terminal to ask ({question}). To confirm, use --yes")
    return ask(f"{question} (yes/no)", "no").lower() in ("y", "yes")


def owner_settings(model: type[Settings], options: Namespace, folder: Path, *, ahead: bool = False) -> Settings:
    """Return the owner's settings: from flags, environment, the file of --config, the folder's owner.toml, then prompts
    at a terminal. `ahead`: prompt for the bucket too, which is needed later, but for no secret. Raises ConfigError."""
    known = settings.given(settings.flags_in(options, OwnerConfig), os.environ)
    for name, value in _kept(folder / OWNER).items():
        if name not in known:
            setattr(options, name, value)
    known = settings.given(settings.flags_in(options, OwnerConfig), os.environ)
    if somebody_is_there():
        for name, description in settings.required(OwnerConfig if ahead else model).items():
            instead = "bucket.public_url" in known and name.startswith("bucket.read_")
            if name not in known and not instead and not (ahead and is_secret(name)):
                setattr(options, name, ask(f"{name} ({description})", secret=is_secret(name)))
    return settings.load_part(
        model, f"murmur run {options.action}", settings.flags_in(options, OwnerConfig), os.environ
    )


def keep(options: Namespace, answered: HotkeyConfig) -> dict[str, str]:
    """Return the settings to keep in the folder: all given ones, without secrets."""
    found = settings.given(settings.flags_in(options, OwnerConfig), os.environ)
    names = dict.fromkeys(settings.required(OwnerConfig)) | dict.fromkeys(
        ("network", "wallet.hotkey", "wallet.path", "bucket.public_url")
    )
    said = {name: str(found[name]) for name in names if name in found and not is_secret(name)}
    return said | {
        "network": answered.network,
        "netuid": str(answered.netuid),
        "wallet.name": answered.wallet.name,
        "wallet.hotkey": answered.wallet.hotkey,
        "wallet.path": str(expanded(answered.wallet.path).absolute()),
    }


def ports(settings: OwnerConfig, folder: RunFolder) -> Ports:
    """Return wallet, chain and bucket of the run's owner. Raises ConfigError for another owner, or another chain."""
    found = open_ports(settings, connect(settings), local=folder.table["local"])
    owner = hotkey(found.signer.peer)
    if owner != folder.table["owner"]:
        raise ConfigError(
            f"the run in {folder.path} is hotkey {folder.table['owner']}'s, and this wallet's is {owner}: name the "
            "wallet that it was created with (--wallet.name, --wallet.hotkey)"
        )
    genesis = found.chain.genesis().hex()
    if genesis != folder.table["chain"] or settings.netuid != folder.table["netuid"]:
        raise ConfigError(
            f"the run in {folder.path} is for subnet {folder.table['netuid']} of the chain "
            f"{folder.table['chain'][:16]}.., but this is subnet {settings.netuid} of {genesis[:16]}..: correct "
            "--network and --netuid, or create the run again for this subnet"
        )
    return found


def as_strangers(settings: HotkeyConfig, owner: str, home: Path) -> NetworkConfig:
    """Return the configuration of a stranger who only knows the owner's address."""
    return NetworkConfig(
        network=settings.network,
        netuid=settings.netuid,
        owner=owner,
        home=home,
        archives=settings.archives,
        call_timeout_seconds=settings.call_timeout_seconds,
    )


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """Show a bar with bytes, rate and the time left, if there is a terminal."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def steps(what: str) -> Iterator[Tell]:
    """Show a bar of steps: tell(done, in all)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _kept(path: Path) -> dict[str, str]:
    """Return settings by their dotted names; none when there is no such file. Raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path} cannot be read ({fault}): correct or delete it") from None
    return {name: str(value) for name, value in flat(table)}
