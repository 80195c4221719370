"""The floor that all others stand on is light."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ["torch", "boto3", "botocore", "bittensor", "datasets", "numpy", "loguru", "cryptography", "sqlite3"]
PROGRAM = """
import importlib, pkgutil, sys
from murmur import protocol
for module in pkgutil.iter_modules(protocol.__path__):
    importlib.import_module("murmur.protocol." + module.name)
print(*sorted(sys.modules))
"""


def test_importing_all_of_protocol_imports_no_heavy_library_and_no_other_package_of_ours() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(result.stdout.split())
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {"murmur.protocol.spec", "pydantic"} <= loaded
    assert not {name.split(".")[0] for name in loaded} & (set(HEAVY) | ours - {"murmur"})
    assert all(f"{name}.".startswith("murmur.protocol.") for name in loaded - {"murmur"} if name.startswith("murmur."))
