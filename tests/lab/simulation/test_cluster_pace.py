"""How long members train: nobody waits for a slow machine, or for those that begin a round late."""

from pathlib import Path

import pytest

from murmur.lab.simulation.modelled_replica import ModelledReplica
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work takes as long every time."""
    monkeypatch.setattr(ModelledReplica, "_drawn", lambda self, seconds: seconds)


class Timed(Watched):
    """A cluster of machines that are equally fast. Knows when each round was closed."""

    def __init__(self, folder: Path, members: int) -> None:
        super().__init__(folder, members)
        for machine in self.cluster.machines:
            machine.pace = 1.0
        self.closed: list[float] = []
        self.witness.on_round = lambda round: self.closed.append(self.cluster.clock.now)

    def seconds(self, round: int) -> float:
        return self.closed[round] - self.closed[round - 1]


@pytest.mark.parametrize(("pace", "least"), [(5.0, 11), (1.25, 46)])
def test_nobody_waits_for_a_slower_machine_and_it_does_nearly_all_it_can(
    tmp_path: Path, pace: float, least: int
) -> None:
    """In the others' time it can do 12 of 60 steps, or 48."""
    alone, together = Timed(tmp_path / "alone", 3), Timed(tmp_path / "together", 4)
    slow = together.machine(4)
    slow.pace = pace
    for watched in (alone, together):
        watched.cluster.begin()
        watched.play(has_records(watched, 8))
        watched.cluster.close()
        assert_one_history(watched)
    for round in range(2, 8):  # before, nobody knows its pace
        assert together.seconds(round) < 1.005 * alone.seconds(round)
        steps = {update.member: update.steps for update in together.records()[round].updates}
        assert steps.pop(slow.id) >= least
        assert list(steps.values()) == [60] * 3


def test_where_most_members_begin_a_round_late_it_does_not_last_longer(tmp_path: Path) -> None:
    watched = Timed(tmp_path, 7)
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 5))
    for number in range(1, 6):
        cluster.clock.run(watched.closed[4] + 200.0 + 25.0 * number)
        cluster.kill(watched.machine(number))
        cluster.start(watched.machine(number))
    watched.play(has_records(watched, 7))
    cluster.close()
    assert_one_history(watched)
    assert watched.seconds(5) < 1.01 * watched.seconds(4)
    steps = sorted(update.steps for update in watched.records()[5].updates)
    assert len(steps) == 7
    assert steps[:5] > [22] * 5
    assert steps[5:] == [60, 60]
