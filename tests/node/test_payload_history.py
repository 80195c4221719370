"""A validator's memory of payloads: what it keeps, across restarts, and what damage costs."""

from pathlib import Path

from gauntlet.remembered import Remembered
from gauntlet.sketch import Sample, Sketch
from murmur.node.state.payload_history import PayloadHistory
from tests.gauntlet.world import COMMIT_HASH, SPEC, make_update, peer_id

SAMPLE = Sample(SPEC.layout, COMMIT_HASH)
SIZE = SPEC.layout.records_bytes
ROOM = 100 * SIZE


def payloads(round: int, count: int = 3) -> dict[Remembered, bytes]:
    updates = [make_update(100 * round + number) for number in range(count)]
    return {Remembered(round, peer_id(n), update.digest): update.records for n, update in enumerate(updates)}


def expected(found: dict[Remembered, bytes]) -> list[Sketch]:
    return [Sketch(p.peer, p.round, p.payload, SAMPLE.excerpt(found[p])) for p in sorted(found)]


def sketched(memory: PayloadHistory, found: dict[Remembered, bytes]) -> list[Sketch]:
    return list(memory.sketches(sorted(found), SAMPLE))


def test_payloads_are_remembered_until_nothing_names_them_and_over_a_restart(tmp_path: Path) -> None:
    memory = PayloadHistory(tmp_path / "payloads", SIZE, ())
    first, second = payloads(0), payloads(1)
    memory.keep(0, first, ROOM)
    memory.keep(1, second, ROOM)
    both = first | second
    assert sketched(memory, both) == expected(both)
    assert sketched(PayloadHistory(tmp_path / "payloads", SIZE, both), both) == expected(both)
    memory.prune(second)
    assert sketched(memory, both) == expected(second)
    assert [path.name for path in (tmp_path / "payloads").iterdir()] == ["1"]
    memory.keep(2, {}, ROOM)
    assert sketched(memory, both) == expected(second)


def test_a_part_of_a_round_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """Of an older round only the payloads of eligible hotkeys are named; the file still has all of them."""
    memory, found = PayloadHistory(tmp_path, SIZE, ()), payloads(3, 5)
    memory.keep(3, found, ROOM)
    some = {past: found[past] for past in sorted(found)[1::2]}
    memory.prune(some)
    assert sketched(memory, found) == expected(some)
    assert sketched(PayloadHistory(tmp_path, SIZE, some), found) == expected(some)


def test_a_round_that_was_checked_twice_is_remembered_as_the_book_names_it(tmp_path: Path) -> None:
    """Killed between the file and the book that names it, a validator checks the round again, and may see another."""
    memory = PayloadHistory(tmp_path, SIZE, ())
    memory.keep(3, payloads(3, 2), ROOM)
    again = payloads(3, 3)
    memory = PayloadHistory(tmp_path, SIZE, ())
    memory.keep(3, again, ROOM)
    assert sketched(memory, again) == expected(again)
    assert sketched(PayloadHistory(tmp_path, SIZE, again), again) == expected(again)


def test_what_the_disk_lost_or_changed_is_passed_over_and_the_rest_is_found(tmp_path: Path) -> None:
    memory = PayloadHistory(tmp_path, SIZE, ())
    first, second, third = payloads(0), payloads(1), payloads(2)
    for round, found in enumerate((first, second, third)):
        memory.keep(round, found, ROOM)
    (tmp_path / "0").unlink()
    data = bytearray((tmp_path / "1").read_bytes())
    data[0] ^= 1
    (tmp_path / "1").write_bytes(data)
    (tmp_path / "2").write_bytes(b"short")
    everything = first | second | third
    left = dict(list(second.items())[1:])
    assert sketched(PayloadHistory(tmp_path, SIZE, everything), everything) == expected(left)


def test_a_disk_that_takes_nothing_costs_comparisons_only(tmp_path: Path) -> None:
    memory = PayloadHistory(tmp_path / "payloads", SIZE, ())
    (tmp_path / "payloads").rmdir()
    memory.keep(0, payloads(0), ROOM)
    assert sketched(memory, payloads(0)) == []


def test_where_room_lacks_each_round_keeps_equally_many_and_its_best(tmp_path: Path) -> None:
    """Those that are read again are as they were, and so is the rest after a restart."""
    memory = PayloadHistory(tmp_path, SIZE, ())
    rounds = [dict(reversed(payloads(round, 5).items())) for round in range(3)]
    for round, found in enumerate(rounds):
        memory.keep(round, found, 7 * SIZE)
    # At last seven for three rounds.
    left = {past: found[past] for found in rounds for past in list(found)[:2]}
    everything = {past: records for found in rounds for past, records in found.items()}
    assert sketched(memory, everything) == expected(left)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 6 * SIZE
    assert sketched(PayloadHistory(tmp_path, SIZE, left), everything) == expected(left)


def test_no_room_is_no_payload_and_no_fault(tmp_path: Path) -> None:
    memory, found = PayloadHistory(tmp_path, SIZE, ()), payloads(0)
    memory.keep(0, found, SIZE - 1)
    assert sketched(memory, found) == []
    memory.keep(1, payloads(1), -5)
    memory.keep(2, payloads(2), ROOM)
    assert sketched(memory, payloads(2)) == expected(payloads(2))


def test_what_is_worse_rated_than_every_named_payload_leaves_the_disk(tmp_path: Path) -> None:
    memory, found = PayloadHistory(tmp_path, SIZE, ()), payloads(0, 5)
    memory.keep(0, found, ROOM)
    named = {past: found[past] for past in list(found)[1:3]}
    memory.prune(named)
    assert (tmp_path / "0").stat().st_size == 3 * SIZE
    assert sketched(memory, found) == expected(named)
    again = PayloadHistory(tmp_path, SIZE, named)
    again.prune(named)
    assert sketched(again, found) == expected(named)
