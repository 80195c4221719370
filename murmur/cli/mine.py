"""`murmur mine`, and neurons/miner.py. It configures and hands over; the rounds are murmur/rounds/miner.py."""

import os
from collections.abc import Sequence

from murmur.node.config.settings import load
from murmur.node.program.process import log_to_stderr

SUMMARY = "Train in a Murmuration run: inner steps, compressed pseudo-gradient, sealed upload, outer step."


def main(argv: Sequence[str], program: str) -> None:
    """Configure, connect, catch up and mine until stopped."""
    config = load(program, SUMMARY, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import (
        start_miner,  # torch and the rest, which neither help nor a missing setting should wait for
    )

    start_miner.start(config)
