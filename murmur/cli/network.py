"""A network opened for reading, for commands that only look: from the options, environment and files of a node, or from
a local network's run folder."""

import argparse
import os

from murmur.cli import peer_options
from murmur.lab.localnet import run_folder
from murmur.node.config.settings import NetworkConfig, home, load_network
from murmur.node.observe import reader
from murmur.node.observe.opened_network import OpenedNetwork
from murmur.node.program import process
from murmur.protocol.errors import ConfigError, MurmurError


def named(name: str, options: argparse.Namespace) -> NetworkConfig:
    """Return the network given by the options, unless they give a run folder. Raises ConfigError."""
    return load_network(name, peer_options.flags_of(options), os.environ)


def open_network(name: str, options: argparse.Namespace) -> OpenedNetwork:
    """Open the network given by the options. Raises ConfigError for faults that the operator has to fix, ChainError
    when the chain does not answer."""
    process.log_to_stderr("WARNING")
    if options.run is None:
        config = named(name, options)
        at = home(config)
        return OpenedNetwork(config, at, *reader.open_run(config, at))
    config = run_folder.network_config(name, options.run, peer_options.flags_of(options))
    return OpenedNetwork(
        config, options.run, *run_folder.open_folder(options.run, config), run_folder.names(options.run)
    )


def undecided(fault: MurmurError) -> ConfigError:
    """Return the error of a command that was to find differences and could not look. Its exit status is 2: 1 stays for
    a difference."""
    return ConfigError(f"nothing is decided: {fault}. Try again when the chain and the buckets answer")
