"""`murmur shards build`: text into the tokenised shards that a run trains on."""

import argparse
import sys
from pathlib import Path

from protocol.errors import ConfigError

PROGRESS_BYTES = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="tokenise text", description="Tokenise text into shards.")
    build.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help="botocore (API documentation that is installed already), a folder, a file, or hf:NAME",
    )
    build.add_argument("--out", type=Path, required=True, help="folder for the shards; must not hold a data set yet")
    build.add_argument("--limit-bytes", type=int, help="stop after this much text")
    build.add_argument("--held-out", type=float, default=0.05, help="share kept from training (default %(default)s)")
    build.add_argument("--tokenizer", type=Path, help="a tokenizer.json; default: bytes")


def run(options: argparse.Namespace) -> int:
    """Build and print the index's digest, which the run spec names."""
    if options.limit_bytes is not None and options.limit_bytes < 1:
        raise ConfigError(f"--limit-bytes is {options.limit_bytes}, expected at least 1")
    from training.build import build

    shown = 0

    def progress(num_bytes: int) -> None:
        nonlocal shown
        if num_bytes >= shown + PROGRESS_BYTES:
            shown = num_bytes
            sys.stderr.write(f"\r{num_bytes / 1e6:.0f} MB of text")
            sys.stderr.flush()

    try:
        digest = build(
            options.source,
            options.out,
            limit_bytes=options.limit_bytes,
            held_out_fraction=options.held_out,
            tokenizer=options.tokenizer,
            on_document=progress,
        )
    finally:
        sys.stderr.write("\n" if shown else "")
    sys.stdout.write(f"{digest.hex()}\n")
    return 0
