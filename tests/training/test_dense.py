"""A replica of the int8 exchange: what it sends, DiLoCo's outer step, and momentum as a part of consensus state."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from murmur.cluster.creation import draft
from murmur.configs import presets
from murmur.data.shards import Shards
from murmur.protocol.cluster import ClusterSpec, build_cluster
from murmur.protocol.errors import CheckpointCorrupt, ConfigError
from murmur.protocol.layout import DenseLayout
from murmur.protocol.spec import Exchange, RunSpec
from murmur.training.checkpoint import TensorState, load, save
from murmur.training.genesis import genesis_state
from murmur.training.memory import disk_parts, host_moments
from murmur.training.model import genesis_theta
from murmur.training.replica import ERROR, VELOCITY, Replica
from sparseloco import ops
from sparseloco.dense import DenseUpdate
from sparseloco.outer import OuterState
from tests.sparseloco.samples import mean_in_parts
from tests.training.test_replica import bits, trained, weights


def cluster_spec(run_spec: RunSpec, momentum: float = 0.9, exchange: str = "int8") -> ClusterSpec:
    table = run_spec.training.model_dump(mode="json")
    changes = {"outer": {"alpha": 0.7, "momentum": momentum}, "cluster": {"exchange": exchange}}
    return build_cluster(table | changes, "a test")


@pytest.fixture
def spec(run_spec: RunSpec) -> ClusterSpec:
    return cluster_spec(run_spec)


@pytest.fixture
def theta(spec: ClusterSpec) -> dict[str, Tensor]:
    return genesis_theta(spec.model, 11)


@pytest.fixture
def replica(spec: ClusterSpec, theta: dict[str, Tensor]) -> Replica:
    return Replica(spec, theta)


def step(replica: Replica, *updates: object, parts: int = 3) -> None:
    replica.outer_step(mean_in_parts(updates, replica.layout, parts), alpha=0.7, aggregate="mean")


def play(replica: Replica, data: Shards, rounds: int) -> None:
    for round in range(rounds):
        step(replica, trained(replica, data, round))


def test_all_of_what_was_learned_is_sent_and_nothing_is_carried_over(
    spec: ClusterSpec, replica: Replica, data: Shards
) -> None:
    update = trained(replica, data)
    assert len(update.records) == spec.layout.records_bytes == spec.object_bytes - 204 - 32
    for index, tensor in enumerate(spec.layout):
        delta = replica.theta[tensor.name] - dict(replica.model.named_parameters())[tensor.name].detach()
        assert torch.allclose(update.dense(index), delta, atol=float(delta.abs().max()) / 127)
    replica.restore_to_error_feedback(update)  # a void round: lost, and no error feedback is made
    assert weights(replica) == bits(dict(replica.theta))
    assert not [name for name in replica.own_state().tensors if name.startswith(ERROR)]
    replica.remove_from_error_feedback(update)  # after a restart with an older state of its own
    assert not [name for name in replica.own_state().tensors if name.startswith(ERROR)]
    other = Replica(spec, replica.theta)
    other.load_own(replica.own_state())
    assert bits(other.own_state().tensors) == bits(replica.own_state().tensors)


def test_rounds_are_dilocos_outer_steps_on_the_mean(theta: dict[str, Tensor], replica: Replica, data: Shards) -> None:
    parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in theta.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.7, momentum=0.9, nesterov=True)
    for round in range(3):
        updates = [trained(replica, data, 2 * round), trained(replica, data, 2 * round + 1)]
        for index, tensor in enumerate(replica.layout):
            mean = (updates[0].dense(index) + updates[1].dense(index)) / 2
            parameters[tensor.name].grad = mean
        optimizer.step()
        step(replica, *updates)
        for name, parameter in parameters.items():
            # The mean is quantised once more: half a step of the largest value.
            assert torch.allclose(replica.theta[name], parameter, atol=2e-3)
    assert replica.outer.rounds == 3


def test_replicas_that_apply_the_same_are_one_and_momentum_is_in_their_digest(
    spec: ClusterSpec, theta: dict[str, Tensor], replica: Replica, data: Shards
) -> None:
    other = Replica(spec, theta)
    ops.use("reference")
    try:
        for round in range(3):
            update = trained(replica, data, round)
            for one in (replica, other):
                step(one, update, None)
                ops.use("auto")
            assert replica.digest() == other.digest()
            ops.use("reference")
    finally:
        ops.use("auto")
    velocity = other._velocity()
    assert velocity is not None
    velocity["norm.weight"][0] += 1e-3
    other._moved()
    assert bits(dict(other.theta)) == bits(dict(replica.theta))
    assert replica.digest() != other.digest()


def test_a_joiner_has_momentum_from_the_checkpoint_and_goes_on_the_same(
    tmp_path: Path, spec: ClusterSpec, theta: dict[str, Tensor], replica: Replica, data: Shards
) -> None:
    joiner = Replica(spec, {name: torch.zeros_like(tensor) for name, tensor in theta.items()})
    for rounds in (0, 2):
        play(replica, data, rounds)
        digest = save(tmp_path, replica.consensus_state())
        found = load(tmp_path, digest, spec.model.shapes(), also=joiner.velocity_shapes())
        assert any(name.startswith(VELOCITY) for name in found.tensors) == (rounds > 0)
        joiner.load_consensus(found)
        assert joiner.digest() == replica.digest()
    update = trained(replica, data, 9)
    step(replica, update)
    step(joiner, update)
    assert joiner.digest() == replica.digest()
    joiner.load_consensus(TensorState(theta, Replica(spec, theta).consensus_state().facts))
    assert joiner.digest() == Replica(spec, theta).digest()  # back at the beginning, without momentum


def test_a_state_with_half_its_momentum_or_one_too_much_is_refused(
    tmp_path: Path, run_spec: RunSpec, spec: ClusterSpec, theta: dict[str, Tensor], replica: Replica, data: Shards
) -> None:
    play(replica, data, 1)
    state = replica.consensus_state()
    without = TensorState(theta, state.facts)
    with pytest.raises(CheckpointCorrupt, match="other tensors"):
        Replica(spec, theta).load_consensus(without)
    plain = cluster_spec(run_spec, momentum=0.0)
    digest, half = save(tmp_path, state), dict(state.tensors)
    half.pop(VELOCITY + "norm.weight")
    for name, shapes in ((digest, {}), (save(tmp_path, TensorState(half, state.facts)), replica.velocity_shapes())):
        with pytest.raises(CheckpointCorrupt, match="does not hold"):
            load(tmp_path, name, plain.model.shapes(), also=shapes)


def test_an_outer_step_of_this_exchange_is_not_taken_back(replica: Replica, data: Shards) -> None:
    play(replica, data, 1)
    with pytest.raises(RuntimeError, match="no outer step to take back"):
        replica.undo_outer_step()


def test_any_number_of_parts_comes_to_the_same_theta(spec: ClusterSpec, theta: dict[str, Tensor], data: Shards) -> None:
    digests = set()
    for parts in (1, 2, 5, spec.layout.num_chunks, 3 * spec.layout.num_chunks):
        replica = Replica(spec, theta)
        for round in range(2):
            step(replica, trained(replica, data, round), parts=parts)
        digests.add(replica.digest())
    assert len(digests) == 1


def test_a_part_that_did_not_parse_is_one_of_zeros(
    spec: ClusterSpec, theta: dict[str, Tensor], replica: Replica, data: Shards
) -> None:
    other, update = Replica(spec, theta), trained(replica, data)
    assert isinstance(spec.layout, DenseLayout)
    found = mean_in_parts([update], spec.layout, 2)
    zeros = DenseUpdate(spec.layout.parts(2)[1], bytes(spec.layout.parts(2)[1].records_bytes))
    replica.outer_step([found[0], None], alpha=0.7, aggregate="mean")
    other.outer_step([found[0], zeros], alpha=0.7, aggregate="mean")
    assert replica.digest() == other.digest()


def test_without_momentum_it_is_plain_descent_and_no_memory_is_taken(run_spec: RunSpec, data: Shards) -> None:
    spec = cluster_spec(run_spec, momentum=0.0)
    replica = Replica(spec, genesis_theta(spec.model, 3))
    before = {name: tensor.clone() for name, tensor in replica.theta.items()}
    update = trained(replica, data)
    step(replica, update)
    mean = ops.dense_mean([update], spec.layout)  # type: ignore[arg-type]
    for index, tensor in enumerate(spec.layout):
        assert torch.equal(replica.theta[tensor.name], before[tensor.name] - mean.dense(index) * torch.tensor(0.7))
    assert "velocity" not in replica._trainer._areas
    assert replica.velocity_shapes() == {}


def test_theta_0_has_no_norms(replica: Replica, data: Shards) -> None:
    genesis_state(replica, data)
    assert replica.outer == OuterState.initial(replica.layout)


def test_a_spec_that_could_not_be_is_refused(run_spec: RunSpec) -> None:
    with pytest.raises(ConfigError, match=r"momentum 0\.9 is for cluster\.exchange 'int8'"):
        cluster_spec(run_spec, exchange="sparse")
    table = cluster_spec(run_spec).model_dump(mode="json")
    table["outer"]["aggregate"] = "filtered_mean"
    with pytest.raises(ConfigError, match="takes the mean"):
        build_cluster(table, "a test")


def test_the_example_is_intellects_outer_step(data: Shards) -> None:
    table = presets.table(str(presets.FOLDER / "clusters" / "intellect-demo.toml"))
    spec = draft(table, "example", data, local=True, own_vocabulary=True)
    assert (spec.exchange, spec.outer.alpha, spec.momentum, spec.outer.aggregate) == ("int8", 0.7, 0.9, "mean")
    assert spec.inner.optimizer == "adamw"


def test_momentum_and_the_missing_error_feedback_are_in_the_plan_of_memory_and_disk(run_spec: RunSpec) -> None:
    class Planned(RunSpec):
        @property
        def exchange(self) -> Exchange:
            return "int8"

        @property
        def momentum(self) -> float:
            return 0.9

    planned = Planned.model_construct(**dict(run_spec))
    model = 4 * run_spec.layout.num_parameters
    for moment in ("outer step", "restart"):
        sparse, dense = (host_moments(spec, "miner")[moment] for spec in (run_spec, planned))
        assert (sparse["error_feedback"], sparse.get("momentum", 0)) == (model, 0)
        assert (dense["error_feedback"], dense["momentum"]) == (0, model)
    assert disk_parts(planned, "miner")["snapshot"] == 2 * disk_parts(run_spec, "miner")["snapshot"]
