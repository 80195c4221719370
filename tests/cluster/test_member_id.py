"""Who a member is: drawn once, and kept in its home."""

from pathlib import Path

import pytest

from murmur.cluster.bootstrap import member_of
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import DIGEST_BYTES, Digest

RUN, ANOTHER_RUN = Digest(bytes(32)), Digest(b"\1" * 32)


def kept_in(home: Path) -> Path:
    [path] = (path for path in home.rglob("*") if path.is_file())
    return path


def test_a_home_is_the_same_member_at_every_start(tmp_path: Path) -> None:
    member = member_of(tmp_path, RUN)
    assert len(member) == DIGEST_BYTES == 32
    assert member_of(tmp_path, RUN) == member
    kept_in(tmp_path)


def test_another_home_is_another_member_and_so_is_another_run(tmp_path: Path) -> None:
    found = {member_of(tmp_path / home, run) for home in ("one", "two") for run in (RUN, ANOTHER_RUN)}
    assert len(found) == 4


@pytest.mark.parametrize(
    "damage", [b"", b"no number", b"\xff\xfe", b"ab" * 31, b"ab" * 33], ids=["empty", "text", "bytes", "short", "long"]
)
def test_a_damaged_id_is_no_other_one_and_its_holder_is_told_what_to_do(tmp_path: Path, damage: bytes) -> None:
    member = member_of(tmp_path, RUN)
    path = kept_in(tmp_path)
    path.write_bytes(damage)
    with pytest.raises(ConfigError) as caught:
        member_of(tmp_path, RUN)
    assert f"{path} is damaged: delete it" in str(caught.value)
    assert path.read_bytes() == damage
    path.unlink()
    assert member_of(tmp_path, RUN) != member, "as it is told: it joins as a new member"
