"""`murmur config show`: every setting of a node, its value, and its source: the environment, the file, or the default.
Secrets are masked."""

import argparse
import os
import sys

from murmur.node.config import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show"], help="print all settings")
    parser.add_argument("--config", metavar="FILE", help="TOML file of a node")


def run(options: argparse.Namespace) -> int:
    """Print the table. Raises ConfigError, after the table, when a node would not start with these settings."""
    flags = {} if options.config is None else {"config": options.config}
    rows = settings.settings(flags, os.environ)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        sys.stdout.write(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n")
    sys.stdout.flush()
    words = [] if options.config is None else ["--config", options.config]
    settings.load("murmur config show", "", words, os.environ)
    return 0
