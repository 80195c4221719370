"""Where a network is, for commands that only read: the same words, environment and files as a node's configuration."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import ChainError, ConfigError
from protocol.types import PeerId, peer_id

if TYPE_CHECKING:
    from node.adapters import Doors
    from node.config import NetworkConfig
    from protocol.run import Run

_NAMES = ("config", "network", "netuid", "owner", "spec", "data", "home")


@dataclass(frozen=True, slots=True)
class Opened:
    """A network that is read."""

    config: "NetworkConfig"
    home: Path
    doors: "Doors"
    run: "Run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say where the network is; the environment and files mean the same as for a node."""
    parser.add_argument("--folder", type=Path, help="run folder of a local network that is running")
    parser.add_argument("--config", metavar="FILE", help="TOML file of a node (its wallet and bucket are not read)")
    parser.add_argument("--network", help="finney, test, local or a ws(s):// URL; older rounds need an archive node")
    parser.add_argument("--netuid", help="the subnet of the run")
    parser.add_argument("--owner", help="SS58 hotkey of the run's owner, whose slot on chain names the run")
    parser.add_argument("--spec", help="the run's spec as a TOML file, instead of --owner")
    parser.add_argument("--data", help="folder of tokenised shards; default: fetched into home from the run's owner")
    parser.add_argument("--home", help="folder for what is fetched (default ~/.murmur)")


def open_network(program: str, options: argparse.Namespace) -> Opened:
    """The network that the options name. Raises ConfigError for what the operator has to fix, ChainError when the
    chain does not answer."""
    from node.config import home, load_network

    config = load_network(program, _flags(options), os.environ if options.folder is None else {})
    folder = home(config)
    if options.folder is not None:
        os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", str(options.folder / "runtime-cache"))
    from node import adapters, reader
    from node import run as runs
    from node.amendments import settled
    from node.program import log_to_stderr
    from node.runfile import RunFile, folder_of

    log_to_stderr("WARNING")
    line = reader.connect(config)
    try:
        run = runs.find_run(config, line.chain, adapters.owner_opener(config), folder)
        doors = reader.reading(line.chain, line.verify, adapters.opener(local=run.first.local))
        run = settled(run, 0, doors, RunFile(folder_of(folder, run.id)))
    except ChainError as fault:
        if options.folder is None:
            raise
        raise ConfigError(
            f"the local network in {options.folder} does not answer ({fault}): its objects live in memory and end with "
            "it, so it can be looked at only while it runs"
        ) from None
    return Opened(config, folder, doors, run)


def named_peer(address: str, what: str) -> PeerId:
    """The peer of an SS58 address that somebody typed. Raises ConfigError."""
    try:
        return peer_id(address)
    except ValueError as fault:
        raise ConfigError(f"{what}: {fault}") from None


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    flags = {name: value for name in _NAMES if (value := getattr(options, name)) is not None}
    if options.folder is None:
        return flags
    if flags.keys() - {"home"}:
        raise ConfigError("--folder says everything about a local network: leave out the other flags")
    nodes = sorted(options.folder.glob("nodes/*/node.toml"))
    if not nodes:
        raise ConfigError(f"{options.folder} is no run folder of a local network: it has no nodes/NAME/node.toml")
    return {"home": str(options.folder), **flags, "config": str(nodes[0])}
