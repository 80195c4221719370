"""`murmur shards`: convert text into the tokenised shards that a run trains on, and join several data sets."""

import argparse
import os
import sys
from pathlib import Path

from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest

PROGRESS_BYTES = 1_000_000
PROGRESS_SHARDS = 2
"""A smaller job ends before its progress could be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="tokenise text", description="Tokenise text into shards.")
    build.add_argument(
        "--from",
        dest="sources",
        action="append",
        required=True,
        metavar="SOURCE",
        help="botocore (API documentation that is already installed), a folder, a file, or hf:NAME; repeat it to "
        "mix sources",
    )
    build.add_argument(
        "--weight",
        dest="weights",
        action="append",
        type=float,
        metavar="W",
        help="share of tokens of the source at the same place among --from, in any unit; default: all the same",
    )
    build.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the shards; it must not hold a data set yet. An interrupted build continues",
    )
    build.add_argument("--seed", type=int, default=0, help="seed of the order of documents (default %(default)s)")
    build.add_argument("--limit-bytes", type=int, help="stop after this much text of each source")
    build.add_argument("--held-out", type=float, default=0.05, help="share kept from training (default %(default)s)")
    build.add_argument("--tokenizer", type=Path, help="a tokenizer.json; default: bytes")
    build.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of processes (default %(default)s); the result is the same",
    )

    join = actions.add_parser(
        "join",
        help="join data sets end to end",
        description="Join data sets end to end: a run that switches to another mix finds it in the later part.",
    )
    join.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="data sets of one tokenizer, in this order")
    join.add_argument(
        "--out", type=Path, required=True, help="folder for the joined set; it must not hold a data set yet"
    )


def run(options: argparse.Namespace) -> int:
    """Build or join, and print the index's digest, which the run spec names."""
    digest = _join(options) if options.action == "join" else _build(options)
    sys.stdout.write(f"{digest.hex()}\n")
    return 0


def _join(options: argparse.Namespace) -> Digest:
    from murmur.data.concatenation import join

    return join(options.folders, options.out)


def _build(options: argparse.Namespace) -> Digest:
    if options.limit_bytes is not None and options.limit_bytes < 1:
        raise ConfigError(f"--limit-bytes is {options.limit_bytes}, expected at least 1")
    if options.processes < 1:
        raise ConfigError(f"--processes is {options.processes}, expected at least 1")
    weights = options.weights or [1.0] * len(options.sources)
    if len(weights) != len(options.sources):
        raise ConfigError(f"{len(options.sources)} times --from, but {len(weights)} times --weight: give one for each")
    if len(set(options.sources)) < len(options.sources):
        raise ConfigError("a source is named twice in --from: give it once, with a larger --weight")
    from murmur.data.build import build

    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        if text != shown:
            shown = text
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def on_text(num_bytes: int) -> None:
        if num_bytes >= PROGRESS_BYTES:
            show(f"{num_bytes / 1e6:.0f} MB of text")

    def on_shard(done: int, total: int) -> None:
        if total > PROGRESS_SHARDS:
            show(f"{done} of {total} shards")

    try:
        return build(
            dict(zip(options.sources, weights, strict=True)),
            options.out,
            seed=options.seed,
            limit_bytes=options.limit_bytes,
            held_out_fraction=options.held_out,
            tokenizer=options.tokenizer,
            processes=options.processes,
            on_text=on_text,
            on_shard=on_shard,
        )
    finally:
        sys.stderr.write("\n" if shown else "")
