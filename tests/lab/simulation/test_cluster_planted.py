"""Bugs that are planted in a cluster on purpose: its witness has to find them, though the cluster bears them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from murmur.lab.simulation.cluster_faults import play
from murmur.node.fetch.opening import Opened
from murmur.node.state.node_state import NodeState
from murmur.node.state.redo_log import RedoLog
from murmur.protocol.types import Digest
from tests.lab.simulation.test_cluster import Watched, has_records

WRONG = "member-1"
ROUNDS = 6


def plant_a_dropped_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member leaves one of the record's updates out, in one round."""
    real = NodeState.step

    def step(self: NodeState, round: int, outer: Any, theta: Digest, link: Digest, opened: Sequence[Opened]) -> None:
        real(self, round, outer, theta, link, opened[1:] if is_wrong(self) and round == 2 else opened)

    monkeypatch.setattr(NodeState, "step", step)


def plant_a_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of one member's theta is off after one outer step."""
    real = NodeState.step

    def step(self: NodeState, round: int, *words: Any) -> None:
        real(self, round, *words)
        if is_wrong(self) and round == 2:
            next(iter(self.replica.theta.values())).view(-1)[0] += 1.0

    monkeypatch.setattr(NodeState, "step", step)


def plant_a_wrong_redo(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member leaves an update out when it replays a round after a start."""
    real = RedoLog.updates

    def updates(self: RedoLog, *words: Any) -> Any:
        found = real(self, *words)
        return found[1:] if WRONG in self.folder.parts else found

    monkeypatch.setattr(RedoLog, "updates", updates)


def is_wrong(state: NodeState) -> bool:
    return WRONG in state.store.folder.parts


def restarted(folder: Path) -> Watched:
    """A short run in which every member is killed once, and starts again."""
    watched = Watched(folder)
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 3))
    for machine in cluster.machines:
        cluster.kill(machine)
        cluster.start(machine)
    watched.play(has_records(watched, ROUNDS))
    cluster.close()
    return watched


@pytest.mark.parametrize("plant", [plant_a_dropped_payload, plant_a_wrong_value])
def test_a_member_that_computes_another_theta_and_heals_is_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any
) -> None:
    plant(monkeypatch)
    result = play(tmp_path, 1, 3, ROUNDS, 0.0).result
    assert result.rounds == ROUNDS
    assert result.disagreements > 1  # the theta itself, and that it was left
    assert any(WRONG in line for line in result.broken)


def test_another_theta_after_the_last_record_is_a_disagreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record says so any more, and nobody leaves it."""
    plant_a_wrong_value(monkeypatch)
    watched = Watched(tmp_path)
    watched.cluster.begin()
    watched.play(lambda: sum(event[1:3] == ("applied", 2) for event in watched.events) == 3)
    watched.cluster.close()
    assert len(watched.records()) == 3
    assert watched.witness.result.disagreements > 0


def test_a_member_that_redoes_a_round_wrongly_is_a_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_a_wrong_redo(monkeypatch)
    assert restarted(tmp_path).witness.result.disagreements > 0


def test_without_a_bug_nobody_disagrees(tmp_path: Path) -> None:
    result = play(tmp_path / "calm", 1, 3, ROUNDS, 0.0).result
    assert (result.disagreements, result.broken) == (0, [])
    result = restarted(tmp_path / "restarted").witness.result
    assert (result.disagreements, result.broken) == (0, [])
