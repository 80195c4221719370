"""A miner: trains on its pages, compresses what it learned, seals and publishes it, follows the agreed selections.

This program configures and hands over; its rounds are murmur/rounds/miner.py.
"""

import os
import sys
from collections.abc import Sequence

from murmur.node.config.settings import load
from murmur.node.program.process import log_to_stderr, run_program

SUMMARY = "Train in a Murmuration run: inner steps, compressed pseudo-gradient, sealed upload, outer step."


def main(argv: Sequence[str] | None = None, program: str = "neurons/miner.py") -> None:
    """Configure, connect, catch up and mine until stopped."""
    config = load(program, SUMMARY, sys.argv[1:] if argv is None else argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import start  # torch and the rest, which neither help nor a missing setting should wait for

    start.miner(config)


if __name__ == "__main__":
    sys.exit(run_program(main))
