"""A home whose member dies again and again starts later and later; one that claims does not."""

from pathlib import Path

import pytest

from murmur.cluster.starts import FREE_STARTS, LONGEST_SECONDS, Starts
from murmur.lab.simulation.clock import Life

BEAT = 5.0


def waited(life: Life, path: Path) -> float:
    began = life.now()
    Starts(path, life).wait(BEAT)
    return life.now() - began


def test_each_start_without_a_claim_waits_twice_as_long_as_the_one_before_and_none_for_ever(
    life: Life, tmp_path: Path
) -> None:
    found = [waited(life, tmp_path / "run" / "starts") for _ in range(12)]
    assert found[:FREE_STARTS] == [0.0] * FREE_STARTS
    assert found[FREE_STARTS:6] == [BEAT, 2 * BEAT, 4 * BEAT, 8 * BEAT]
    assert found[-3:] == [LONGEST_SECONDS] * 3
    Starts(tmp_path / "run" / "starts", life).clear()
    assert waited(life, tmp_path / "run" / "starts") == 0.0


@pytest.mark.parametrize("damage", [b"", b"many", b"\xff", b"-1"])
def test_a_damaged_count_is_none(life: Life, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "starts").write_bytes(damage)
    assert waited(life, tmp_path / "starts") == 0.0


def test_a_home_knows_its_last_process(life: Life, tmp_path: Path) -> None:
    starts = Starts(tmp_path / "starts", life)
    assert not starts.is_last("ab" * 8)
    starts.note("ab" * 8)
    assert Starts(tmp_path / "starts", life).is_last("ab" * 8)
    assert not starts.is_last("cd" * 8)


def test_a_disk_that_takes_nothing_stops_nobody(life: Life, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"a file")
    starts = Starts(tmp_path / "run" / "starts", life)
    starts.wait(BEAT)
    starts.note("ab" * 8)
    starts.clear()
    assert not starts.is_last("ab" * 8)
