"""A network opened for reading, with the names by which people call its peers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from murmur.node.config.ports import Ports
from murmur.node.config.settings import NetworkConfig
from murmur.protocol.errors import ConfigError
from murmur.protocol.run import Run
from murmur.protocol.types import PeerId, hotkey, peer_id


@dataclass(frozen=True, slots=True)
class OpenedNetwork:
    """A network opened for reading. `names`: of peers, where they are known."""

    config: NetworkConfig
    home: Path
    ports: Ports
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
            return named_peer(text, what)
        except ConfigError:
            if not self.names:
                raise
            close = get_close_matches(text, self.names.values(), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(self.names.values()))}"
            raise ConfigError(f"{what}: there is no {text[:80]!r} here; {hint}") from None

    def called(self, peer: PeerId) -> str:
        """Return a peer as text: its name where that is known."""
        return self.names.get(peer) or hotkey(peer)


def named_peer(address: str, what: str) -> PeerId:
    """Return the peer of an SS58 address; `what` names it in the error. Raises ConfigError."""
    try:
        return peer_id(address)
    except ValueError as fault:
        raise ConfigError(f"{what}: {fault}") from None
