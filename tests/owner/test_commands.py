"""`murmur run create` and `publish` over a real chain interface and a real S3 server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import murmur.cli.run.amend
import murmur.cli.run.publish
import murmur.owner.publish
from murmur.cli.main import main
from murmur.cli.run import questions
from murmur.data.shards import Shards
from murmur.node.config.settings import load
from murmur.node.doctor.start import ready
from murmur.owner.folder import open_folder
from murmur.protocol import keys
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest
from tests.owner.world import CLOCK, NETUID, ROOT, TABLE, World
from tests.small_run import data_set

pytestmark = pytest.mark.usefixtures("clean")


def test_a_folder_has_all_of_a_run_but_its_first_block(
    world: World, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder(made)
    data = Shards.open(folder.data)
    spec = RunSpec.model_validate(dict(folder.table))
    data.check(spec)
    subnet = world.chain.subnet(world.chain.finalized().block)
    assert (spec.name, spec.local, spec.owner_id) == ("my-run", True, world.peers["owner"])
    assert (spec.chain, spec.netuid) == (world.chain.genesis().hex(), NETUID)
    assert (spec.clock.tempo, spec.clock.weights_rate_limit) == (subnet.tempo, subnet.weights_rate_limit) == (20, 20)
    assert (spec.clock.block_seconds, spec.clock.round_blocks) == (12.0, 60)
    assert folder.spec is None
    told = "".join(path.read_text() for path in made.rglob("*") if path.suffix in (".json", ".toml"))
    for secret in (world.user("owner").write_secret_key, world.user("owner").read_secret_key):
        assert secret not in told
    assert main(["run", "show", str(made)]) == 0
    assert "not published yet" in capsys.readouterr().out
    assert world.create(made) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_the_presets_vocabulary_is_that_of_the_data_and_its_amendments_are_kept(world: World, tmp_path: Path) -> None:
    planned = [{"from_round": 7, "changes": {"outer": {"alpha": 0.5}}}]
    body = json.dumps({**TABLE, "clock": CLOCK, "amendments": planned})
    (tmp_path / "spec.json").write_text(body)
    words = ["--spec", str(tmp_path / "spec.json"), "--gpus", "1", "--name", "other"]
    assert world.create(tmp_path / "run", *words, "--up", "1e6", "--down", "1e6") == 2, "a second is not enough"
    words[1] = str(world.file("with.json", {}))
    Path(words[1]).write_text(json.dumps({**TABLE, "amendments": planned}))
    assert world.create(tmp_path / "run", *words) == 0
    assert json.loads((tmp_path / "run/amendments/1.json").read_text()) == planned[0]
    assert open_folder(tmp_path / "run").table["name"] == "other"


def with_clock(**changes: Any) -> dict[str, Any]:
    return {**TABLE, "clock": {**TABLE["clock"], **changes}}


REFUSED: dict[str, tuple[Callable[[World, Path], int], str]] = {
    "no spec": (lambda w, f: main(["run", "create", str(f), "--config", str(w.config)]), "--spec is missing"),
    "no wallet": (lambda w, f: main(["run", "create", str(f), "--netuid", "1"]), "--wallet.name"),
    "not registered": (lambda w, f: w.create(f, "--wallet.name", "stranger"), "btcli subnet register --netuid 1"),
    "no such subnet": (lambda w, f: w.create(f, "--netuid", "7"), "there is no subnet 7"),
    "no such source": (lambda w, f: w.create(f, data="nowhere"), "no such source"),
    "windows": (lambda w, f: w.create(f, table=with_clock(reveal=29)), "clock: needs 0 < commit < reveal"),
    "late validator": (
        lambda w, f: w.create(f, table=with_clock(block_seconds=0.2), data="data"),
        "a validator is ready for the next round",
    ),
    "slow link": (lambda w, f: w.create(f, "--up", "0.00001"), "a miner has published what it commits to"),
    "small model": (
        lambda w, f: w.create(f, table={**TABLE, "model": {**TABLE["model"], "vocabulary": 257}}),
        "set model.vocabulary at least as large",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_work_is_refused_before_anything_is_made(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    attempt, told = REFUSED[case]
    assert attempt(world, tmp_path / "run") == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "run" / "theta_0").exists()


def test_a_data_set_without_ids_for_turns_is_refused(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_set(tmp_path / "data")
    index = json.loads((tmp_path / "data/index.json").read_text())
    del index["tokenizer_config"]
    (tmp_path / "data/index.json").write_text(json.dumps(index))
    assert world.create(tmp_path / "run", "--data", str(tmp_path / "data")) == 2
    told = capsys.readouterr().err
    assert "is not a valid index of shards" in told
    assert "tokenizer_config: Field required" in told
    assert not (tmp_path / "run" / "theta_0").exists()


def test_at_a_terminal_what_is_missing_is_asked_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wallets, spec = str(world.folder / "wallets"), world.file("spec.toml", TABLE)
    answers = ["1", "owner", world.store.endpoint, "owner", "id", "read-id", str(spec), str(world.folder / "data")]
    monkeypatch.setattr(questions, "somebody_is_there", lambda: True)
    monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{answer}\n" for answer in answers)))
    words = ["--network", world.url, "--wallet.path", wallets, "--local", "--device", "cpu"]
    assert main(["run", "create", str(tmp_path / "run"), *words]) == 0
    assert "bucket name; one bucket per hotkey" in capsys.readouterr().err
    kept = (tmp_path / "run/owner.toml").read_text()
    for answer in ("netuid = 1", 'access_key = "id"', f'network = "{world.url}"', 'name = "owner"'):
        assert answer in kept
    assert (tmp_path / "run/owner.toml").stat().st_mode & 0o077 == 0
    # What was said is not asked again, and the secrets come from the environment.
    monkeypatch.setattr(questions, "somebody_is_there", lambda: False)
    assert main(["run", "publish", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "MURMUR_BUCKET__SECRET_KEY" in told
    assert "--bucket.endpoint" not in told


# --- publish -----------------------------------------------------------------------------------------------------


def test_wrong_keys_end_it_before_anything_is_on_chain(
    world: World, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = world.slot()
    wrong = world.table("owner")
    wrong["bucket"]["read_secret_key"] = "a" * 40
    path = world.file("wrong.toml", wrong)
    assert main(["run", "publish", str(made), "--config", str(path)]) == 2
    assert "MURMUR_BUCKET__READ_SECRET_KEY" in capsys.readouterr().err
    other = world.file("other.toml", world.table("miner"))
    assert main(["run", "publish", str(made), "--config", str(other)]) == 2
    assert "name the wallet" in capsys.readouterr().err
    assert world.publish(made, "--start-in", "2") == 2
    assert world.slot() == before
    assert open_folder(made).spec is None


def test_a_published_run_can_be_joined_and_a_second_publication_changes_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert world.create(folder) == 0
    assert world.publish(folder, "--replace") == 0
    shown = capsys.readouterr().out
    assert "all correct" in shown
    assert "pages at both ends" in shown
    spec = open_folder(folder).spec
    assert spec is not None
    assert world.named() == spec.digest
    node = world.table("miner") | {"owner": spec.owner, "home": str(tmp_path / "home"), "device": "cpu"}
    config = load("a node", "", ["--config", str(world.file("node.toml", node))], {})
    case = ready(config, "miner")
    try:
        assert case.run.id == spec.digest
        assert case.shards.train.num_tokens == spec.data.num_tokens
    finally:
        case.close()
    slot = world.slot()
    assert world.publish(folder) == 0
    assert (world.slot(), open_folder(folder).spec) == (slot, spec)
    bucket = world.bucket("owner")
    for key in bucket.list("", max_keys=1000, timeout_seconds=10):
        bucket.delete(key, timeout_seconds=10)
    assert world.publish(folder) == 0, "a lost bucket is filled again"
    assert (world.slot(), open_folder(folder).spec) == (slot, spec)
    # Another run does not take its place by accident.
    other = tmp_path / "other"
    assert world.create(other, "--seed", "1") == 0
    assert world.publish(other) == 2
    assert "--replace" in capsys.readouterr().err
    assert world.slot() == slot


@pytest.mark.parametrize("step", ["upload", "announce", "await_named", "read_back"])
def test_a_publication_that_was_cut_short_goes_on(
    world: World, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = tmp_path / "run"
    assert world.create(folder, "--seed", str(len(step))) == 0

    class Killed(Exception):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(murmur.cli.run.publish, step, die)
        with pytest.raises(Killed):
            world.publish(folder, "--replace")
    sealed = open_folder(folder).spec
    assert (sealed is None) == (step == "upload")
    assert world.publish(folder, "--replace") == 0
    spec = open_folder(folder).spec
    assert spec is not None
    assert world.named() == spec.digest
    if step in ("await_named", "read_back"):
        assert spec == sealed, "what is on chain stays what it is"


def test_a_run_whose_first_block_passes_while_its_spec_goes_up_is_not_posted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, before = tmp_path / "run", world.slot()
    assert world.create(folder, "--seed", "77") == 0
    insist = murmur.owner.publish._insist

    def slowly(work: Callable[[], None]) -> None:
        insist(work)
        if (spec := open_folder(folder).spec) is not None:
            world.chain.wait(spec.clock.start_block - 1, 120.0)

    with monkeypatch.context() as patch:
        patch.setattr(murmur.owner.publish, "_insist", slowly)
        assert world.publish(folder, "--replace") == 2
    told = capsys.readouterr().err
    assert "nothing was posted" in told
    assert "--start-in" in told
    assert world.slot() == before
    late = open_folder(folder).spec
    assert world.publish(folder, "--replace") == 0
    spec = open_folder(folder).spec
    assert spec is not None
    assert late is not None
    assert spec.clock.start_block > late.clock.start_block


@pytest.mark.slow
def test_a_killed_publication_goes_on(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert world.create(folder, "--seed", "99") == 0
    theta = keys.blob(open_folder(folder).theta)
    words = ["run", "publish", str(folder), "--start-in", "25", "--replace", "--config", str(world.config)]
    process = subprocess.Popen(
        [sys.executable, "-m", "murmur", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    bucket, until = world.bucket("owner"), time.monotonic() + 120
    while bucket.head(theta, timeout_seconds=10) is None and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert world.publish(folder, "--replace") == 0
    spec = open_folder(folder).spec
    assert spec is not None
    assert world.named() == spec.digest


def test_what_is_not_what_its_name_says_is_found_when_it_is_read_back(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert world.create(folder, "--seed", "7") == 0
    (tensors,) = (folder / "theta_0").glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    key = keys.blob(Digest(bytes.fromhex(tensors.stem)))
    world.bucket("owner").put(key, bytes(data), timeout_seconds=30)
    assert world.publish(folder, "--replace") == 2
    assert f"delete that object ({key})" in capsys.readouterr().err


def test_what_was_changed_in_the_folder_is_found_before_anything_is_published(
    world: World, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = world.slot()
    folder = tmp_path / "changed"
    shutil.copytree(made, folder)
    text = (folder / "draft.json").read_text()
    draft = json.loads(text)
    draft["spec"]["model"]["layers"] += 1
    (folder / "draft.json").write_text(json.dumps(draft))
    assert world.publish(folder, "--replace") == 2
    assert "draft.json was changed" in capsys.readouterr().err
    (folder / "draft.json").write_text(text)
    (tensors,) = (folder / "theta_0").glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    assert world.publish(folder, "--replace") == 2
    assert "damaged" in capsys.readouterr().err
    for broken in ({}, {"spec": {}, "data": "data"}, {"spec": [], "data": "data"}, []):
        (folder / "draft.json").write_text(json.dumps(broken))
        assert world.publish(folder, "--replace") == 2, broken
        assert "draft.json" in capsys.readouterr().err
    assert world.slot() == before


def test_what_another_machine_has_published_meanwhile_is_not_written_over(
    world: World, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    assert world.create(folder, "--seed", "31") == 0
    shutil.copytree(folder, other)
    upload = murmur.owner.publish.upload

    def slowly(*words: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(murmur.cli.run.publish, "upload", upload)
            assert world.publish(other, "--replace") == 0
        upload(*words)

    monkeypatch.setattr(murmur.cli.run.publish, "upload", slowly)
    assert world.publish(folder, "--replace") == 2
    assert "has published meanwhile" in capsys.readouterr().err
    spec = open_folder(other).spec
    assert spec is not None
    assert world.named() == spec.digest
