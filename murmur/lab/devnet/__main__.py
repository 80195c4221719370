"""`python -m murmur.lab.devnet`: run the development chain. Heavy imports happen only after the arguments are
validated."""

import argparse
import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from murmur.protocol.errors import ConfigError


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m murmur.lab.devnet",
        description="A single-operator development chain (not consensus) that the bittensor SDK takes for a subtensor "
        "node. Listens on 127.0.0.1 and prints one JSON line with its url when it is ready.",
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the chain's database; made when missing")
    parser.add_argument("--genesis", type=Path, help="genesis JSON; needed only to start a new chain")
    parser.add_argument("--port", type=int, default=9944, help="0 takes a free one (default %(default)s)")
    parser.add_argument("--block-seconds", type=float, default=0.25, help="time between blocks (default %(default)s)")
    parser.add_argument("--step", action="store_true", help="make blocks on devnet_step only")
    parser.add_argument(
        "--finality-lag", type=int, default=0, help="how many blocks finality is behind the head (default %(default)s)"
    )
    parser.add_argument("--keep-blocks", type=int, help="older state is pruned (default: all of it is kept)")
    options = parser.parse_args(arguments)
    kept = options.keep_blocks
    if options.block_seconds <= 0 or options.finality_lag < 0 or (kept is not None and kept < 1):
        parser.error("--block-seconds must be above 0, --finality-lag at least 0, --keep-blocks at least 1")
    if kept is not None and kept <= options.finality_lag:
        parser.error("--keep-blocks must exceed --finality-lag: a final block's state has to be readable")
    return options


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError for anything the operator has to fix."""
    import sqlite3

    from murmur.lab.devnet.author import Author
    from murmur.lab.devnet.codec import Codec
    from murmur.lab.devnet.genesis import Genesis
    from murmur.lab.devnet.metadata import load_metadata
    from murmur.lab.devnet.server import Server
    from murmur.lab.devnet.state import DATABASE, State

    metadata = load_metadata()
    genesis = None if options.genesis is None else Genesis.load(options.genesis)
    options.data.mkdir(parents=True, exist_ok=True)
    try:
        state = State(options.data / DATABASE, options.keep_blocks)
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{options.data / DATABASE} can't be opened: {error}") from error
    author = Author(Codec(metadata), state, options.finality_lag, lambda: int(time.time() * 1000))
    author.start(genesis)
    server = Server(author, metadata)

    def ready(url: str) -> None:
        sys.stdout.write(json.dumps({"url": url, **server.info()}) + "\n")
        sys.stdout.flush()

    serving = asyncio.create_task(server.serve(options.port, None if options.step else options.block_seconds, ready))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        pass
    except OSError as error:
        raise ConfigError(f"can't listen on port {options.port}: {error.strerror}. Choose another --port") from error
    finally:
        state.close()


def main(arguments: list[str] | None = None) -> int:
    try:
        asyncio.run(run(parse_arguments(arguments)))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
