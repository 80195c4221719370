"""`murmur run amend`, `void` and `show` over a real chain interface and a real S3 server."""

import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import murmur.cli.run.amend
import murmur.cli.run.publish
from murmur.cli.main import main
from murmur.cli.run import questions
from murmur.owner.folder import open_folder
from tests.owner.world import World

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(scope="module")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published run whose rounds go by."""
    folder = tmp_path_factory.mktemp("running") / "running"
    assert world.create(folder, "--seed", "5") == 0
    assert world.publish(folder, "--replace") == 0
    return folder


def test_an_amendment_is_shown_settled_and_followed(
    world: World, running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = open_folder(running).spec
    assert spec is not None
    clock, changes = spec.rounds_clock, ["--set", "inner.peak_lr=0.001"]
    early = ["--from-round", "1", "--set", "inner.weight_decay=0.05", "--yes"]
    assert world.run("amend", running, *early) in (0, 2)  # by where the chain is; so it may also settle before the void
    world.run("void", running, "--pending", "--yes")
    slot = world.named()
    for words, told in (
        (["--from-round", "0", *changes], "from_round"),
        (["--from-round", "900", "--set", "inner.peak=1"], "unknown fields of inner"),
        (["--from-round", "900", "--set", "clock.commit=1"], "changes"),
        (["--from-round", "900", "--set", "inner.optimizer=muon"], "inner.optimizer"),
        (["--from-round", "900", "--set", "inner.steps=4"], "changes nothing"),
        (["--from-round", "900", "--set", "gauntlet.sample_sequences=1000000"], "cannot work with this amendment"),
        (["--from-round", "900"], "at least one --set"),
        (["--from-round", "900", "--set", "peak_lr"], "TABLE.FIELD=VALUE"),
        (["--from-round", "900", *changes], "To confirm, use --yes"),
    ):
        assert world.run("amend", running, *words) == 2, words
        assert told in capsys.readouterr().err
    assert world.named() == slot, "nothing of this was published"
    wanted = clock.round_at(world.chain.finalized().block) + 4
    words = ["--from-round", str(wanted), *changes]
    monkeypatch.setattr(questions, "somebody_is_there", lambda: True)
    monkeypatch.setattr(sys, "stdin", StringIO("no\nyes\n"))
    assert world.run("amend", running, *words) == 0
    assert "nothing was published" in capsys.readouterr().out
    assert world.run("amend", running, *words) == 0
    shown = capsys.readouterr().out
    assert "inner.peak_lr  0.003 -> 0.001" in shown
    assert "pending; settled as of block" in shown
    named = world.named()
    assert named is not None
    assert named != slot
    assert world.run("amend", running, *words) == 0
    assert "the owner's slot already names this amendment" in capsys.readouterr().out
    assert world.named() == named
    assert world.run("publish", running) == 0, "publishing once more keeps what was amended"
    assert world.named() == named
    bucket = world.bucket("owner")
    for key in bucket.list("", max_keys=1000, timeout_seconds=10):
        bucket.delete(key, timeout_seconds=10)
    assert world.run("publish", running) == 0, "all that a joiner needs is in the folder"
    assert world.named() == named
    world.chain.wait(clock.start(wanted - 1), 60)
    capsys.readouterr()
    assert main(["run", "show", str(running)]) == 0
    shown = capsys.readouterr().out
    assert f"from round {wanted}: inner.peak_lr = 0.001: settled" in shown
    assert spec.digest.hex() in shown
    assert named.hex() in shown
    assert world.run("void", running, "--pending", "--yes") == 2
    assert "no amendment is pending" in capsys.readouterr().err


def test_whoever_thinks_until_an_amendment_is_settled_does_not_take_it_back_nor_builds_beside_it(
    world: World, running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = open_folder(running).spec
    assert spec is not None
    clock = spec.rounds_clock
    wanted = clock.round_at(world.chain.finalized().block) + 4
    words = ["--from-round", str(wanted), "--set"]
    assert world.run("amend", running, *words, "inner.peak_lr=0.002", "--yes") == 0
    named = world.named()

    def slowly(*_: Any, **__: Any) -> bool:
        world.chain.wait(clock.start(wanted - 1) + 1, 60)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(questions, "agreed_to", slowly)
        assert world.run("void", running, "--pending") == 2
        assert "one was settled" in capsys.readouterr().err
        assert world.named() == named
        late = str(clock.round_at(world.chain.finalized().block) + 3)
        wanted = int(late) + 1
        assert world.run("amend", running, "--from-round", late, "--set", "inner.peak_lr=0.001") == 2
    assert "it is too late for round" in capsys.readouterr().err
    assert world.named() == named


def told_in_the_end(world: World, capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """Run a command that may find that a round has begun between its choice and its check; return what it printed."""
    for _ in range(5):
        if world.run(*words) == 0:
            return capsys.readouterr().out
        told = capsys.readouterr().err
        assert "it is too late for round" in told or "run the same command again" in told
    raise AssertionError("the chain is always faster")


def test_what_is_pending_is_taken_back_and_a_round_that_is_lost_is_declared_void(
    world: World, running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.named()
    assert world.run("amend", running, "--from-round", "700", "--set", "outer.alpha=0.5", "--yes") == 0
    assert world.run("amend", running, "--from-round", "800", "--set", "outer.alpha=0.25", "--yes") == 0
    assert "outer.alpha  0.5 -> 0.25" in capsys.readouterr().out
    assert world.run("void", running, "--pending", "--yes") == 0
    assert capsys.readouterr().out.count("taken back: from round") == 2
    assert world.named() == before
    assert world.run("void", running, "--round", "100000", "--yes") == 2
    assert "not decided yet" in capsys.readouterr().err
    spec = open_folder(running).spec
    assert spec is not None
    world.chain.wait(spec.rounds_clock.vote_deadline(0) + 1, 60)
    assert world.run("void", running, "--round", "0", "--yes") == 2
    assert "nothing was agreed in round 0" in capsys.readouterr().err
    # Whether anything was agreed is the subject of test_records.py; here there is no node that said a word.
    monkeypatch.setattr(murmur.cli.run.amend, "was_agreed", lambda *_: True)
    void = "void", running, "--round", "0", "--yes"
    assert "round 0 will be void from block" in told_in_the_end(world, capsys, *void)
    assert "declared void already" in told_in_the_end(world, capsys, *void)
