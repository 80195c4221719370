"""A network opened for reading, for commands that only look: from the options, environment and files of a node, or from
a local network's run folder."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from murmur.cli import peer_options
from murmur.lab.localnet import run_folder
from murmur.node.config.adapters import Doors
from murmur.node.config.settings import NetworkConfig, home, load_network
from murmur.node.observe import reader
from murmur.node.program import process
from murmur.protocol.errors import ConfigError, MurmurError
from murmur.protocol.run import Run
from murmur.protocol.types import PeerId, hotkey


@dataclass(frozen=True, slots=True)
class Opened:
    """A network opened for reading. `names`: of peers, where they are known."""

    config: NetworkConfig
    home: Path
    doors: Doors
    run: Run
    names: Mapping[PeerId, str] = field(default_factory=dict)

    @property
    def recorded(self) -> bool:
        """Whether it is read from a run folder."""
        return bool(self.names)

    def peer(self, text: str, what: str) -> PeerId:
        """Return the peer with this name or SS58 hotkey. Raises ConfigError."""
        for peer, name in self.names.items():
            if name == text:
                return peer
        try:
            return peer_options.named_peer(text, what)
        except ConfigError:
            if not self.names:
                raise
            close = get_close_matches(text, self.names.values(), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(self.names.values()))}"
            raise ConfigError(f"{what}: there is no {text[:80]!r} here; {hint}") from None

    def called(self, peer: PeerId) -> str:
        """Return a peer as text: its name where that is known."""
        return self.names.get(peer) or hotkey(peer)


def named(name: str, options: argparse.Namespace) -> NetworkConfig:
    """Return the network given by the options, unless they give a run folder. Raises ConfigError."""
    return load_network(name, peer_options.flags_of(options), os.environ)


def open_network(name: str, options: argparse.Namespace) -> Opened:
    """Open the network given by the options. Raises ConfigError for faults that the operator has to fix, ChainError
    when the chain does not answer."""
    process.log_to_stderr("WARNING")
    if options.run is None:
        config = named(name, options)
        at = home(config)
        return Opened(config, at, *reader.open_run(config, at))
    config = run_folder.network_config(name, options.run, peer_options.flags_of(options))
    return Opened(config, options.run, *run_folder.open_folder(options.run, config), run_folder.names(options.run))


def undecided(fault: MurmurError) -> ConfigError:
    """Return the error of a command that was to find differences and could not look. Its exit status is 2: 1 stays for
    a difference."""
    return ConfigError(f"nothing is decided: {fault}. Try again when the chain and the buckets answer")
