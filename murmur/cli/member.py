"""`murmur member`, and neurons/member.py. It configures and hands over; the rounds are murmur/cluster/member.py."""

import os
from collections.abc import Sequence

from murmur.node.config.settings import load_cluster
from murmur.node.program.process import log_to_stderr

SUMMARY = "Train in a cluster over one bucket: inner steps, compressed pseudo-gradient, a claim, the outer step."


def main(argv: Sequence[str], program: str) -> None:
    """Configure, join and train until stopped."""
    config = load_cluster(program, SUMMARY, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.cluster import start  # torch and the rest, which neither help nor a missing setting should wait for

    start.member(config)
