"""Text in a bucket: it is read as that of a folder is, from a real server."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.job import BUILDING
from murmur.data.place import entries, place_of
from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import ConfigError
from storage.s3 import S3Bucket, open_bucket
from tests.data.test_build import contents, documents, text_folder
from tests.data.test_formats import FILES, TEXTS, jsonl
from tests.storage.conftest import s3_folder, s3_store

__all__ = ["s3_folder", "s3_store"]
pytestmark = pytest.mark.check


@pytest.fixture
def bucket(s3_store: StoreReady, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """A bucket that the usual variables reach."""
    user = s3_store.users["miner-0"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", user.write_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", user.write_secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return open_bucket(s3_store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


def test_text_of_a_bucket_is_read_by_its_address(bucket: S3Bucket, s3_store: StoreReady, tmp_path: Path) -> None:
    names = ("a.jsonl", "a.jsonl.zst", "a.parquet", "a.csv.gz")
    for number, name in enumerate(names):
        bucket.put(f"text/{number}/{name}", FILES[name](TEXTS), timeout_seconds=20)
    address = f"s3://{s3_store.users['miner-0'].bucket}/text"
    build(address, tmp_path / "out", workers=2)
    found = Counter(documents(tmp_path / "out"))
    assert found.keys() == {text.encode() for text in TEXTS}
    assert min(found.values()) == 1, "copies of what is held out are left out"
    assert max(found.values()) == len(names)
    build(f"{address}/0/a.jsonl", tmp_path / "one")
    assert len(documents(tmp_path / "one")) == len(TEXTS)
    with pytest.raises(ConfigError, match="holds no files"):
        build(f"s3://{s3_store.users['miner-0'].bucket}/nowhere", tmp_path / "never")
    bucket.put("text/0/a.jsonl", jsonl(["changed", "text"]), timeout_seconds=20)
    build(f"{address}/**/*.jsonl", tmp_path / "pattern")
    assert sorted(documents(tmp_path / "pattern")) == [b"changed", b"text"]


@pytest.mark.usefixtures("bucket")
def test_a_data_set_in_a_bucket_is_that_of_a_folder_also_when_its_build_is_killed(
    s3_store: StoreReady, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(text_folder(tmp_path))
    build(source, tmp_path / "out", held_out=0.2)
    out = place_of(f"s3://{s3_store.users['miner-0'].bucket}/made/set")
    words = ["--from", source, "--out", str(out), *["--held-out", "0.2", "--workers", "2", "--tasks", "20"]]
    driver = subprocess.Popen([sys.executable, "-m", "murmur", "shards", "build", *words])
    while not entries(out / BUILDING / "tables"):
        assert driver.poll() is None
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    with pytest.raises(ConfigError, match="other options"):
        build(source, out, seed=5)
    build(source, out, held_out=0.2, workers=2)
    found = {each.name: each.read_bytes() for each in entries(out) if each.name != BUILDING}
    assert found == contents(tmp_path / "out")
    assert main(["shards", "show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == sha256(found["index.json"]).hexdigest()
    with pytest.raises(ConfigError, match="already holds a data set"):
        build(source, out, held_out=0.2)
    assert main(["shards", "show", f"{out}/nowhere"]) == 2
    assert "no data set in" in capsys.readouterr().err
