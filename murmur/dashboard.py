"""`murmur dashboard`: a read-only page over a run, while it goes on or after its end. No keys are needed."""

import argparse
import sys
from pathlib import Path

from protocol.errors import ConfigError

DEFAULT_PORT = 8790


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="run folder of a local network, running or ended")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port on this machine, 0 for any free one (default %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of this machine to listen at, for whoever reaches that (default %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve the page until it is stopped. Raises ConfigError for a folder that is none, or a port that is taken."""
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port is {options.port}, expected 0 to 65535")
    if not (options.folder / "nodes").is_dir():
        raise ConfigError(f"{options.folder} is no run folder of a local network: it has no nodes/")
    try:
        from dashboard.server import Page
    except ModuleNotFoundError as fault:
        raise ConfigError(f"the page needs {fault.name}: pip install 'murmuration[dashboard]'") from None
    sys.stderr.write(f"reading {options.folder}\n")
    page = Page(options.folder, options.port, options.host)
    sys.stdout.write(f"the page is at {page.url} (Ctrl-C ends it)\n")
    sys.stdout.flush()
    try:
        page.wait()
    finally:
        page.close()
    return 0
