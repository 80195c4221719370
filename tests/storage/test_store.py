"""localnet's store over real HTTP: who may do what, and what it refuses at start."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from localnet.store import StoreReady, main, read_ready
from protocol.errors import AccessDenied
from storage.s3 import open_bucket, open_pointer
from tests.storage.conftest import served

SECONDS = 20.0


@pytest.mark.parametrize(
    "path", ["/miner-0/key", "/miner-0", "/", "/moto-api/reset", "/moto-api/reset-auth", "//moto-api/"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_nobody_gets_anything_without_a_key(moto_store: StoreReady, method: str, path: str) -> None:
    request = urllib.request.Request(moto_store.endpoint + path, method=method, data=b"0" if method != "GET" else None)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 403


def test_a_signature_with_another_secret_is_refused(moto_store: StoreReady) -> None:
    user = moto_store.users["miner-0"]
    forged = open_bucket(moto_store.endpoint, user.bucket, user.write_access_key, "x" * 40, local=True)
    with pytest.raises(AccessDenied):
        forged.put("key", b"data", timeout_seconds=SECONDS)
    unknown = open_bucket(moto_store.endpoint, user.bucket, "AKIAUNKNOWN", user.write_secret_key, local=True)
    with pytest.raises(AccessDenied):
        unknown.get("key", max_bytes=10, timeout_seconds=SECONDS)


def test_a_peers_keys_open_no_other_bucket(moto_store: StoreReady) -> None:
    mine, theirs = moto_store.users["miner-0"], moto_store.users["miner-1"]
    pairs = ((mine.write_access_key, mine.write_secret_key), (mine.read_access_key, mine.read_secret_key))
    for access, secret in pairs:
        bucket = open_bucket(moto_store.endpoint, theirs.bucket, access, secret, local=True)
        with pytest.raises(AccessDenied):
            bucket.put("key", b"data", timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.get("key", max_bytes=10, timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.list("", max_keys=10, timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.delete("key", timeout_seconds=SECONDS)


def test_the_published_pointer_reads_and_does_not_write(moto_store: StoreReady) -> None:
    user = moto_store.users["miner-0"]
    owner = open_bucket(moto_store.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    owner.put("shared", b"data", timeout_seconds=SECONDS)
    reader = open_pointer(moto_store.pointer("miner-0"), local=True)
    assert reader.get("shared", max_bytes=4, timeout_seconds=SECONDS) == b"data"
    with pytest.raises(AccessDenied):
        reader.put("shared", b"mine", timeout_seconds=SECONDS)


def test_secrets_are_not_in_the_repr(moto_store: StoreReady) -> None:
    for user in moto_store.users.values():
        assert user.write_secret_key not in repr(moto_store)
        assert user.read_secret_key not in repr(moto_store)


def test_the_ready_file_is_for_its_owner_only_and_the_process_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text('["only-one"]')
    ready = tmp_path / "ready.json"
    arguments = ["--ready-file", str(ready), "--users", str(tmp_path / "users.json")]
    with served(["-m", "localnet.store", *arguments], ready) as process:
        assert ready.stat().st_mode & 0o777 == 0o600
        assert read_ready(ready).endpoint.startswith("http://127.0.0.1:")
    assert process.returncode == 0


@pytest.mark.parametrize("content", ["", "{}", '["ab"]', '["UPPER"]', '["a/b"]', "[1]", '["twice", "twice"]'])
def test_names_that_cannot_be_buckets_are_refused_at_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "users.json").write_text(content)
    arguments = ["--ready-file", str(tmp_path / "ready"), "--users", str(tmp_path / "users.json")]
    assert main(arguments) == 2
    assert "users.json" in capsys.readouterr().err
    assert not (tmp_path / "ready").exists()


def test_a_taken_port_is_named(tmp_path: Path, moto_store: StoreReady, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "users.json").write_text(json.dumps(["miner-0"]))
    port = moto_store.endpoint.rpartition(":")[2]
    arguments = ["--port", port, "--ready-file", str(tmp_path / "ready"), "--users", str(tmp_path / "users.json")]
    assert main(arguments) == 2
    assert port in capsys.readouterr().err
