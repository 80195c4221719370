"""`murmur export`: a run's model in a folder that transformers opens, and the proof that it is the run's."""

import argparse
from pathlib import Path

from murmur.protocol.errors import ConfigError
from murmur.protocol.types import DIGEST_BYTES, Digest, peer_id


def _digest(text: str) -> Digest:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != DIGEST_BYTES:
        raise argparse.ArgumentTypeError(f"expected a theta digest as {2 * DIGEST_BYTES} hex digits, not {text[:80]!r}")
    return Digest(found)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the model of a run as safetensors with config, tokenizer and card, or prove that such a folder "
        "is the run's. An fp32 export proves itself: its tensors hash to the theta digest that validators "
        "name on chain. A bf16 export has lost bits. Its proof needs the fp32 theta, from the run's public "
        "objects while they are kept, or from an fp32 export of the same state. Keep an fp32 export of a run "
        "that ends."
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="RUN",
        help="a local network's run folder, a node's TOML file, the SS58 hotkey of the run's owner, or the file with a "
        "cluster's token; with --verify, "
        "by default the owner that the export names, or an fp32 export of the same state",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="folder to write; it must be new or empty")
    parser.add_argument("--verify", type=Path, metavar="DIR", help="prove this export instead of writing one")
    parser.add_argument(
        "--round", type=int, metavar="R", help="the state at the start of round R (default: the newest)"
    )
    parser.add_argument(
        "--fp32", action="store_true", help="theta itself, twice the size of bf16, which is the default"
    )
    parser.add_argument("--theta", type=_digest, metavar="HEX", help="with --verify: a theta digest that you trust")
    parser.add_argument(
        "--network", help="finney, test, local or a ws(s):// URL; older rounds may need an archive node"
    )
    parser.add_argument("--netuid", help="the subnet of the run")
    parser.add_argument("--data", help="the run's data set, whose index names the tokenizer (default: fetched)")
    parser.add_argument("--home", help="folder for files fetched from runs (default ~/.murmur)")


def run(options: argparse.Namespace) -> int:
    """Write or verify an export. The exit status is 0 when it is written, or proved; 1 when --verify finds a
    difference. Raises ConfigError for invalid requests, and when --verify cannot decide."""
    require_possible(options)
    from murmur.cli.export.exports import prove, write  # torch, which a wrong word should not wait for

    return write(options) if options.verify is None else prove(options)


def require_possible(options: argparse.Namespace) -> None:
    """Refuse options that do not belong together, and paths that do not exist. Raises ConfigError."""
    if options.verify is None:
        if options.source is None or options.folder is None:
            raise ConfigError("murmur export RUN DIR: name the run and the folder to write (murmur export --help)")
        if options.theta is not None:
            raise ConfigError("--theta needs --verify")
    else:
        if options.folder is not None or options.fp32 or options.round is not None:
            raise ConfigError("murmur export --verify DIR [RUN]: leave out --round and the type: the export says both")
        if options.theta is not None and options.source is not None:
            raise ConfigError("give either --theta or a run, not both")
        if not options.verify.is_dir():
            raise ConfigError(f"{options.verify} is not an export: there is no such folder")
    if options.source is not None:
        require_source(options.source)


def require_source(source: str) -> None:
    """Refuse what names no run. Raises ConfigError."""
    if Path(source).exists():
        return
    try:
        peer_id(source)
    except ValueError:
        raise ConfigError(
            f"{source[:200]!r} is not a run folder, a node's TOML file or the hotkey of a run's owner"
        ) from None
