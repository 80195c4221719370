"""`murmur audit --round N`: judge validators' rounds again from public objects, without a key (docs/audit.md)."""

import argparse

from murmur.cli import peer_options
from murmur.node.observe.opened_network import named_peer

LAST = "last"


def _round(text: str) -> int | None:
    """Parse a round; None for the last one."""
    if text == LAST:
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number or {LAST!r}, not {text[:40]!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round", type=_round, required=True, metavar="N", help=f"the round to judge, or {LAST!r}")
    parser.add_argument("--validator", metavar="WHO", help="one validator, by hotkey or name (default: all that count)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    peer_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Audit a round. The exit status is 0 when nothing differs, else 1. Raises ConfigError when nothing could be
    audited."""
    peer_options.flags_of(options)
    if options.run is None and options.validator is not None:
        named_peer(options.validator, "--validator")
    from murmur.cli.audit.verdicts import show  # torch, which a mistyped hotkey should not wait for

    return show(options.validator, options)
