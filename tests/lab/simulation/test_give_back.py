"""An update that is in no record goes back into the error feedback once, wherever its member is killed."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from murmur.cli.simulate import drawn_keys
from murmur.lab.simulation.cluster import MemberMachine
from tests.lab.simulation.kills import LineKiller
from tests.lab.simulation.test_cluster import Watched, assert_one_history, has_records

ROUND = 1
"""The one whose record has no update of the victim: it sleeps after its training."""
KILLS = 20
Values = npt.NDArray[np.float32]


class Run:
    """Three members, and one of them may be killed between its training and the next round."""

    def __init__(self, folder: Path, since: str, line: int) -> None:
        """since: the event from which lines are counted. line: before which it is killed, -1: before none."""
        self.watched, self.since, self.line = Watched(folder), since, line
        self.victim = self.watched.machine(2)
        self.killer = LineKiller(self.watched.cluster, self.victim)
        self.lines = 0
        """From `since` to the next round."""
        self.before = self.after = self.update = np.zeros(0, np.float32)
        """Error feedback before it compresses and when the next round begins, and its update."""
        self.sealed = ""
        self.watched.hook = self._told

    def _told(self, machine: MemberMachine, event: str, round: int) -> None:
        if machine is not self.victim or machine.life is None or machine.program is None:
            return
        if (event, round, machine.lives) == ("trained", ROUND, 1):
            self.before = self._errors(machine)
            machine.life.freeze(300.0)
        if (event, round, machine.lives) == (self.since, ROUND, 1):
            self.killer.arm(self.line)
        if (event, round) in (("phases", ROUND), ("joined", ROUND + 1)):  # the second: it died when all was done
            self.lines = max(self.lines, self.killer.lines)
            self.killer.disarm()
            self.after = self._errors(machine)
            held = machine.program.state
            if (mine := held.own_update(ROUND)) is not None and held.saved.sealed is not None:
                self.sealed = held.saved.sealed.object.hex()
                self.update = _flat(mine.dense(index) for index in range(len(mine.layout.tensors)))

    def _errors(self, machine: MemberMachine) -> Values:
        assert machine.program is not None
        return _flat(machine.program.state.replica._errors().values())

    def play(self) -> "Run":
        cluster = self.watched.cluster
        self.watched.witness.fault("asleep", self.victim, 3600.0)
        with drawn_keys(1):  # pages follow from what is sealed
            cluster.begin()
            self.watched.play(has_records(self.watched, ROUND + 3))
            self.killer.disarm()
            cluster.close()
        assert_one_history(self.watched)
        return self

    def assert_left_out(self) -> None:
        """The round ended without the victim's update."""
        assert self.victim.id not in {update.member for update in self.watched.records()[ROUND].updates}


def _flat(tensors) -> Values:  # type: ignore[no-untyped-def]
    return np.concatenate([tensor.numpy().reshape(-1).copy() for tensor in tensors])


@pytest.fixture(scope="module", params=["trained", "claimed"])
def calm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Run:
    run = Run(tmp_path_factory.mktemp("calm"), request.param, -1).play()
    run.assert_left_out()
    return run


@pytest.mark.parametrize("kill", [pytest.param(kill, marks=[pytest.mark.slow] * (kill % 2)) for kill in range(KILLS)])
def test_killed_at_any_line_a_member_has_its_update_back_once(tmp_path: Path, calm: Run, kill: int) -> None:
    assert np.count_nonzero(calm.update)
    run = Run(tmp_path, calm.since, 1 + kill * (calm.lines - 1) // KILLS).play()
    assert run.killer.killed
    if run.sealed != calm.sealed:
        assert calm.since == "trained"  # it died before it had saved anything: it may have sealed the round anew
        return
    run.assert_left_out()
    # Before the error feedback of this round is on the disk, that of the round before is there: what was sent is then
    # what it holds at those places.
    lost = np.where(calm.update != 0, calm.update, calm.before)
    exact = np.array_equal(run.after, calm.after)
    assert exact or (kill < KILLS // 2 and np.array_equal(run.after, lost)), run.killer.killed
