"""Records on a member's disk: the last ones, whole or not at all."""

from pathlib import Path

from murmur.cluster.group_keys import Group, new_secret
from murmur.cluster.on_disk import OnDisk
from murmur.protocol.cluster import Contribution, Record
from murmur.protocol.types import Digest

RUN, LINK = Digest(b"\1" * 32), "22" * 32
UPDATE = Contribution(
    theta="11" * 32, previous=LINK, envelope="33" * 32, key="44" * 32, steps=1, seconds=1.0, member="55" * 32
)
RECORD = Record(by="55" * 32, theta="11" * 32, previous=LINK, updates=(UPDATE,))


def test_the_last_records_come_back_and_what_the_disk_changes_does_not(tmp_path: Path) -> None:
    log = OnDisk(Record, tmp_path / "records", RUN, Group(new_secret()))
    for round in range(6):
        log.keep(round, RECORD, oldest=round - 2)
    assert [round for round in range(7) if log.find(round)] == [3, 4, 5]
    assert log.find(4) == RECORD
    path = tmp_path / "records" / f"{4:08d}"
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "records" / f"{3:08d}").write_bytes((tmp_path / "records" / f"{5:08d}").read_bytes())
    assert [round for round in range(7) if log.find(round)] == [5]


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"a file")
    log = OnDisk(Record, tmp_path / "records", RUN, Group(new_secret()))
    log.keep(0, RECORD)
    assert log.find(0) is None
