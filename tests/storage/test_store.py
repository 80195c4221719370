"""localnet's store over real HTTP: who may do what, and what it refuses at start."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from localnet.store import StoreReady, main, read_ready
from protocol.errors import AccessDenied, StorageError
from storage.s3 import PART_BYTES, open_bucket, open_pointer
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


def test_a_killed_store_comes_back_with_its_address_credentials_objects_and_unfinished_uploads(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text('["miner-0", "miner-1"]')
    ready = tmp_path / "ready.json"
    command = ["-m", "localnet.store", "--ready-file", str(ready), "--users", str(tmp_path / "users.json")]
    with served(command, ready) as process:
        before = read_ready(ready)
        user = before.users["miner-0"]
        owner = open_bucket(before.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
        owner.put("kept/1", b"first", timeout_seconds=SECONDS)
        owner.put("kept/1", b"second", timeout_seconds=SECONDS)
        owner.put("gone", b"x", timeout_seconds=SECONDS)
        owner.delete("gone", timeout_seconds=SECONDS)
        done, begun = (owner.begin(key, timeout_seconds=SECONDS) for key in ("parts", "begun"))
        done.put(1, bytes(PART_BYTES), timeout_seconds=SECONDS)
        done.put(2, b"end", timeout_seconds=SECONDS)
        done.complete(timeout_seconds=SECONDS)
        begun.put(1, b"half", timeout_seconds=SECONDS)
        facts = {key: owner.head(key, timeout_seconds=SECONDS) for key in ("kept/1", "parts")}
        process.kill()
        process.wait()
    with served([*command, "--port", "1"], ready):  # its port is the one that it had
        until = time.monotonic() + 30
        while True:
            try:
                assert owner.get("kept/1", max_bytes=100, timeout_seconds=SECONDS) == b"second"
                break
            except StorageError:
                assert time.monotonic() < until
        assert read_ready(ready) == before
        reader = open_pointer(before.pointer("miner-0"), local=True)
        assert reader.list("", max_keys=10, timeout_seconds=SECONDS) == ("kept/1", "parts")
        assert {key: reader.head(key, timeout_seconds=SECONDS) for key in ("kept/1", "parts")} == facts
        assert reader.get("parts", max_bytes=PART_BYTES + 3, timeout_seconds=SECONDS) == bytes(PART_BYTES) + b"end"
        with pytest.raises(AccessDenied):
            reader.put("kept/1", b"mine", timeout_seconds=SECONDS)
        begun.complete(timeout_seconds=SECONDS)
        assert reader.get("begun", max_bytes=100, timeout_seconds=SECONDS) == b"half"


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
