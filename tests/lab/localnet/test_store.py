"""The credentials file of a store: what is read back, and one line for each thing that is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from murmur.lab.localnet.store import StoreReady, StoreUser, read_ready, write_ready
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import Pointer

READY = StoreReady(
    "http://127.0.0.1:9000",
    {name: StoreUser(name, f"{name}-w", "secret-w", f"{name}-r", "secret-r") for name in ("owner", "miner-1")},
)


def changed(tmp_path: Path, *path: str, to: Any = None) -> Path:
    """The file with one value replaced, or left out."""
    file = tmp_path / "ready.json"
    write_ready(file, READY)
    body = json.loads(file.read_text())
    place = body
    for word in path[:-1]:
        place = place[word]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    file.write_text(json.dumps(body))
    return file


def test_what_was_written_is_read_back_and_is_for_its_owner_only(tmp_path: Path) -> None:
    write_ready(tmp_path / "ready.json", READY)
    assert read_ready(tmp_path / "ready.json", ["miner-1", "owner"]) == READY
    assert (tmp_path / "ready.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]


def test_the_pointer_holds_the_read_key_alone() -> None:
    assert READY.pointer("miner-1") == Pointer("http://127.0.0.1:9000", "miner-1", "miner-1-r", "secret-r")


def test_secrets_are_not_in_the_repr() -> None:
    assert "secret" not in repr(READY)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["endpoint"], None, 'expected {"endpoint"'),
        (["endpoint"], "ftp://host", "endpoint: the bucket's endpoint must be"),
        (["endpoint"], 7, "endpoint: expected text"),
        (["users"], [], 'expected {"endpoint"'),
        (["extra"], 1, 'expected {"endpoint"'),
        (["users", "miner-1"], None, "no entry for miner-1"),
        (["users", "miner-1"], "x", "users.miner-1: expected bucket, write_access_key"),
        (["users", "miner-1", "read_secret_key"], None, "users.miner-1: expected bucket, write_access_key"),
        (["users", "miner-1", "write_secret_key"], 5, "users.miner-1: write_secret_key: expected text"),
        (["users", "miner-1", "read_access_key"], "a b", "users.miner-1: bucket name, keys and endpoint must be"),
        (["users", "miner-1", "read_access_key"], "miner-1-w", "users.miner-1: the write key equals the read key"),
        (["users", "miner-1", "bucket"], "owner", "bucket 'owner' is given twice"),
    ],
)
def test_a_fault_is_one_line_without_secrets(path: list[str], value: Any, told: str, tmp_path: Path) -> None:
    file = changed(tmp_path, *path, to=value)
    with pytest.raises(ConfigError) as caught:
        read_ready(file, ["owner", "miner-1"])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{file}: {told}")
    assert "secret-" not in line


def test_every_fault_has_a_line(tmp_path: Path) -> None:
    file = changed(tmp_path, "users", "miner-1", "bucket", to="")
    with pytest.raises(ConfigError) as caught:
        read_ready(file, ["owner", "miner-1", "miner-2", "miner-3"])
    assert [line.removeprefix(f"{file}: ").split(":")[0] for line in str(caught.value).splitlines()] == [
        "users.miner-1",
        "no entry for miner-2",
        "no entry for miner-3",
    ]


@pytest.mark.parametrize("content", ["", "{", "\x00"])
def test_a_file_that_is_no_json_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(content)
    with pytest.raises(ConfigError, match=r"ready\.json is not a credentials file"):
        read_ready(tmp_path / "ready.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ready\.json is not a credentials file.*No such file"):
        read_ready(tmp_path / "ready.json")
