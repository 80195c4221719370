"""Fetching, pinning and caching the runtime's metadata."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from murmur.lab.devnet import metadata
from murmur.lab.devnet.codec import Codec
from murmur.protocol.errors import ConfigError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache that is empty; the path at which the metadata would be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return metadata.cache_path()


def archive(folder: Path, name: str, content: object) -> Path:
    data = json.dumps(content).encode()
    path = folder / f"bittensor-{metadata.SDK_VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return path


def test_the_pinned_metadata_is_that_of_the_runtime_the_devnet_claims_to_be(codec: Codec) -> None:
    version = codec._runtime.constant("System", "Version")
    claimed = (metadata.SPEC_NAME, metadata.SPEC_VERSION, metadata.TRANSACTION_VERSION)
    assert (version["spec_name"], version["spec_version"], version["transaction_version"]) == claimed


def test_a_missing_cache_names_the_command_that_fills_it(cache: Path) -> None:
    assert not cache.exists()
    with pytest.raises(ConfigError, match=r"python -m murmur\.lab\.devnet\.metadata"):
        metadata.load_metadata()


def test_other_bytes_than_the_pinned_ones_are_refused(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"meta\x0f" + bytes(100))
    with pytest.raises(ConfigError, match="sha256"):
        metadata.load_metadata()


def test_the_fixture_of_the_source_distribution_is_unwrapped_and_checked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    real = b"meta" + b"\x0f" + bytes(10)
    name = f"bittensor-{metadata.SDK_VERSION}/{metadata.FIXTURE}"
    path = archive(tmp_path, name, {"metadata": {"v15_hex": "0x01" + "3c" + real.hex()}})
    with pytest.raises(ConfigError, match="sha256"):
        metadata._from_source_distribution(path)
    monkeypatch.setattr(metadata, "METADATA_SHA256", hashlib.sha256(real).hexdigest())
    monkeypatch.setattr(metadata, "_download", lambda folder: path)
    assert metadata.fetch_metadata() == cache
    assert metadata.load_metadata() == real
    monkeypatch.setattr(metadata, "_download", lambda folder: pytest.fail("it is there already"))
    metadata.fetch_metadata()
    assert list(cache.parent.iterdir()) == [cache]


def test_an_archive_without_the_fixture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="carries no"):
        metadata._from_source_distribution(archive(tmp_path, "something/else.json", {}))


def test_a_pip_that_finds_nothing_ends_the_set_up_with_one_line(tmp_path: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path)}
    environment = {**os.environ, **offline, "PIP_FIND_LINKS": ""}
    command = [sys.executable, "-m", "murmur.lab.devnet.metadata"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert "pip could not download" in done.stderr
    assert len(done.stderr.splitlines()) == 1
