"""A local network's run folder, read like any network: while it runs, after its end, and wherever it was moved to.

The chain is its database (chain/devnet/recorded.py), buckets are the recorded objects (localnet/record.py), with the
store behind them while it answers. Nothing is started and nothing written; no wallet is opened: names come from the
public halves.
"""

import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import dashboard.folder
from chain.devnet.recorded import open_recorded
from chain.keys import verify
from localnet.record import FOLDER
from node.config.adapters import Opener
from node.config.settings import NetworkConfig
from node.observe import reader
from protocol.errors import ConfigError
from protocol.types import PeerId, Pointer, PublicPointer, peer_id
from storage.recorded import open_recorded_bucket
from storage.s3 import RangedBucket, open_pointer

CONNECT_SECONDS = 0.5


def node_file(folder: Path) -> Path:
    """A configuration that names the folder's run. Raises ConfigError for a folder that is none of a local network."""
    nodes = sorted(folder.glob("nodes/*/node.toml"))
    if not nodes:
        raise ConfigError(f"{folder} is not the run folder of a local network: it has no nodes/NAME/node.toml")
    return nodes[0]


def open_folder(folder: Path, config: NetworkConfig) -> reader.Opened:
    """The run in the folder, and the doors of somebody who only reads it. Raises ConfigError for a folder without a
    chain or a run, ChainError, StorageError."""
    if not (folder / FOLDER).is_dir():
        raise ConfigError(
            f"{folder} has no recorded objects: its network is still starting, ended before its run began, or "
            "is of an older release"
        )
    return reader.open_recorded(config, open_recorded(folder / "chain"), verify, opener(folder), folder)


def opener(folder: Path) -> Opener:
    """Opens the buckets of the folder by their pointers."""

    @lru_cache(maxsize=512)
    def opened(pointer: Pointer | PublicPointer) -> RangedBucket:
        if isinstance(pointer, PublicPointer):
            raise ConfigError("a public bucket is not recorded in a run folder")
        server = open_pointer(pointer, local=True) if _answers(pointer.endpoint) else None
        return open_recorded_bucket(folder / FOLDER, pointer.bucket, server)

    return opened


def names(folder: Path) -> Mapping[PeerId, str]:
    """Who is who in the folder: every member's name by its hotkey."""
    return {peer_id(address): name for address, name in dashboard.folder.names(folder).items()}


@lru_cache(maxsize=64)
def _answers(endpoint: str) -> bool:
    """Whether something listens there: the store while the network runs."""
    url = urlsplit(endpoint)
    try:
        address = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection(address, CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
