"""Ranges of shards from others: the same tokens as from whole files, for the bytes of the blocks that hold them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.data import index, shards
from murmur.data.build import build
from murmur.data.index import are_blocks, is_list, list_leaves
from murmur.data.shards import Shards
from murmur.protocol.errors import ConfigError, ObjectMissing
from tests.fakes.remote import Folder
from tests.small_run import recut, text


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 6000)), max_size=6))
def test_ranges_from_others_are_what_the_whole_files_hold(
    small_blocks: tuple[Path, Shards], runs: list[tuple[int, int]]
) -> None:
    folder, there = small_blocks
    inside = [(first, min(count, there.train.num_tokens - first)) for first, count in runs]
    with TemporaryDirectory() as empty:
        here = Shards.open(Path(empty), index_digest=there.digest, remote=Folder(folder))
        for mine, theirs in zip(here.train.read(inside), there.train.read(inside), strict=True):
            assert mine.dtype == np.int64
            assert np.array_equal(mine, theirs)


@pytest.fixture(scope="module")
def small_blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Shards]]:
    """A data set whose blocks have 512 bytes, so that a shard has several."""
    folder = tmp_path_factory.mktemp("small-blocks")
    with pytest.MonkeyPatch.context() as patch:
        for module in (index, shards):
            patch.setattr(module, "BLOCK_BYTES", 512)
        build(text(folder.with_name(f"{folder.name}.jsonl")), folder, limit_bytes=60_000)
        for leaves in folder.glob("*.leaves"):
            leaves.unlink()  # the builder's processes make blocks of the usual size
        recut(folder, 4000)
        yield folder, Shards.open(folder)


def test_a_range_costs_its_blocks_and_the_list_of_their_leaves(
    small_blocks: tuple[Path, Shards], tmp_path: Path
) -> None:
    folder, there = small_blocks
    remote = Folder(folder)
    here = Shards.open(tmp_path, index_digest=there.digest, remote=remote)
    del remote.log[:]
    here.train.read([(0, 10), (1000, 10), (5000, 1)])
    leaves = -(-(128 + 2 * 4000) // 512) * 32
    assert sorted(remote.log) == [
        ("train-00000.leaves", leaves),
        ("train-00000.npy", 512),
        ("train-00000.npy", 512),
        ("train-00001.leaves", leaves),
        ("train-00001.npy", 512),
    ]


def test_a_right_list_does_not_make_other_blocks_right(small_blocks: tuple[Path, Shards]) -> None:
    folder, there = small_blocks
    data = (folder / "train-00000.npy").read_bytes()
    leaves = list_leaves(data)
    assert is_list(leaves, there.index.train[0])
    assert are_blocks(data[512:1536], 1, leaves)
    for wrong, first in ((data[512:1536], 0), (data[512:1535], 1), (data[:512], 1), (b"", 1), (data[512:1536], 10**6)):
        assert not are_blocks(wrong, first, leaves)
    assert not is_list(leaves[:-1], there.index.train[0])


def test_an_answer_that_ends_early_is_refused(small_blocks: tuple[Path, Shards], tmp_path: Path) -> None:
    """Of whole blocks that are right, too: the last ones are missing."""
    folder, there = small_blocks
    here = Shards.open(tmp_path, index_digest=there.digest, remote=Folder(folder, short_bytes=512))
    with pytest.raises(ObjectMissing, match="right bytes"):
        here.train.tokens(0, 1000)


@pytest.fixture
def damaged(small_blocks: tuple[Path, Shards], tmp_path: Path) -> Path:
    """A copy of the data set with a flipped bit in the last block of its first shard."""
    folder = tmp_path / "damaged"
    shutil.copytree(small_blocks[0], folder)
    path = folder / "train-00000.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    return folder


def test_of_a_shard_in_the_folder_the_blocks_that_are_read_are_verified(
    small_blocks: tuple[Path, Shards], damaged: Path
) -> None:
    there, here = small_blocks[1], Shards.open(damaged)
    assert np.array_equal(here.train.tokens(0, 3000), there.train.tokens(0, 3000))
    with pytest.raises(ConfigError, match=r"train-00000.npy is damaged: its block 15"):
        here.train.tokens(2000, 2000)
    for opened in (here, Shards.open(damaged)):
        with pytest.raises(ConfigError, match="sha256"):
            opened.train.verify()


@pytest.mark.parametrize("leaves", [None, b"", b"x" * 512])
def test_without_its_list_of_leaves_a_shard_is_verified_whole(leaves: bytes | None, damaged: Path) -> None:
    path = damaged / "train-00000.leaves"
    path.unlink()
    if leaves is not None:
        path.write_bytes(leaves)
    with pytest.raises(ConfigError, match="sha256"):
        Shards.open(damaged).train.tokens(0, 10)
