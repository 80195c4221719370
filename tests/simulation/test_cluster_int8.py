"""Clusters of the int8 exchange in modelled time: momentum is part of the one theta of a round, whatever dies."""

from pathlib import Path

import pytest

from node.state.node_state import NodeState
from protocol.cluster import ClusterOuter, ClusterSpec
from protocol.types import Digest
from simulation import cluster as simulated
from simulation.cluster import BUCKET
from simulation.cluster_faults import play
from tests.simulation.test_cluster import Watched, assert_one_history, has_records
from training.replica import VELOCITY


@pytest.fixture(autouse=True)
def _int8(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = simulated._spec

    def spec(genesis: Digest) -> ClusterSpec:
        found = sparse(genesis)
        table = found.cluster.model_copy(update={"exchange": "int8"})
        return found.model_copy(update={"cluster": table, "outer": ClusterOuter(alpha=0.7, momentum=0.9)})

    monkeypatch.setattr(simulated, "_spec", spec)


def test_a_storm_leaves_one_theta_a_round(tmp_path: Path) -> None:
    witness = play(tmp_path, 5, 4, 10, 60.0)
    assert witness.result.broken == []
    assert witness.result.disagreements == 0
    assert witness.result.faults > 25
    assert witness.result.participation > 0.9
    assert not witness.result.given_back


@pytest.mark.parametrize("number", range(1, 120, 17))
def test_a_member_killed_at_any_call_to_the_store_comes_back_to_the_same_theta_and_momentum(
    tmp_path: Path, number: int
) -> None:
    watched = Watched(tmp_path)
    cluster, victim = watched.cluster, watched.machine(1)
    watched.kill_at_call(victim, 2, number)
    cluster.begin()
    watched.play(has_records(watched, 6))
    cluster.close()
    assert_one_history(watched)
    assert victim.id.hex() in {update.member for update in watched.records()[5].updates}


def test_who_joins_late_takes_momentum_from_a_checkpoint_and_is_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeState, "sealed_file", lambda self, round, peer, envelope: None)  # nobody puts them back
    watched = Watched(tmp_path)
    cluster, late = watched.cluster, watched.machine(3)
    for machine in cluster.machines[:2]:
        cluster.start(machine)
    watched.play(has_records(watched, 10))
    objects = cluster.store.buckets[BUCKET]
    for key in [key for round in range(6) for key in objects if f"/payload/{round:08d}/" in key]:
        objects.pop(key)  # the records alone do not lead on from theta_0
    cluster.start(late)
    watched.play(has_records(watched, 14))
    program = late.program
    assert program is not None
    assert any(name.startswith(VELOCITY) for name in program.state.replica.consensus_state().tensors)
    cluster.close()
    assert_one_history(watched)
    assert late.id.hex() in {update.member for update in watched.records()[13].updates}
    assert (late.name, "caught_up") in [event[:2] for event in watched.events]


def test_all_dead_at_once_replay_their_rounds_to_the_same_momentum(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    cluster = watched.cluster
    cluster.begin()
    watched.play(has_records(watched, 7))  # three rounds since the last snapshot
    for machine in cluster.machines:
        cluster.kill(machine)
    for machine in cluster.machines:
        cluster.start(machine)
    watched.play(has_records(watched, 9))
    cluster.close()
    assert_one_history(watched)
    assert [len(record.updates) for record in watched.records()[7:9]] == [3, 3]
