"""Who a member is: its name's id, which its home keeps."""

from pathlib import Path

import pytest

from murmur.cluster.bootstrap import member_id, member_of
from murmur.protocol.errors import ConfigError
from murmur.protocol.types import DIGEST_BYTES, Digest

RUN, ANOTHER_RUN = Digest(bytes(32)), Digest(b"\1" * 32)


def kept_in(home: Path) -> Path:
    [path] = (path for path in home.rglob("*") if path.is_file())
    return path


def test_a_name_is_the_same_member_in_every_home_and_another_one_in_another_run(tmp_path: Path) -> None:
    found = {member_of(tmp_path / home, run, "lab-a") for home in ("one", "two") for run in (RUN, ANOTHER_RUN)}
    assert found == {member_id(RUN, "lab-a"), member_id(ANOTHER_RUN, "lab-a")}
    assert {len(member) for member in found} == {DIGEST_BYTES}
    assert member_of(tmp_path / "one", RUN, "lab-a") == member_id(RUN, "lab-a") != member_id(RUN, "lab-b")


@pytest.mark.parametrize("damage", [b"", b"no number", b"\xff\xfe", b"ab" * 31, b"ab" * 32])
def test_a_home_of_another_member_is_refused_and_its_holder_is_told_what_to_do(tmp_path: Path, damage: bytes) -> None:
    """What it has sealed would be sent under the other name."""
    member_of(tmp_path, RUN, "lab-a")
    with pytest.raises(ConfigError, match="the name that it had"):
        member_of(tmp_path, RUN, "lab-b")
    path = kept_in(tmp_path)
    path.write_bytes(damage)
    with pytest.raises(ConfigError) as caught:
        member_of(tmp_path, RUN, "lab-a")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == damage
