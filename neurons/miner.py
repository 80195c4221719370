"""A miner: trains on its pages, compresses what it learned, seals and publishes it, follows the agreed selections.
`murmur mine` is the same program."""

import sys
from functools import partial

from murmur.cli.programs import mine
from murmur.node.program.process import run_program

if __name__ == "__main__":
    sys.exit(run_program(partial(mine, sys.argv[1:], "neurons/miner.py")))
