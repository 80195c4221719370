"""`murmur audit --round N`: judge validators' rounds again from public objects, without a key (docs/audit.md)."""

import argparse

from murmur import where


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round", type=int, required=True, help="the round to judge again")
    parser.add_argument("--validator", metavar="HOTKEY", help="one validator (default: all that count)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    where.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """The exit status is 0 when nothing differs, 1 when something does. Raises ConfigError when there is nothing that
    could be audited."""
    validator = where.named_peer(options.validator, "--validator") if options.validator is not None else None
    from murmur.verdicts import show

    return show(validator, options)
