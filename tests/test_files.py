import os
from pathlib import Path
from typing import Any

import pytest

from murmur import files


def test_a_file_is_replaced_by_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(path, b"old")
    files.write(path, b"n", bytearray(b"e"), memoryview(b"w"))
    assert path.read_bytes() == b"new"
    assert [other.name for other in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_file_of_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(path, b"old")
    with pytest.raises(TypeError):
        files.write(path, b"half", None)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [other.name for other in tmp_path.iterdir()] == ["file"]


def test_a_name_may_be_known_at_the_end_only(tmp_path: Path) -> None:
    name = ""
    with files.whole(tmp_path, lambda: name) as file:
        name = str(file.write(b"12345"))
    assert (tmp_path / "5").read_bytes() == b"12345"


def test_only_its_owner_reads_a_file_of_mode_0600(tmp_path: Path) -> None:
    files.write(tmp_path / "file", b"old")
    files.write(tmp_path / "file", b"secret", mode=0o600)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("durable", "expected"), [(True, ["data", "name", "folder"]), (False, ["name"])])
def test_data_reach_the_disk_before_the_name_and_the_name_before_the_end(
    durable: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "data")
        fsync(descriptor)

    def seen_replace(*paths: Any) -> None:
        done.append("name")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    files.write(tmp_path / "file", b"data", durable=durable)
    assert done == expected
