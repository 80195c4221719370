"""`murmur cluster`: a run put up on a real S3 server, its token, who is where; and the demo."""

import json
import os
import re
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from murmur.cli.cluster import create
from murmur.cli.dashboard import _cluster
from murmur.cli.main import main
from murmur.cluster.bootstrap import Group, find_spec, is_member, member_of, open_shared, require_group
from murmur.cluster.group_keys import parse_token
from murmur.cluster.ledger import Ledger
from murmur.lab.localnet.store import StoreReady, read_ready
from murmur.lab.localnet.training_text import text_data
from murmur.node.state.store import StateStore
from murmur.page.server import Watched
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Digest, PeerId
from storage.realtime import REAL
from tests.cluster.beats import Beats
from tests.page.synthetic_cluster import spec
from tests.storage.conftest import served

SECRET = "MURMUR_BUCKET__SECRET_KEY"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Of `create`, in a folder of its own, beside an S3 server."""
    store = tmp_path / "store"
    with served(["-m", "murmur.lab.localnet.seaweed", "--folder", str(store), "shared"], store / "ready.json"):
        yield words_for(read_ready(store / "ready.json"), tmp_path, monkeypatch)


def words_for(s3_store: StoreReady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    user = s3_store.users["shared"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SECRET, user.write_secret_key)
    data = text_data(lambda line: None)
    where = ["--bucket.endpoint", s3_store.endpoint, "--bucket.name", user.bucket]
    return ["cluster", "create", "ours", "--data", str(data), *where, "--bucket.access_key", user.write_access_key]


def test_theta_is_exported_by_the_token_and_proved_by_it(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*words, "--local"]) == 0
    capsys.readouterr()
    for flag in ([], ["--fp32"]):
        folder = str(tmp_path / f"out{len(flag)}")
        assert main(["export", "ours.token", folder, *flag]) == 0
        theta = re.search(r"theta digest ([0-9a-f]{64})", capsys.readouterr().out)
        assert theta is not None
        assert main(["export", "--verify", folder]) == 2  # a cluster's bucket is not public
        assert main(["export", "--verify", folder, "ours.token"]) == 0
        proof = capsys.readouterr().out
        assert "of the cluster ours" in proof
        assert f"theta digest {theta.group(1)}; nothing names it yet" in proof
        assert "by the members of a cluster" in (Path(folder) / "README.md").read_text()
    assert main(["export", "ours.token", str(tmp_path / "later"), "--round", "3"]) == 2
    assert "checkpoints of the rounds 0" in capsys.readouterr().err
    tensors = tmp_path / "out1" / "model.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    assert main(["export", "--verify", str(tmp_path / "out1"), "ours.token"]) == 1


def test_a_run_is_created_once_and_who_holds_the_token_sees_it(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*words, "--local"]) == 0
    said = capsys.readouterr().out
    assert os.environ[SECRET] not in said
    assert stat.S_IMODE(Path("ours.token").stat().st_mode) == 0o600
    assert main(["cluster", "invite", "ours"]) == 0
    token = parse_token(capsys.readouterr().out)
    bucket, run = open_shared(token), token.run_id
    spec = find_spec(bucket, run)
    assert (spec.name, spec.model.layers) == ("ours", 2)
    with pytest.raises(ConfigError, match="belongs to another group"):
        require_group(bucket, run, Group("99" * 32))

    ledger = Ledger(bucket, run, Group(token.secret), PeerId(b"\7" * 32), REAL)
    Beats(ledger, "lab-a").leave()
    assert main(["cluster", "status", "--token-file", "ours.token", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(member["name"], member["phase"], member["alive"]) for member in found["members"]] == [
        ("lab-a", "left", False)
    ]
    assert main(["cluster", "status", "--token-file", "ours.token"]) == 0
    assert "members alive: 0" in capsys.readouterr().out

    watched = Watched(_cluster(Path("ours.token")))
    try:
        end = time.monotonic() + 60
        while not (told := json.loads(watched.answer(0)))["cluster"]["members"]:
            assert time.monotonic() < end, told
            time.sleep(0.05)
            watched.read()
        assert (told["run"], told["rounds"]) == ("ours", [])
        assert [(member["name"], member["state"]) for member in told["cluster"]["members"]] == [("lab-a", "left")]
        shown = watched.answer(0).decode() + watched.short(0, 0).decode() + capsys.readouterr().err
        assert not [part for part in (token.access_key, token.secret_key, token.secret) if part in shown]
    finally:
        watched.close()

    assert main([*words, "--local"]) == 2
    assert "exists already" in capsys.readouterr().err
    monkeypatch.delenv(SECRET)
    Path("ours.token").unlink()
    assert main([*words, "--local"]) == 2
    assert SECRET in capsys.readouterr().err


def test_whoever_is_killed_while_it_creates_a_run_has_the_token_of_what_is_in_the_bucket(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Nothing of the command runs after it."""

    def killed(*_: object) -> None:
        require_group(*_)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(create, "require_group", killed)
        with pytest.raises(Killed):
            main([*words, "--local"])
    token = parse_token(Path("ours.token").read_text().strip())
    require_group(open_shared(token), token.run_id, Group(token.secret))
    Path("ours.token").rename("kept.token")
    capsys.readouterr()
    assert main([*words, "--local"]) == 2, "theta_0 is the same, so the run is"
    assert "belongs to another group" in capsys.readouterr().err
    assert not Path("ours.token").exists(), "a token that opens nothing is not left behind"


def test_doctor_makes_no_member_of_a_machine(tmp_path: Path) -> None:
    """A first start ends if the bucket does not answer; a member's start waits."""
    run = Digest(bytes(32))
    member_of(tmp_path, run, "lab-a")
    assert not is_member(tmp_path, run)
    StateStore(tmp_path, run).close()
    assert is_member(tmp_path, run)


def test_a_member_without_its_token_is_told_what_to_do(tmp_path: Path) -> None:
    def member(*more: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "murmur", "member", "--home", str(tmp_path), *more]
        return subprocess.run(program, capture_output=True, text=True, timeout=60)

    done = member()
    assert done.returncode == 2
    assert "token_file" in done.stderr
    done = member("--token-file", str(tmp_path / "none"), "--name", "lab-a")
    assert (done.returncode, done.stderr) == (
        2,
        f"cannot read the token file {tmp_path / 'none'}: No such file or directory\n",
    )
    (tmp_path / "half").write_text("murmur1.abc")
    done = member("--token-file", str(tmp_path / "half"), "--name", "lab-a")
    assert done.returncode == 2
    assert "murmur cluster invite" in done.stderr


def test_the_demo_has_a_page_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def play(folder: Path, *words: object, quiet: bool) -> dict[str, object]:
        url = capsys.readouterr().err.split()[-1]
        (folder / "spec.json").write_bytes(spec().to_bytes())
        with urllib.request.urlopen(f"{url}api/rounds", timeout=60) as answer:
            told.append(json.load(answer)["sentence"])
        return {"identical": True, "rounds": 12}

    monkeypatch.setattr("murmur.lab.localnet.cluster.play", play)
    assert main(["cluster", "demo", "--folder", str(tmp_path / "run")]) == 0
    assert told[0].startswith("Starting") or told[0] == "Round 0 is being played."


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("spec", ["tiny", "murmur/configs/clusters/intellect-demo.toml"])
def test_the_demo_ends_with_identical_models_kills_included(tmp_path: Path, spec: str) -> None:
    """Without Bittensor: a package of that name that cannot be imported stands before it."""
    for name in ("bittensor", "bittensor_wallet"):
        (tmp_path / "none" / name).mkdir(parents=True)
        (tmp_path / "none" / name / "__init__.py").write_text("raise ImportError('not installed')")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'none'}:{root}"}
    folder = str(tmp_path / "run")
    demo = ["-m", "murmur", "cluster", "demo", "--spec", spec, "--members", "4", "--kill", "2", "--json"]
    done = subprocess.run(
        [sys.executable, *demo, "--folder", folder],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["identical"]
    assert (result["rounds"], result["kills"], result["repeated_steps"]) == (12, 2, 0)
    assert result["loss_last"] < (3.2 if spec == "tiny" else 3.6) < 4.5 < result["loss_first"]
