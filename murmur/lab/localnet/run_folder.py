"""A local network's run folder, read like any network: while it runs, after its end, and wherever it was moved to.

The chain is its database (murmur/lab/devnet/recorded.py). Buckets are the recorded objects
(murmur/lab/localnet/record.py), with the store behind them while it answers. Nothing is started or written, and no
wallet is opened: names come from the public halves.
"""

import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import murmur.page.folder
from murmur.chain.keys import verify
from murmur.lab.devnet.recorded import open_recorded
from murmur.lab.localnet.record import FOLDER
from murmur.node.config.ports import Opener
from murmur.node.config.settings import NetworkConfig, load_network
from murmur.node.observe import reader
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import PeerId, Pointer, PublicPointer, peer_id
from storage.recorded import open_recorded_bucket
from storage.s3 import RangedBucket, open_pointer

CONNECT_SECONDS = 0.5


def network_config(program: str, folder: Path, flags: Mapping[str, Any] | None = None) -> NetworkConfig:
    """Return the folder's network as one of its nodes is configured; `flags` take precedence. Raises ConfigError for a
    folder that is no local network's."""
    nodes = sorted(folder.glob("nodes/*/node.toml"))
    if not nodes:
        raise ConfigError(f"{folder} is not the run folder of a local network: it has no nodes/NAME/node.toml")
    return load_network(program, {**(flags or {}), "config": str(nodes[0])}, {})


def open_folder(folder: Path, config: NetworkConfig) -> reader.Opened:
    """Return the run in the folder, and ports for reading only. Raises ConfigError for a folder without a chain or a
    run, ChainError, StorageError."""
    if not (folder / FOLDER).is_dir():
        raise ConfigError(
            f"{folder} has no recorded objects: its network is still starting, ended before its run began, or "
            "is of an older release"
        )
    return reader.open_recorded(config, open_recorded(folder / "chain"), verify, opener(folder), folder)


def opener(folder: Path) -> Opener:
    """Return the function that opens the folder's buckets by their pointers."""

    @lru_cache(maxsize=512)
    def opened(pointer: Pointer | PublicPointer) -> RangedBucket:
        if isinstance(pointer, PublicPointer):
            raise ConfigError("a public bucket is not recorded in a run folder")
        server = open_pointer(pointer, local=True) if _answers(pointer.endpoint) else None
        return open_recorded_bucket(folder / FOLDER, pointer.bucket, server)

    return opened


def names(folder: Path) -> Mapping[PeerId, str]:
    """Return every member's name by its hotkey."""
    return {peer_id(address): name for address, name in murmur.page.folder.names(folder).items()}


@lru_cache(maxsize=64)
def _answers(endpoint: str) -> bool:
    """Whether a server listens there: the store while the network runs."""
    url = urlsplit(endpoint)
    try:
        address = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection(address, CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
