"""Options that select a network and a peer, with the names of a node's configuration."""

import argparse
from pathlib import Path
from typing import Any

from murmur.protocol.errors import ConfigError

NAMES = ("config", "network", "netuid", "owner", "spec", "data", "home")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select a network: a run folder, or those of `add_network_arguments`."""
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run folder of a local network, running or ended")
    add_network_arguments(parser)


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a network; the environment and files mean the same as for a node."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of a node (its wallet and bucket are not read)")
    parser.add_argument("--network", help="finney, test, local or a ws(s):// URL; older rounds need an archive node")
    parser.add_argument("--netuid", help="the subnet of the run")
    parser.add_argument("--owner", help="SS58 hotkey of the run's owner, whose slot on chain names the run")
    parser.add_argument("--spec", help="the run's spec as a TOML file, instead of --owner")
    parser.add_argument("--data", help="folder of tokenised shards; default: fetched into home from the run's owner")
    parser.add_argument("--home", help="folder for fetched files (default ~/.murmur)")


def flags_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as a node's flags. Raises ConfigError for options that do not belong together, and a run
    folder that does not exist."""
    flags = {name: value for name in NAMES if (value := getattr(options, name)) is not None}
    if options.run is not None and flags:
        raise ConfigError("leave out the other flags: --run already says which local network it is")
    if options.run is not None and not options.run.is_dir():
        raise ConfigError(f"{options.run} is not the run folder of a local network: there is no such folder")
    return flags
