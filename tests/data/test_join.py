"""Data sets joined to one: whole or not at all, by one command at a time, whatever an earlier one has left."""

import errno
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from murmur.cli.main import main
from murmur.data.build import build
from murmur.data.concatenation import join
from murmur.data.place import alone
from murmur.data.shards import Shards
from murmur.protocol.errors import ConfigError
from tests.data.test_build import lines


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    for name in ("one", "two"):
        build(lines(tmp_path, name, 50), tmp_path / name)
    return [tmp_path / "one", tmp_path / "two"]


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_join_after_one_of_more_that_was_killed_has_its_own_files_only(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(two, tmp_path / "right")
    with monkeypatch.context() as patch:
        patch.setattr("murmur.data.concatenation.write", raises(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            join([*reversed(two), *two], tmp_path / "joined")
    join(two, tmp_path / "joined")
    assert files_of(tmp_path / "joined") == files_of(tmp_path / "right")
    for folder in two:
        Shards.open(folder).train.verify()  # the joined files are the same on disk


def raises(fault: BaseException) -> Callable[..., None]:
    def act(*arguments: object, **named: object) -> None:
        raise fault

    return act


def test_a_join_on_a_full_disk_ends_with_a_sentence_and_leaves_nothing_half(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "joined"
    words = ["shards", "join", *map(str, two), "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr("murmur.data.concatenation.os.link", raises(OSError(errno.EXDEV, "another disk")))
        patch.setattr("murmur.data.concatenation.shutil.copyfileobj", raises(OSError(errno.ENOSPC, "full")))
        assert main(words) == 2
    assert "free disk space" in capsys.readouterr().err
    assert not (out / "index.json").exists()
    assert not [*out.glob("*.partial"), *out.glob("*.npy")]
    assert main(words) == 0


def test_a_folder_takes_one_join_or_build_at_a_time(two: list[Path], tmp_path: Path) -> None:
    with alone(tmp_path / "joined"), pytest.raises(ConfigError, match="another build works in"):
        join(two, tmp_path / "joined")
    (tmp_path / "begun" / "building").mkdir(parents=True)
    with pytest.raises(ConfigError, match="unfinished build"):
        join(two, tmp_path / "begun")
