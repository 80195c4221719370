"""Text in a bucket: it is read as that of a folder is, from a real server."""

from pathlib import Path

import pytest

from murmur.data.build import build
from murmur.lab.localnet.store import StoreReady
from murmur.protocol.errors import ConfigError
from storage.s3 import open_bucket
from tests.data.test_build import documents
from tests.data.test_formats import FILES, TEXTS, jsonl
from tests.storage.conftest import s3_folder, s3_store

__all__ = ["s3_folder", "s3_store"]
pytestmark = pytest.mark.check


def test_text_of_a_bucket_is_read_by_its_address(
    s3_store: StoreReady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = s3_store.users["miner-0"]
    bucket = open_bucket(s3_store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", user.write_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", user.write_secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    names = ("a.jsonl", "a.jsonl.zst", "a.parquet", "a.csv.gz")
    for number, name in enumerate(names):
        bucket.put(f"text/{number}/{name}", FILES[name](TEXTS), timeout_seconds=20)
    address = f"s3://{user.bucket}/text"
    build(address, tmp_path / "out", workers=2)
    assert sorted(documents(tmp_path / "out")) == sorted(text.encode() for text in TEXTS * len(names))
    build(f"{address}/0/a.jsonl", tmp_path / "one")
    assert len(documents(tmp_path / "one")) == len(TEXTS)
    with pytest.raises(ConfigError, match="holds no files"):
        build(f"s3://{user.bucket}/nowhere", tmp_path / "never")
    bucket.put("text/0/a.jsonl", jsonl(["changed", "text"]), timeout_seconds=20)
    build(f"{address}/**/*.jsonl", tmp_path / "pattern")
    assert sorted(documents(tmp_path / "pattern")) == [b"changed", b"text"]
