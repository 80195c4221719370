"""A validator: checks, scores and selects submissions, stands up for its selection on chain, and pays.

This program configures and hands over; its rounds are murmur/rounds/validator.py.
"""

import os
import sys
from collections.abc import Sequence

from murmur.node.config.settings import load
from murmur.node.program.process import log_to_stderr, run_program

SUMMARY = "Judge a Murmuration run: check and score submissions, select contributors on chain, set weights."


def main(argv: Sequence[str] | None = None, program: str = "neurons/validator.py") -> None:
    """Configure, connect, catch up and validate until stopped."""
    config = load(program, SUMMARY, sys.argv[1:] if argv is None else argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import start  # torch and the rest, which neither help nor a missing setting should wait for

    start.validator(config)


if __name__ == "__main__":
    sys.exit(run_program(main))
