"""A cluster needs no chain: none of its programs imports the chain's libraries."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_THE_CHAIN = ("bittensor", "bittensor_core", "websockets")
"""What the extra `chain` installs."""
DEMO = "murmur.lab.localnet.cluster"
OF_A_CLUSTER = (
    "murmur.cli.programs",
    "murmur.cluster.start",
    "murmur.cluster.member",
    "murmur.cli.main",
    "murmur.cli.cluster.command",
    "murmur.cli.cluster.create",
    "murmur.cli.cluster.doctor",
    "murmur.cli.cluster.requests",
    "murmur.cli.cluster.status",
    "murmur.page.live.cluster",
    "murmur.export.cluster_states",
)
SCRIPT = """
import importlib, json, sys

for name in sys.argv[1].split(","):
    sys.modules[name] = None
found = {}
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ImportError as fault:
        found[name] = str(fault)
print(json.dumps(found))
"""


def unimportable(modules: Sequence[str], without: Sequence[str]) -> dict[str, str]:
    """Those of the modules that cannot be imported where some libraries are not installed, and why."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(without), *modules],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_no_module_of_a_cluster_imports_anything_of_the_chain() -> None:
    assert unimportable(OF_A_CLUSTER, OF_THE_CHAIN) == {}


def test_the_demo_of_a_cluster_does_without_bittensor() -> None:
    """It supervises its processes as the local network does, whose devnet speaks through a websocket."""
    assert unimportable([DEMO], ["bittensor", "bittensor_core"]) == {}


def test_what_is_not_installed_is_told() -> None:
    assert list(unimportable(["json", "websockets", "murmur.chain.keys"], ["websockets"])) == ["websockets"]
