"""Room for shards: what was needed longest ago goes, what is needed stays, and a kill loses nothing that is used."""

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from murmur.data.remote_files import File
from murmur.data.shards import Shards, make_room, use
from murmur.lab.simulation.clock import Killed
from murmur.protocol.types import Page
from tests.fakes.remote import Folder


def shelf(folder: Path, *names: str) -> dict[str, Path]:
    """Files of 100 bytes, needed in this order."""
    paths = {}
    for at, name in enumerate(names):
        paths[name] = folder / f"{name}.npy"
        paths[name].write_bytes(bytes(100))
        os.utime(paths[name], (at, at))
    return paths


def left(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.npy")}


def test_the_longest_unneeded_make_room_and_no_more_than_have_to(tmp_path: Path) -> None:
    paths = shelf(tmp_path, "c", "a", "b", "d")
    make_room(tmp_path, 500, needed=[], coming_bytes=100)
    assert left(tmp_path) == {"a", "b", "c", "d"}
    make_room(tmp_path, 400, needed=[paths["c"]], coming_bytes=101)
    assert left(tmp_path) == {"c", "d"}


def test_what_is_used_again_stays_longer(tmp_path: Path) -> None:
    paths = shelf(tmp_path, "a", "b", "c")
    use([paths["a"], tmp_path / "not-there.npy"])
    make_room(tmp_path, 300, needed=[], coming_bytes=100)
    assert left(tmp_path) == {"a", "c"}


def test_what_is_needed_stays_even_when_there_is_no_room(tmp_path: Path) -> None:
    paths = shelf(tmp_path, "a", "b")
    make_room(tmp_path, 50, needed=list(paths.values()), coming_bytes=100)
    assert left(tmp_path) == {"a", "b"}


@pytest.fixture
def pages(data: Shards) -> list[Page]:
    """One page in each of five shards of 4000 tokens."""
    return [Page(number * 4000, 3999) for number in range(5)]


def test_a_data_set_stays_within_its_budget(data: Shards, data_folder: Path, tmp_path: Path, pages: list[Page]) -> None:
    size = data.index.file_bytes(data.index.train[0])
    here = Shards.open(tmp_path, index_digest=data.digest, remote=Folder(data_folder), max_bytes=3 * size)
    for number, page in enumerate(pages):
        here.train.hold([page])
        assert sum(path.stat().st_size for path in tmp_path.glob("*.npy")) == min(number + 1, 3) * size
        assert np.array_equal(here.train.tokens(page.first, 100), data.train.tokens(page.first, 100))
    assert left(tmp_path) == {"train-00002", "train-00003", "train-00004"}
    assert np.array_equal(here.train.tokens(0, 100), data.train.tokens(0, 100)), (
        "a shard that made room is read in parts"
    )
    here.train.hold([pages[2]])
    here.train.hold([pages[0]])
    assert left(tmp_path) == {"train-00000", "train-00002", "train-00004"}
    assert here.train.most_bytes(1, 4000) <= 3 * size < here.train.most_bytes(2, 4000)


def dying(removed: int) -> Callable[..., None]:
    """Path.unlink of a process that is killed after so many."""
    left, real = count(removed, -1), Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if next(left) <= 0:
            raise Killed
        real(path, missing_ok)

    return unlink


def fetch_nothing(files: Sequence[File]) -> None:
    raise Killed


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_killed_while_room_is_made_or_files_come_it_goes_on(
    removed: int, data: Shards, data_folder: Path, tmp_path: Path, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, remote = data.index.file_bytes(data.index.train[0]), Folder(data_folder)
    here = Shards.open(tmp_path, index_digest=data.digest, remote=remote, max_bytes=2 * size)
    here.train.hold(pages[:2])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying(removed))
        patch.setattr(remote, "fetch", fetch_nothing)
        with pytest.raises(Killed):
            here.train.hold(pages[2:4])
    assert len(left(tmp_path)) == 2 - removed
    here = Shards.open(tmp_path, index_digest=data.digest, remote=remote, max_bytes=2 * size)
    for page in pages:
        assert np.array_equal(here.train.tokens(page.first, 100), data.train.tokens(page.first, 100))
    here.train.hold(pages[2:4])
    assert left(tmp_path) == {"train-00002", "train-00003"}
