"""Shards are built the same every time, read across boundaries, and every kind of bad input is a ConfigError."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.data import shards as shards_module
from murmur.data.index import MAX_INDEX_BYTES, list_leaves
from murmur.data.shards import Shards
from murmur.protocol.errors import ConfigError, ObjectMissing
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Page
from tests.fakes.remote import Folder


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 60_000), st.integers(0, 9000))
def test_reads_cross_shard_boundaries(data_folder: Path, first: int, count: int) -> None:
    split = Shards.open(data_folder).train
    everything = np.concatenate([np.load(path) for path in sorted(data_folder.glob("train-*.npy"))])
    assert len(everything) == split.num_tokens
    if first + count > split.num_tokens:
        with pytest.raises(ValueError, match="outside"):
            split.tokens(first, count)
        return
    found = split.tokens(first, count)
    assert found.dtype == np.int64
    assert np.array_equal(found, everything[first : first + count])


def test_shards_are_npy_files_as_numpy_writes_them(data_folder: Path, tmp_path: Path) -> None:
    for name in ("train-00000.npy", "held-out-00000.npy"):
        np.save(tmp_path / name, np.load(data_folder / name, allow_pickle=False), allow_pickle=False)
        assert (tmp_path / name).read_bytes() == (data_folder / name).read_bytes()


def test_verifying_touches_every_shard(data: Shards) -> None:
    seen: list[tuple[int, int]] = []
    data.train.verify(lambda done, total: seen.append((done, total)))
    total = len(data.index.train)
    assert total > 2
    assert seen == [(number + 1, total) for number in range(total)]


def copied(data_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(data_folder, folder)
    return folder


def saved(folder: Path, array: Any) -> None:
    np.save(folder / "train-00001.npy", array, allow_pickle=array.dtype == object)


def redigested(folder: Path, **fields: Any) -> None:
    """Make the index and the list of leaves agree with what train-00001.npy has become, so that only the fault itself
    is left to be found."""
    index = json.loads((folder / "index.json").read_text())
    data = (folder / "train-00001.npy").read_bytes()
    leaves = list_leaves(data)
    (folder / "train-00001.leaves").write_bytes(leaves)
    named = {"sha256": sha256(data).hexdigest(), "leaves": sha256(leaves).hexdigest()}
    index["train"][1] |= {**named, **fields}
    (folder / "index.json").write_text(json.dumps(index))


def missing(folder: Path) -> None:
    (folder / "train-00001.npy").unlink()


def flipped(folder: Path) -> None:
    path = folder / "train-00001.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def truncated(folder: Path) -> None:
    path = folder / "train-00001.npy"
    path.write_bytes(path.read_bytes()[:-10])


def extended(folder: Path) -> None:
    path = folder / "train-00001.npy"
    path.write_bytes(path.read_bytes() + b"\0\0")
    redigested(folder)


def empty(folder: Path) -> None:
    (folder / "train-00001.npy").write_bytes(b"")


def header_only(folder: Path) -> None:
    path = folder / "train-00001.npy"
    path.write_bytes(path.read_bytes()[:20])


def not_npy(folder: Path) -> None:
    (folder / "train-00001.npy").write_bytes(b"PK\x03\x04" + bytes(8124))


def archive(folder: Path) -> None:
    with (folder / "train-00001.npy").open("wb") as file:
        np.savez(file, x=np.zeros(4000, dtype=np.uint16))
    redigested(folder)


def pickled(folder: Path) -> None:
    saved(folder, np.array([{"a": 1}] * 10, dtype=object))
    redigested(folder)


def wrong_dtype(folder: Path) -> None:
    saved(folder, np.zeros(4000, dtype=np.int16))
    redigested(folder)


def big_endian(folder: Path) -> None:
    saved(folder, np.zeros(4000, dtype=">u2"))
    redigested(folder)


def wrong_rank(folder: Path) -> None:
    saved(folder, np.zeros((2000, 2), dtype=np.uint16))
    redigested(folder)


def wrong_count(folder: Path) -> None:
    redigested(folder, num_tokens=3999)


def above_vocabulary(folder: Path) -> None:
    saved(folder, np.full(4000, 264, dtype=np.uint16))
    redigested(folder)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (missing, "missing"),
    "flipped bit": (flipped, "is damaged: its block 0"),
    "truncated": (truncated, "cut short"),
    "trailing bytes": (extended, "another file"),
    "empty": (empty, "has 0 bytes"),
    "header only": (header_only, "has 20 bytes"),
    "not npy": (not_npy, "no .npy file"),
    "an archive": (archive, "another file"),
    "pickled": (pickled, "another file"),
    "wrong dtype": (wrong_dtype, "no .npy file of 4000 uint16"),
    "big-endian": (big_endian, "no .npy file of 4000 uint16"),
    "wrong rank": (wrong_rank, "no .npy file of 4000 uint16 in one row"),
    "wrong count": (wrong_count, "3999 tokens"),
    "above the vocabulary": (above_vocabulary, "contains token 264"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_shard_is_a_config_error_that_names_it(fault: str, data_folder: Path, tmp_path: Path) -> None:
    folder = copied(data_folder, tmp_path)
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        Shards.open(folder).train.tokens(3990, 20)
    assert "train-00001.npy" in str(caught.value)


def test_a_bad_shard_does_not_spoil_the_others(data_folder: Path, tmp_path: Path) -> None:
    folder = copied(data_folder, tmp_path)
    flipped(folder)
    assert len(Shards.open(folder).train.tokens(100, 200)) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"tokenizer": "gpt2"},
        {"dtype": "int64"},
        {"dtype": "object"},
        {"vocabulary": 0},
        {"vocabulary": "264"},
        {"train": []},
        {"held_out": []},
        {"train": [{"file": "../../etc/passwd.npy", "sha256": "0" * 64, "leaves": "0" * 64, "num_tokens": 5}]},
        {"train": [{"file": "/etc/x.npy", "sha256": "0" * 64, "leaves": "0" * 64, "num_tokens": 5}]},
        {"train": [{"file": ".hidden.npy", "sha256": "0" * 64, "leaves": "0" * 64, "num_tokens": 5}]},
        {"train": [{"file": "a.npy", "sha256": "0" * 63, "leaves": "0" * 64, "num_tokens": 5}]},
        {"train": [{"file": "a.npy", "sha256": "0" * 64, "leaves": "0" * 64, "num_tokens": -5}]},
        {"train": [{"file": "a.npy", "sha256": "0" * 64, "leaves": "0" * 64, "num_tokens": 2**50}]},
        {"comment": "x"},
    ],
)
def test_a_bad_index_is_a_config_error(change: dict[str, Any], data_folder: Path, tmp_path: Path) -> None:
    index = json.loads((data_folder / "index.json").read_text()) | change
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="not a valid index"):
        Shards.open(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_an_index_that_is_no_index_is_a_config_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(text)
    with pytest.raises(ConfigError, match="not a valid index"):
        Shards.open(tmp_path)


def test_a_folder_without_index_and_a_giant_index_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="murmur shards build"):
        Shards.open(tmp_path)
    with (tmp_path / "index.json").open("wb") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    with pytest.raises(ConfigError, match="larger"):
        Shards.open(tmp_path)


def test_another_data_set_than_the_runs_is_a_config_error(data: Shards, data_folder: Path) -> None:
    assert Shards.open(data_folder, index_digest=data.digest).digest == data.digest
    with pytest.raises(ConfigError, match="another data set"):
        Shards.open(data_folder, index_digest=Digest(bytes(32)))


@pytest.fixture
def remote(data_folder: Path) -> Folder:
    return Folder(data_folder)


def test_the_index_is_fetched_and_tokens_are_read_where_they_are(data: Shards, remote: Folder, tmp_path: Path) -> None:
    here = Shards.open(tmp_path / "new" / "folder", index_digest=data.digest, remote=remote)
    assert [name for name, _ in remote.log] == ["index.json"]
    assert np.array_equal(here.train.tokens(3990, 20), data.train.tokens(3990, 20))
    assert {name for name, _ in remote.log[1:]} == {
        f"train-0000{n}.{kind}" for n in (0, 1) for kind in ("leaves", "npy")
    }
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["index.json"]


def test_what_others_give_is_used_only_when_it_is_right(data: Shards, remote: Folder, tmp_path: Path) -> None:
    here = Shards.open(tmp_path, index_digest=data.digest, remote=remote)
    remote.spoilt = True
    with pytest.raises(ObjectMissing, match="right bytes"):
        here.train.tokens(0, 10)


def test_whole_files_are_held_for_pages_and_the_token_after_them(data: Shards, remote: Folder, tmp_path: Path) -> None:
    here = Shards.open(tmp_path, index_digest=data.digest, remote=remote)
    del remote.log[:]
    here.train.hold([Page(0, 3999)])
    assert [name for name, _ in remote.log] == ["train-00000.npy"]
    here.train.hold([Page(0, 4000)])
    assert [name for name, _ in remote.log] == ["train-00000.npy", "train-00001.npy"]
    del remote.log[:]
    assert np.array_equal(here.train.tokens(0, 8000), data.train.tokens(0, 8000))
    assert not remote.log


def test_a_held_file_that_the_disk_has_changed_is_had_from_others(data: Shards, remote: Folder, tmp_path: Path) -> None:
    here = Shards.open(tmp_path, index_digest=data.digest, remote=remote)
    here.train.hold([Page(0, 4000)])
    flipped(tmp_path)
    assert np.array_equal(here.train.tokens(3990, 20), data.train.tokens(3990, 20))
    assert not (tmp_path / "train-00001.npy").exists()


def test_more_shards_than_are_kept_open_are_read(
    data: Shards, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "_OPEN_SHARDS", 2)
    here = Shards.open(data_folder)
    for _ in range(2):
        assert np.array_equal(here.train.tokens(0, 30_000), data.train.tokens(0, 30_000))


def test_a_run_checks_its_data_set(data: Shards, run_spec: RunSpec) -> None:
    data.check(run_spec)
    faults: list[tuple[str, dict[str, Any]]] = [
        ("index is", {"data": run_spec.data.model_copy(update={"index": "00" * 32})}),
        ("vocabulary", {"model": run_spec.model.model_copy(update={"vocabulary": 256})}),
        ("training split has", {"data": run_spec.data.model_copy(update={"num_tokens": 12})}),
        ("too small", {"data": run_spec.data.model_copy(update={"held_out_sequences": 10**6})}),
    ]
    for message, change in faults:
        with pytest.raises(ConfigError, match=message):
            data.check(run_spec.model_copy(update=change))
