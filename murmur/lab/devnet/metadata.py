"""The runtime metadata that the devnet uses: fetched once at set-up, checked, cached outside the source tree.

`python -m murmur.lab.devnet.metadata` takes it from the bittensor SDK's *source distribution* with pip, from pip's
configured index. That distribution's test fixtures hold the metadata of a real subtensor runtime; the wheel does not.
The bytes are pinned by digest, so their origin does not matter. It is never committed: it is the SDK's, not ours.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from murmur import files
from murmur.homes import expanded
from murmur.protocol.errors import ConfigError

SDK_VERSION = "11.3.0"
FIXTURE = "tests/fixtures/golden.json"
SPEC_VERSION = 461
TRANSACTION_VERSION = 1
SPEC_NAME = "node-subtensor"
METADATA_SHA256 = "0d812a161c40efbe58ac13785cb579ab79b0bc7c4b57f5bcd27981501a8c8ca8"
"""Digest of the `MetadataVersioned` bytes (version 15), magic included."""

COMMAND = "python -m murmur.lab.devnet.metadata"


def cache_path() -> Path:
    """Return the metadata's path: $XDG_CACHE_HOME/murmur, else ~/.cache/murmur."""
    base = os.environ.get("XDG_CACHE_HOME") or str(expanded("~/.cache"))
    return Path(base) / "murmur" / f"subtensor-{SPEC_VERSION}-v15.bin"


def load_metadata() -> bytes:
    """Return the pinned metadata. Raises ConfigError when it was not fetched yet or is not the pinned one."""
    path = cache_path()
    try:
        metadata = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the devnet's runtime metadata is not at {path} ({error.strerror}): run `{COMMAND}` once (make setup does)"
        ) from error
    _check(metadata, str(path))
    return metadata


def fetch_metadata() -> Path:
    """Fetch the metadata into the cache unless it is there already; return its path.

    Raises ConfigError when pip cannot get the source distribution or its fixture is not the pinned one.
    """
    path = cache_path()
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == METADATA_SHA256:
        return path
    with tempfile.TemporaryDirectory(prefix="murmur-metadata-") as folder:
        metadata = _from_source_distribution(_download(Path(folder)))
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, metadata)
    return path


def _download(folder: Path) -> Path:
    requirement = f"bittensor=={SDK_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "bittensor"]
    done = subprocess.run([*command, "-d", str(folder), requirement], capture_output=True, text=True, check=False)
    archives = sorted(folder.glob("bittensor-*.tar.gz"))
    if done.returncode != 0 or not archives:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ConfigError(f"pip could not download the source distribution of {requirement}: {reason}")
    return archives[0]


def _from_source_distribution(archive: Path) -> bytes:
    name = f"bittensor-{SDK_VERSION}/{FIXTURE}"
    with tarfile.open(archive) as tar:
        try:
            member = tar.extractfile(name)
        except KeyError:
            member = None
        if member is None:
            raise ConfigError(f"{archive.name} carries no {name}: another SDK version than {SDK_VERSION}?")
        fixture = json.load(member)
    option = bytes.fromhex(fixture["metadata"]["v15_hex"].removeprefix("0x"))
    metadata = option[option.index(b"meta") :]  # Option byte and compact length precede the magic
    _check(metadata, archive.name)
    return metadata


def _check(metadata: bytes, origin: str) -> None:
    digest = hashlib.sha256(metadata).hexdigest()
    if digest != METADATA_SHA256:
        raise ConfigError(
            f"the metadata in {origin} has sha256 {digest}, expected {METADATA_SHA256}: delete it and run `{COMMAND}`"
        )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"runtime metadata: {fetch_metadata()}\n")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
