"""A machine that is slow in one round only: nobody knows it before, so it trains until the others have ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from murmur.cluster.pace import grace_seconds
from murmur.lab.simulation.cluster import INNER_SECONDS, MemberMachine
from murmur.lab.simulation.modelled_replica import ModelledReplica
from tests.lab.simulation.test_cluster import assert_one_history, has_records
from tests.lab.simulation.test_cluster_pace import Timed

SLOW_IN = 4
LEAST = 15
"""A quarter of 60 steps."""


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work takes as long every time."""
    monkeypatch.setattr(ModelledReplica, "_drawn", lambda self, seconds: seconds)


def play(folder: Path, times: float) -> tuple[Timed, MemberMachine]:
    """A run in which one of four members takes so many times as long for each step of one round."""
    watched = Timed(folder, 4)
    victim = watched.machine(4)

    def hinder(machine: MemberMachine, event: str, round: int) -> None:
        if machine is not victim or machine.program is None:
            return
        modelled = machine.program.state.replica
        assert isinstance(modelled, ModelledReplica)
        if (event, round) == ("applied", SLOW_IN - 1):
            modelled._costs = replace(modelled._costs, inner=times * INNER_SECONDS)
        elif event == "trained":
            modelled._costs = replace(modelled._costs, inner=INNER_SECONDS)

    watched.hook = hinder
    watched.cluster.begin()
    watched.play(has_records(watched, SLOW_IN + 3))
    watched.cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[:SLOW_IN]] == [4] * SLOW_IN
    return watched, victim


@pytest.mark.parametrize("times", [4.5, 10.0])
def test_who_does_less_than_a_quarter_of_its_steps_claims_nothing_and_nobody_waits_for_it(
    tmp_path: Path, times: float
) -> None:
    """Its 14th step ends while the round could still take it in; the 7th of the slower one does not."""
    watched, victim = play(tmp_path, times)
    happened = {event for name, event, at, _ in watched.events if (name, at) == (victim.name, SLOW_IN)}
    assert {"trained", "applied"} <= happened
    assert not happened & {"published", "claimed"}
    record = watched.records()[SLOW_IN]
    assert len(record.updates) == 3
    assert victim.id not in record.claims
    rules = watched.cluster.spec.cluster
    grace = grace_seconds(rules, record.claims.values())
    assert watched.seconds(SLOW_IN) < watched.seconds(SLOW_IN - 1) + grace + rules.beat_seconds
    for after in watched.records()[SLOW_IN + 1 :]:
        assert after.claims[victim.id].steps > 50


def test_who_reaches_a_quarter_of_its_steps_is_in_the_record(tmp_path: Path) -> None:
    watched, victim = play(tmp_path, 4.1)
    assert [record.claims[victim.id].steps for record in watched.records()[SLOW_IN:]] == [LEAST, 60, 60]
