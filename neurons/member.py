"""A cluster's member: trains with people who trust each other, over one bucket that all of them hold a key of. `murmur
member` is the same program."""

import sys
from functools import partial

from murmur.cli.programs import member
from murmur.node.program.process import run_program

if __name__ == "__main__":
    sys.exit(run_program(partial(member, sys.argv[1:], "neurons/member.py")))
