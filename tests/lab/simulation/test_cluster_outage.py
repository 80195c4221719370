"""A store that goes away when a round could end: the time of its absence is nobody's."""

from pathlib import Path

import pytest

from murmur.lab.simulation.cluster import MemberMachine
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records

AWAY_SECONDS = 1800.0
IN = 2
TIMES_SLOWER = 6.0
"""The last member's link, from then on: it claims some time after the store is back, and well within the grace."""


@pytest.mark.parametrize("seed", range(1, 4))
def test_grace_stands_still_while_the_store_is_away(tmp_path: Path, seed: int) -> None:
    """More than half have claimed when it goes away: the time that the last one still has does not pass."""
    watched = Watched(tmp_path, members=3, seed=seed)
    cluster, claimed = watched.cluster, list[MemberMachine]()

    def die(machine: MemberMachine, event: str, round: int) -> None:
        if (event, round) == ("claimed", IN) and machine not in claimed:
            claimed.append(machine)
            if len(claimed) == 2:
                cluster.store_dead = 1
                watched.witness.fault("store dead", None, AWAY_SECONDS)

    watched.hook = die
    cluster.begin()
    watched.play(lambda: bool(cluster.store_dead))
    [last] = [machine for machine in cluster.machines if machine not in claimed]
    last.slow.append(TIMES_SLOWER)
    cluster.clock.run(cluster.clock.now + AWAY_SECONDS)
    assert len(watched.records()) == IN
    assert len(claimed) == 2
    cluster.store_dead = 0
    watched.play(lambda: len(claimed) == 3)
    last.slow.clear()
    watched.play(has_records(watched, IN + 2))
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[: IN + 2]] == [3] * (IN + 2)
