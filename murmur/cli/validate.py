"""`murmur validate`, and neurons/validator.py. It configures and hands over; the rounds are
murmur/rounds/validator.py."""

import os
from collections.abc import Sequence

from murmur.node.config.settings import load
from murmur.node.program.process import log_to_stderr

SUMMARY = "Judge a Murmuration run: check and score submissions, select contributors on chain, set weights."


def main(argv: Sequence[str], program: str) -> None:
    """Configure, connect, catch up and validate until stopped."""
    config = load(program, SUMMARY, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import (
        start_validator,  # torch and the rest, which neither help nor a missing setting should wait for
    )

    start_validator.start(config)
