"""A cluster's member: trains with people who trust each other, over one bucket that all of them hold a key of.

This program configures and hands over; its rounds are murmur/cluster/member.py.
"""

import os
import sys
from collections.abc import Sequence

from murmur.node.config.settings import load_cluster
from murmur.node.program.process import log_to_stderr, run_program

SUMMARY = "Train in a cluster over one bucket: inner steps, compressed pseudo-gradient, a claim, the outer step."


def main(argv: Sequence[str] | None = None, program: str = "neurons/member.py") -> None:
    """Configure, join and train until stopped."""
    config = load_cluster(program, SUMMARY, sys.argv[1:] if argv is None else argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import start  # torch and the rest, which neither help nor a missing setting should wait for

    start.member(config)


if __name__ == "__main__":
    sys.exit(run_program(main))
