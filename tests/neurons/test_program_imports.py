"""What runs in a program: a miner brings no validator, and neither of them a cluster; a cluster's member brings no
chain. Nobody who runs one of them has to trust, install or read the others."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.test_tree import imported, parsed

ROOT = Path(__file__).parents[2]
LAB = ("murmur.lab", "murmur.page", "murmur.plan", "murmur.owner", "murmur.export")
FOREIGN = {
    "murmur.rounds.start_miner": ("murmur.rounds.validator", "murmur.cluster", *LAB),
    "murmur.rounds.start_validator": ("murmur.rounds.miner", "murmur.cluster", *LAB),
    "murmur.cluster.start": ("murmur.rounds.validator", "murmur.rounds.miner", "murmur.chain", *LAB),
}
"""What a program imports once it knows its configuration, and what this may not bring with it."""
COMMANDS = dict(zip(("mine", "validate", "member"), FOREIGN, strict=True))
SCRIPT = """
import importlib, json, os, sys
import torch  # once for all
for name in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(name)
        print(json.dumps([name, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.wait()
"""


@cache
def loaded() -> dict[str, list[str]]:
    """All modules of a process that has imported a program."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *FOREIGN],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("program", FOREIGN)
def test_a_program_brings_nothing_that_another_one_does(program: str) -> None:
    modules = loaded()[program]
    assert program in modules
    assert [one for one in modules if f"{one}.".startswith(tuple(f"{name}." for name in FOREIGN[program]))] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_these_are_the_programs_that_people_start(command: str) -> None:
    functions = {node.name: node for node in ast.walk(parsed(ROOT / "murmur/cli/programs.py")) if hasattr(node, "name")}
    assert COMMANDS[command] in list(imported(functions[command]))
