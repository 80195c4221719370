"""A dead member's beat goes, so that nobody reads it every five seconds for ever."""

from pathlib import Path

from murmur.lab.simulation.cluster import BUCKET
from murmur.protocol import keys
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records


def test_a_dead_members_beat_goes_where_no_process_lives_for_an_hour(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 4)
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 3))
    dead = watched.machine(4)
    cluster.kill(dead)
    for round in range(4, 13):
        for number in range(1, 4):
            cluster.clock.run(cluster.clock.now + 100.0)
            cluster.kill(watched.machine(number))
            cluster.start(watched.machine(number))
        if round == 8:
            assert dead.id in _beats(watched)  # not yet an hour
        watched.play(has_records(watched, round))
    cluster.close()
    assert_one_history(watched)
    assert _beats(watched) == {watched.machine(number).id for number in range(1, 4)}


def _beats(watched: Watched) -> set[bytes]:
    prefix = keys.beats(watched.cluster.run)
    names = watched.cluster.store.buckets[BUCKET]
    return {bytes.fromhex(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}
