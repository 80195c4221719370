"""The programs of nodes: `murmur mine`, `validate` and `member`, and the files of neurons/. They configure and hand
over; the rounds are in murmur/rounds/ and murmur/cluster/. torch and the rest come after the configuration: neither
help nor a missing setting waits for them."""

import os
from collections.abc import Sequence

from murmur.node.config.settings import load, load_cluster
from murmur.node.program.process import log_to_stderr


def mine(argv: Sequence[str], program: str) -> None:
    """Configure, connect, catch up and mine until stopped."""
    summary = "Train in a Murmuration run: inner steps, compressed pseudo-gradient, sealed upload, outer step."
    config = load(program, summary, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import start_miner

    start_miner.start(config)


def validate(argv: Sequence[str], program: str) -> None:
    """Configure, connect, catch up and validate until stopped."""
    summary = "Judge a Murmuration run: check and score submissions, select contributors on chain, set weights."
    config = load(program, summary, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.rounds import start_validator

    start_validator.start(config)


def member(argv: Sequence[str], program: str) -> None:
    """Configure, join and train until stopped."""
    summary = "Train in a cluster over one bucket: inner steps, compressed pseudo-gradient, a claim, the outer step."
    config = load_cluster(program, summary, argv, os.environ)
    log_to_stderr(config.log_level)
    from murmur.cluster import start

    start.member(config)
