"""A validator: checks, scores and selects submissions, votes on chain, and pays. `murmur
validate` is the same program."""

import sys
from functools import partial

from murmur.cli.programs import validate
from murmur.node.program.process import run_program

if __name__ == "__main__":
    sys.exit(run_program(partial(validate, sys.argv[1:], "neurons/validator.py")))
