"""`murmur cluster drain`, `amend`, `close`, `rotate` on a real S3 server; and processes that follow them."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.cluster.bootstrap import member_id, open_shared
from murmur.cluster.group_keys import Group, Token, parse_token
from murmur.cluster.ledger import Ledger
from murmur.configs import presets
from murmur.lab.localnet import cluster as demo
from murmur.lab.localnet.store import StoreReady, read_ready
from murmur.protocol import keys
from murmur.protocol.types import PeerId
from storage.realtime import REAL
from tests.cli.test_cluster import SECRET, words_for
from tests.cluster.beats import Beats
from tests.storage.conftest import served


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Token, StoreReady]]:
    folder = tmp_path_factory.mktemp("cluster")
    store = folder / "store"
    with (
        served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "shared", "other"], store / "ready.json"),
        pytest.MonkeyPatch.context() as patch,
    ):
        ready = read_ready(store / "ready.json")
        assert main([*words_for(ready, folder, patch), "--local"]) == 0
        yield parse_token((folder / "ours.token").read_text()), ready


@pytest.fixture
def token(run: tuple[Token, StoreReady], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """In the file ours.token of the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("ours.token").write_text(run[0].encode() + "\n")
    return run[0]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["cluster", *words])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


OURS = ("--token-file", "ours.token")


def test_a_member_is_drained_by_its_name(token: Token, capsys: pytest.CaptureFixture[str]) -> None:
    me = member_id(token.run_id, "lab-a")
    ledger = Ledger(open_shared(token), token.run_id, Group(token.secret), me, REAL)
    status, told = said(capsys, "drain", "lab-a", *OURS)
    assert (status, "has no member lab-a" in told) == (2, True)
    Beats(ledger, "lab-a").beat()
    assert not ledger.drained()
    status, told = said(capsys, "drain", "lab-a", *OURS)
    assert (status, "leaves when its round is over" in told) == (0, True)
    first = ledger.drained()
    assert first is not None
    said(capsys, "drain", "lab-a", *OURS)
    assert ledger.drained() not in (None, first)
    ledger.left()
    assert not ledger.drained()
    Beats(ledger, "lab-a").leave()
    assert said(capsys, "drain", "lab-a", *OURS)[0] == 2


def test_settings_are_amended_and_the_run_is_closed_once(token: Token, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(open_shared(token), token.run_id, Group(token.secret), PeerId(bytes(32)), REAL)
    assert said(capsys, "amend", *OURS)[0] == 2
    for word, why in (
        ("model.layers=3", "not model"),
        ("cluster.silent_seconds=1", "three beats"),
        ("inner.optimizer=adamw", "inner.optimizer"),
        ("inner.peak_lr", "TABLE.FIELD=VALUE"),
    ):
        status, told = said(capsys, "amend", *OURS, "--set", word)
        assert (status, why in told) == (2, True), told
    assert ledger.amendment(1) is None
    status, told = said(capsys, "amend", *OURS, "--set", "inner.peak_lr=1e-4", "--set", "cluster.silent_seconds=60.0")
    assert status == 0
    assert "-> 0.0001" in told
    assert "cluster.silent_seconds: 20.0 -> 60.0" in told
    status, told = said(capsys, "amend", *OURS, "--set", "cluster.silent_seconds=90.0")
    assert "60.0 -> 90.0" in told  # on top of the first, which nobody has seen yet
    assert said(capsys, "close", *OURS) == (2, said(capsys, "close", *OURS)[1])  # nobody can be asked
    assert ledger.amendment(3) is None
    assert said(capsys, "close", *OURS, "--yes")[0] == 0
    last = ledger.amendment(3)
    assert last is not None
    assert last.last
    for words in (["close", *OURS, "--yes"], ["amend", *OURS, "--set", "inner.peak_lr=1e-3"]):
        status, told = said(capsys, *words)
        assert (status, "is closed" in told) == (2, True)


def test_a_token_gets_another_key_once_that_is_known_to_work(
    run: tuple[Token, StoreReady], token: Token, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run[1].users["shared"]
    monkeypatch.setenv(SECRET, "wrong")
    before = Path("ours.token").read_bytes()
    status, told = said(capsys, "rotate", "ours", "--bucket.access_key", "wrong")
    assert (status, Path("ours.token").read_bytes()) == (2, before)
    assert "the store refuses the token's key" in told
    monkeypatch.setenv(SECRET, other.read_secret_key)
    status, told = said(capsys, "rotate", "ours", "--bucket.access_key", other.read_access_key)
    assert (status, "to list, read, write and delete in the whole bucket" in told) == (2, True)  # it may only read
    assert Path("ours.token").read_bytes() == before
    monkeypatch.setenv(SECRET, "never-shown" * 60)
    status, told = said(capsys, "rotate", "ours", "--bucket.access_key", "other")
    assert (status, "secret_key: String should have at most" in told, "never" in told) == (2, True, False)
    assert Path("ours.token").read_bytes() == before
    monkeypatch.setenv(SECRET, token.secret_key)
    assert said(capsys, "rotate", "ours", "--bucket.access_key", token.access_key)[0] == 2
    assert [path.name for path in Path().iterdir()] == ["ours.token"]


def test_a_group_whose_mark_is_lost_or_overwritten_is_told_from_another_one(
    token: Token, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, key = open_shared(token), keys.group(token.run_id)
    mark = bucket.get(key, max_bytes=100, timeout_seconds=10)
    try:
        bucket.put(key, b"damaged", timeout_seconds=10)
        status, told = said(capsys, "status", *OURS[:2])
        assert status == 0, "it reads only what this group has signed"
        status, told = said(capsys, "amend", *OURS, "--set", "inner.peak_lr=1e-4")
        assert status == 2
        assert f"{key} says so" in told
        assert "If other members run with this same token, the object is damaged: delete it" in told
        bucket.delete(key, timeout_seconds=10)
        assert said(capsys, "drain", "nobody", *OURS)[1].endswith("its members are nobody\n")
    finally:
        bucket.put(key, mark, timeout_seconds=10)


def test_a_token_is_replaced_whole(tmp_path: Path, token: Token) -> None:
    from murmur.cli.cluster.requests import replace_token

    new = token.model_copy(update={"access_key": "new", "secret_key": "newer"})
    replace_token(Path("ours.token"), new.encode())
    found = parse_token(Path("ours.token").read_text())
    assert (found, found.secret) == (new, token.secret)
    assert stat.S_IMODE(Path("ours.token").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ours.token"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_members_as_processes_follow_what_is_wished(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One is drained and ends with 0; the run is amended and closed, and the other ends with 0; who comes later learns
    that there is nothing to train."""
    processes = demo.prepare(tmp_path)
    members: dict[str, subprocess.Popen[str]] = {}

    def start(name: str) -> None:
        program = [sys.executable, *demo.program(tmp_path, name)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        members[name] = subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True)

    def ended(name: str) -> str:
        _, told = members[name].communicate(timeout=240)
        assert members[name].returncode == 0, told
        assert "Traceback" not in told
        return told

    try:
        token, spec = demo.set_up(tmp_path, processes, 0, presets.table("tiny"), lambda line: None)
        ledger = Ledger(open_shared(token), spec.digest, Group(token.secret), PeerId(bytes(32)), REAL)
        ours = ["--token-file", str(tmp_path / "token")]
        start("lab-a")
        start("lab-b")

        def until(rounds: int) -> None:
            end = time.monotonic() + 240
            while ledger.rounds() < rounds:
                assert time.monotonic() < end
                time.sleep(0.5)

        until(2)
        assert main(["cluster", "drain", "lab-a", *ours]) == 0
        assert "drained: round" in ended("lab-a")
        until(ledger.rounds() + 1)
        assert main(["cluster", "amend", *ours, "--set", "outer.alpha=0.9"]) == 0
        assert main(["cluster", "close", *ours, "--yes"]) == 0
        assert "the run is closed: round" in ended("lab-b")
        capfd.readouterr()
        assert main(["cluster", "status", *ours, "--json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert (found["amendments"], found["closed"]) == (2, True)
        start("lab-a")
        assert "There is nothing to train" in ended("lab-a")
    finally:
        for process in members.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        processes.stop()
