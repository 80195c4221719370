"""A network that is read, for commands that only look: found by the options, environment and files of a node."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from murmur.where import flags_of
from node import program, reader
from node.adapters import Doors
from node.config import NetworkConfig, home, load_network
from protocol.errors import ChainError, ConfigError
from protocol.run import Run


@dataclass(frozen=True, slots=True)
class Opened:
    """A network that is read."""

    config: NetworkConfig
    home: Path
    doors: Doors
    run: Run


def open_network(name: str, options: argparse.Namespace) -> Opened:
    """The network that the options name. Raises ConfigError for what the operator has to fix, ChainError when the
    chain does not answer."""
    config = load_network(name, flags_of(options), os.environ if options.folder is None else {})
    folder = home(config)
    if options.folder is not None:
        os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", str(options.folder / "runtime-cache"))
    program.log_to_stderr("WARNING")
    try:
        doors, run = reader.open_run(config, folder)
    except ChainError as fault:
        if options.folder is None:
            raise
        raise ConfigError(
            f"the local network in {options.folder} does not answer ({fault}): its objects live in memory and end with "
            "it, so it can be looked at only while it runs"
        ) from None
    return Opened(config, folder, doors, run)
