"""A store that cannot decide rounds is refused by name before a run begins in it: by `create`, `rotate`, `doctor` and
the demo."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from murmur.cli.cluster import doctor
from murmur.cli.main import main
from murmur.cluster.bootstrap import open_shared
from murmur.cluster.creation import place
from murmur.cluster.group_keys import Token, parse_token
from murmur.configs import presets
from murmur.lab.localnet import cluster as demo
from murmur.lab.localnet.store import StoreReady, read_ready
from murmur.protocol.errors import ConfigError
from storage.behaviour import STORES_THAT_CREATE_ONCE
from storage.s3 import S3Bucket
from tests.cli.test_cluster import SECRET, words_for
from tests.storage.conftest import served
from tests.storage.faults import takes_no_condition
from tests.storage.proxy import Fault, proxied

BAD = ["overwrites", "400 Bad Request", "501 Not Implemented"]
"""What a store does with the condition."""
TOKEN_FILE = Path("ours.token")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReady]:
    """A sound S3 server: the bucket `other` holds a run, `shared` none."""
    folder = tmp_path_factory.mktemp("cluster")
    store = folder / "store"
    with served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "shared", "other"], store / "ready.json"):
        yield read_ready(store / "ready.json")


@pytest.fixture(scope="module")
def run(ready: StoreReady, tmp_path_factory: pytest.TempPathFactory) -> Token:
    """The token of the run in `other`."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        words = words_for(ready, folder, patch)
        user = ready.users["other"]
        patch.setenv(SECRET, user.write_secret_key)
        words = [*words, "--bucket.name", user.bucket, "--bucket.access_key", user.write_access_key]
        assert main([*words, "--local"]) == 0
        return parse_token((folder / TOKEN_FILE).read_text())


@contextmanager
def made_bad(how: str, endpoint: str) -> Iterator[str]:
    """The endpoint of the same store, which treats the condition so."""

    def overwrites(self: S3Bucket, key: str, data: bytes, *, timeout_seconds: float) -> bool:
        self.put(key, data, timeout_seconds=timeout_seconds)
        return True

    if how == "overwrites":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(S3Bucket, "create", overwrites)
            yield endpoint
    else:
        with proxied(endpoint) as proxy:
            proxy.faults.append(Fault(takes_no_condition(how, "NotImplemented"), ("PutObject",)))
            yield proxy.endpoint


def is_refusal(told: str) -> bool:
    shown = " ".join(told.split())
    return "If-None-Match" in shown and f"Use another store: {STORES_THAT_CREATE_ONCE}" in shown


@pytest.mark.parametrize("how", BAD)
def test_no_run_begins_in_a_store_that_does_not_create_once(
    ready: StoreReady, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_for(ready, tmp_path, monkeypatch)
    with made_bad(how, ready.endpoint) as endpoint:
        assert main([*words, "--bucket.endpoint", endpoint, "--local"]) == 2
    assert is_refusal(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == [], "neither a token nor theta_0"
    user = ready.users["shared"]
    shared = place(ready.endpoint, user.bucket, user.write_access_key, user.write_secret_key, local=True)
    assert open_shared(shared).list("", max_keys=1000, timeout_seconds=10) == ()


@pytest.fixture
def old(run: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """The run's token with a key that its store knows no more, in a file of the current folder. The environment has the
    secret of the key that it gets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SECRET, run.secret_key)
    return run.model_copy(update={"access_key": "old", "secret_key": "older"})


@pytest.mark.parametrize("how", BAD)
def test_no_token_gets_a_key_of_a_store_that_does_not_create_once(
    run: Token, old: Token, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = open_shared(run)
    before = bucket.list("", max_keys=1000, timeout_seconds=10)
    with made_bad(how, run.endpoint) as endpoint:
        line = old.model_copy(update={"endpoint": endpoint}).encode() + "\n"
        TOKEN_FILE.write_text(line)
        assert main(["cluster", "rotate", "ours", "--bucket.access_key", run.access_key]) == 2
    assert is_refusal(capsys.readouterr().err)
    assert TOKEN_FILE.read_text() == line
    assert [path.name for path in Path().iterdir()] == [TOKEN_FILE.name]
    assert bucket.list("", max_keys=1000, timeout_seconds=10) == before


def test_a_token_gets_a_key_of_a_store_that_creates_once(
    run: Token, old: Token, capsys: pytest.CaptureFixture[str]
) -> None:
    TOKEN_FILE.write_text(old.encode() + "\n")
    assert main(["cluster", "rotate", "ours", "--bucket.access_key", run.access_key]) == 0
    assert "has the new key" in capsys.readouterr().out
    assert parse_token(TOKEN_FILE.read_text()) == run


@pytest.mark.parametrize("how", BAD[1:])
def test_doctor_says_of_a_store_that_refuses_the_condition_what_it_says_of_one_that_overwrites(
    run: Token, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [check for check in doctor.CHECKS if check.name not in ("links", "pace", "memory")]
    monkeypatch.setattr(doctor, "CHECKS", quick)
    with made_bad(how, run.endpoint) as endpoint:
        (tmp_path / "token").write_text(run.model_copy(update={"endpoint": endpoint}).encode())
        where = ["--token-file", str(tmp_path / "token"), "--home", str(tmp_path / "home"), "--device", "cpu"]
        assert main(["cluster", "doctor", *where, "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    [fault] = [check for check in checks if check["status"] == "fault"]
    assert fault["name"] == "once"
    assert "two members could close one round differently" in fault["detail"]
    assert STORES_THAT_CREATE_ONCE in fault["fix"]


def test_no_demo_begins_in_a_store_that_does_not_create_once(tmp_path: Path) -> None:
    processes = demo.prepare(tmp_path)
    try:
        with made_bad("overwrites", ""), pytest.raises(ConfigError, match="If-None-Match"):
            demo.set_up(tmp_path, processes, 0, presets.table("tiny"), lambda line: None)
    finally:
        processes.stop()
    assert not (tmp_path / "token").exists()
    assert not (tmp_path / "theta").exists()
