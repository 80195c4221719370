"""The floor that all others stand on is light."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ["torch", "boto3", "botocore", "bittensor", "datasets", "numpy", "loguru", "cryptography", "sqlite3"]
PROGRAM = """
import importlib, pkgutil, sys
import protocol
for module in pkgutil.iter_modules(protocol.__path__):
    importlib.import_module("protocol." + module.name)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_importing_all_of_protocol_imports_no_heavy_library_and_no_other_package_of_ours() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(result.stdout.split())
    assert {"protocol", "pydantic"} <= loaded
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"protocol"}
    assert not loaded & (set(HEAVY) | ours)
