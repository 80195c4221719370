"""`murmur dashboard`: a read-only page over a run, on this machine or elsewhere, during the run or after its end. No
keys are needed."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from murmur.cli import peer_options
from murmur.protocol.errors import ConfigError

if TYPE_CHECKING:
    from murmur.page.source import PageSource

DEFAULT_PORT = 8790


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run folder of a local network or of a cluster's demo, or a network (finney, test or a ws(s):// URL) with "
        "--netuid and --owner",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with a cluster's token, instead of RUN")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port on this machine, 0 for any free one (default %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of this machine to listen at; everybody who reaches it sees the page (default %(default)s)",
    )
    peer_options.add_network_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the page until it is stopped. Raises ConfigError for an invalid run, or a port that is taken."""
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port is {options.port}, expected 0 to 65535")
    try:
        from murmur.page.server import Page
    except ModuleNotFoundError as fault:
        raise ConfigError(f"the page needs {fault.name}: pip install -c constraints.txt -e '.[dashboard]'") from None
    source = _source(options)
    page = Page(source, options.port, options.host).begin()
    sys.stdout.write(f"the page is at {page.url} (Ctrl-C ends it)\n")
    sys.stdout.flush()
    try:
        page.wait()
    finally:
        page.close()
    return 0


def _source(options: argparse.Namespace) -> "PageSource":
    from murmur.page.folder import Folder

    if options.token_file is not None:
        if any(getattr(options, name) is not None for name in ("run", *peer_options.NAMES)):
            raise ConfigError("leave out RUN and the other flags: a token already says which cluster it is")
        return _cluster(options.token_file)
    if options.run is not None and _is_path(options.run):
        folder = Path(options.run)
        if folder.is_file():
            raise ConfigError(f"{folder} is a file: a cluster's token goes behind --token-file")
        if not (folder / "nodes").is_dir():
            raise ConfigError(f"{folder} is not the run folder of a local network: it has no nodes/")
        if any(getattr(options, name) is not None for name in peer_options.NAMES):
            raise ConfigError("leave out the other flags: a run folder already says which network it is")
        sys.stderr.write(f"reading {folder}\n")
        return Folder(folder)
    return _network(options)


def _cluster(token_file: Path) -> "PageSource":
    from murmur.cluster.bootstrap import open_ledger
    from murmur.cluster.group_keys import parse_token, read_token
    from murmur.node.program import process
    from murmur.page.live.cluster import Cluster
    from murmur.protocol.errors import StorageError

    process.log_to_stderr("WARNING")
    token = parse_token(read_token(token_file))
    secrets = token.access_key, token.secret_key, token.secret
    sys.stderr.write(f"reading the cluster {token.run[:16]}\n")
    source = Cluster(lambda: open_ledger(token), secrets)
    with suppress(StorageError):  # shown on the page, and tried again
        source.open()
    return source.follow()


def _is_path(text: str) -> bool:
    """Whether the text means a folder, not a network."""
    return "://" not in text and (Path(text).exists() or "/" in text)


def _network(options: argparse.Namespace) -> "PageSource":
    from murmur.cli import network
    from murmur.page.live.network import Network
    from murmur.protocol.errors import ChainError, StorageError

    if options.run is not None:
        if options.network is not None:
            raise ConfigError("the network is named twice: leave out --network, or the word before it")
        options.network = options.run
    options.run = None
    found = network.named("murmur dashboard", options)
    sys.stderr.write(f"reading subnet {found.netuid} of {found.network}\n")
    source = Network(found.network, lambda: network.open_network("murmur dashboard", options))
    with suppress(ChainError, StorageError):  # shown on the page, and tried again
        source.open()
    return source.follow()
