"""One node's model through rounds: theta moves only in the outer step, and nothing is lost on the way."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from murmur.data.shards import Shards
from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.spec import RunSpec
from murmur.protocol.types import Digest, Page, PeerId
from murmur.training.checkpoint import TensorState, load, parse_outer, save
from murmur.training.evaluate import held_out_loss, held_out_sequences
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.replica import Replica
from sparseloco.digest import sync_proof, sync_values, theta_digest
from sparseloco.floats import NonFinite
from sparseloco.outer import OuterState
from sparseloco.update import Update


@pytest.fixture
def theta(run_spec: RunSpec) -> dict[str, Tensor]:
    return genesis_theta(run_spec.model, 11)


@pytest.fixture
def replica(run_spec: RunSpec, theta: dict[str, Tensor]) -> Replica:
    return Replica(run_spec, theta)


def work(data: Shards, turn: int = 0) -> Tensor:
    return sequences(data.train, [Page(turn * 512, 512)], 32)


def bits(tensors: dict[str, Tensor]) -> bytes:
    return b"".join(tensors[name].detach().numpy().tobytes() for name in sorted(tensors))


def weights(replica: Replica) -> bytes:
    return bits(dict(replica.model.named_parameters()))


def trained(replica: Replica, data: Shards, turn: int = 0) -> Update:
    replica.inner_round(work(data, turn))
    return replica.compress()


def apply(replica: Replica, *updates: Update) -> None:
    replica.outer_step(updates, alpha=1.0, aggregate="mean")


def test_it_starts_at_the_given_theta_and_keeps_its_own_copy(
    run_spec: RunSpec, theta: dict[str, Tensor], replica: Replica
) -> None:
    before = bits(theta)
    theta["norm.weight"].zero_()
    assert bits(dict(replica.theta)) == before == weights(replica)
    assert replica.digest() == theta_digest(replica.theta, run_spec.layout, OuterState.initial(run_spec.layout))


def test_an_inner_round_moves_the_weights_and_not_theta(replica: Replica, data: Shards) -> None:
    before = bits(dict(replica.theta))
    report = replica.inner_round(work(data))
    assert weights(replica) != before
    assert bits(dict(replica.theta)) == before
    assert report.num_tokens == 4 * 4 * 32


def test_two_replicas_with_the_same_data_stay_bit_identical(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    first, second = Replica(run_spec, theta), Replica(run_spec, theta)
    for turn in range(3):
        updates = [trained(first, data, turn), trained(second, data, turn)]
        assert updates[0].records == updates[1].records
        for replica in (first, second):
            apply(replica, *updates)
        assert first.digest() == second.digest()
    assert first.outer.rounds == 3
    assert bits(dict(first.theta)) == weights(first)


def test_the_outer_step_moves_towards_the_miners_weights(replica: Replica, data: Shards) -> None:
    probe = work(data)
    before = replica.loss(probe)
    for _ in range(6):
        apply(replica, trained(replica, data))
    assert replica.loss(probe) < before - 0.05


def test_the_schedule_counts_non_void_rounds(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    results = []
    for rounds in (0, 1):
        outer = OuterState.initial(run_spec.layout)
        replica = Replica(run_spec, theta, OuterState(rounds, outer.averages, outer.whole))
        replica.inner_round(work(data))
        results.append(weights(replica))
    assert results[0] != results[1]


def test_an_amended_inner_spec_is_followed(replica: Replica, data: Shards, run_spec: RunSpec) -> None:
    inner = run_spec.inner.model_copy(update={"steps": 2, "sequences": 3, "peak_lr": 1e-12, "final_lr": 1e-12})
    report = replica.inner_round(work(data), inner=inner)
    assert report.num_tokens == 2 * 3 * 32
    moved = [(p - replica.theta[name]).abs().max() for name, p in replica.model.named_parameters()]
    assert max(moved) < 1e-8


def test_a_void_round_loses_nothing(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    replica = Replica(run_spec, theta)
    update = trained(replica, data)
    before = {name: value.clone() for name, value in replica.own_state().tensors.items()}
    replica.restore_to_error_feedback(update)
    after = replica.own_state().tensors
    assert weights(replica) == bits(dict(replica.theta))
    for index, tensor in enumerate(run_spec.layout):
        error = "error/" + tensor.name
        assert torch.equal(after[error], before[error] + update.dense(index))
        for moment in ("adam.first/", "adam.second/"):
            assert torch.equal(after[moment + tensor.name], before[moment + tensor.name])
    assert replica.digest() == Replica(run_spec, theta).digest()


def test_after_a_void_round_the_next_starts_from_theta(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    """Also when nobody told the replica so: what was trained and not compressed is dropped, not trained twice."""
    once, twice = Replica(run_spec, theta), Replica(run_spec, theta)
    twice.inner_round(work(data, 1))
    twice.load_own(once.own_state())
    assert trained(once, data).records == trained(twice, data).records


def test_a_probe_applies_the_bounded_update_and_restores_theta_bit_for_bit(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    replica = Replica(run_spec, theta)
    update = trained(replica, data)
    replica.reset()
    before, digest = weights(replica), replica.digest()
    scales = tuple(0.1 + index / 100 for index in range(len(run_spec.layout.tensors)))
    with replica.probe(update, scales, 0.5):
        for index, tensor in enumerate(run_spec.layout):
            expected = replica.theta[tensor.name] - update.dense(index) * torch.tensor(0.5 * scales[index])
            assert torch.equal(dict(replica.model.named_parameters())[tensor.name], expected)
    assert weights(replica) == before == bits(dict(replica.theta))
    assert replica.digest() == digest


def test_a_probe_restores_theta_when_its_block_fails(replica: Replica, data: Shards) -> None:
    update = trained(replica, data)

    def failing() -> None:
        with replica.probe(update, (1.0,) * len(replica.layout.tensors), 1.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert weights(replica) == bits(dict(replica.theta))


def test_a_probe_of_a_good_update_lowers_the_loss_on_its_data(replica: Replica, data: Shards) -> None:
    update = trained(replica, data)
    replica.reset()
    before = replica.loss(work(data))
    with replica.probe(update, (1.0,) * len(replica.layout.tensors), 1.0):
        assert replica.loss(work(data)) < before


def test_a_sequences_loss_does_not_depend_on_its_company(replica: Replica, data: Shards) -> None:
    replica.inner_round(work(data))
    many = sequences(data.train, [Page(0, 32 * 67)], 32)
    together = replica.losses(many)
    assert len(together) == 67
    assert [replica.losses(row[None])[0] for row in many] == together
    assert replica.losses(many.flip(0)) == together[::-1]
    assert replica.loss(many) == pytest.approx(float(replica.model.loss(many).detach().mean()), rel=1e-5)


def test_evaluation_leaves_no_gradients_and_no_sequences_have_no_loss(replica: Replica, data: Shards) -> None:
    replica.loss(work(data))
    assert all(parameter.grad is None for parameter in replica.model.parameters())
    assert replica.losses(work(data)[:0]) == []
    assert replica.loss(work(data)[:0]) != replica.loss(work(data)[:0])


def test_diverged_training_is_refused_and_leaves_error_feedback_alone(replica: Replica, data: Shards) -> None:
    trained(replica, data)
    before = bits(dict(replica.own_state().tensors))
    with torch.no_grad():
        replica.model.norm.weight[0] = float("nan")
    with pytest.raises(NonFinite):
        replica.compress()
    assert bits(dict(replica.own_state().tensors)) == before


def test_a_restarted_miner_goes_on_bit_for_bit(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards, tmp_path: Path
) -> None:
    replica = Replica(run_spec, theta)
    apply(replica, trained(replica, data, 0))
    update = trained(replica, data, 1)
    consensus, own = save(tmp_path, replica.consensus_state()), save(tmp_path, replica.own_state())
    other = Replica(run_spec, genesis_theta(run_spec.model, 99))
    other.load_consensus(load(tmp_path, consensus, run_spec.model.shapes()))
    other.load_own(load(tmp_path, own, other.own_shapes()))
    assert other.digest() == replica.digest()
    for each in (replica, other):
        apply(each, update)
    assert other.digest() == replica.digest()
    assert trained(other, data, 2).records == trained(replica, data, 2).records
    assert bits(dict(other.own_state().tensors)) == bits(dict(replica.own_state().tensors))


def test_a_fresh_miners_own_state_is_zeros(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    first, second = Replica(run_spec, theta), Replica(run_spec, theta)
    own = first.own_state()
    assert {name: tuple(tensor.shape) for name, tensor in own.tensors.items()} == dict(first.own_shapes())
    assert not any(tensor.any() for tensor in own.tensors.values())
    second.load_own(own)
    assert trained(first, data).records == trained(second, data).records


def test_loading_a_state_of_another_model_is_refused(replica: Replica) -> None:
    state = replica.consensus_state()
    digest = replica.digest()
    fewer = {name: tensor for name, tensor in state.tensors.items() if name != "norm.weight"}
    for tensors in (
        fewer,
        fewer | {"norm.weight": torch.zeros(5)},
        fewer | {"norm.weight": torch.zeros(32, dtype=torch.float64)},
        {**state.tensors, "extra": torch.zeros(1)},
    ):
        with pytest.raises(CheckpointCorrupt):
            replica.load_consensus(TensorState(tensors, state.facts))
    own = replica.own_state()
    for facts in ({}, {"adam_steps": -1}, {"adam_steps": "3"}, {"adam_steps": True}):
        with pytest.raises(CheckpointCorrupt):
            replica.load_own(TensorState(own.tensors, facts))
    assert replica.digest() == digest


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": -1},
        {"rounds": 1 << 32},
        {"rounds": 1.0},
        {"rounds": None},
        {"averages": []},
        {"averages": 5},
        {"averages": ["0x1p0"] * 1000},
        {"averages": [0.5]},
        {"whole": "nan"},
        {"whole": "inf"},
        {"whole": "-0x1p-3"},
        {"whole": "0x1p99999"},
        {"whole": 3},
        {"whole": "x"},
    ],
)
def test_a_malformed_outer_state_is_corrupt(change: dict[str, object], replica: Replica) -> None:
    facts = replica.consensus_state().facts
    assert parse_outer(facts, replica.layout) == replica.outer
    with pytest.raises(CheckpointCorrupt):
        parse_outer({**facts, **change}, replica.layout)


def test_the_sync_proof_is_thetas(replica: Replica, data: Shards) -> None:
    block, peer = Digest(b"b" * 32), PeerId(b"p" * 32)
    expected = sync_proof(sync_values(replica.theta, replica.layout, block), peer)
    replica.inner_round(work(data))
    assert replica.sync_proof(block, peer) == expected


def test_held_out_sequences_are_spread_over_the_held_out_split(replica: Replica, data: Shards) -> None:
    found = held_out_sequences(data, 5, 32)
    available = (data.held_out.num_tokens - 1) // 32
    firsts = [index * available // 5 * 32 for index in range(5)]
    assert found.tolist() == [data.held_out.tokens(first, 33).tolist() for first in firsts]
    assert len(held_out_sequences(data, available, 32)) == available
    with pytest.raises(ValueError, match="held-out sequences"):
        held_out_sequences(data, available + 1, 32)
    assert held_out_loss(replica, data, 5) == replica.loss(found)


# --- an outer step that is taken back ------------------------------------------------------------------------------


def stop_after(steps: int) -> Callable[[], bool]:
    asked = iter(range(steps - 1))
    return lambda: next(asked, None) is None


def two(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> tuple[Replica, Replica, Update, Update]:
    """Two replicas that stand at the same state after a round, and two updates of another peer."""
    ours, theirs, other = (Replica(run_spec, theta) for _ in range(3))
    update = trained(ours, data, 0)
    assert trained(theirs, data, 0).records == update.records
    for replica in (ours, theirs):
        apply(replica, update)
    return ours, theirs, trained(other, data, 1), trained(other, data, 2)


def test_an_inner_round_that_was_stopped_and_resumed_is_the_one_that_was_not(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    ours, theirs, _, _ = two(run_spec, theta, data)
    whole = theirs.inner_round(work(data))
    assert ours.inner_round(work(data), stopped=stop_after(1)).steps == 1
    assert ours.inner_round(work(data), stopped=stop_after(1), resume=True).steps == 2
    assert ours.inner_round(work(data), resume=True) == whole
    assert ours.inner_round(work(data), resume=True) == whole, "nothing is left to do"
    assert weights(ours) == weights(theirs)
    assert ours.compress().records == theirs.compress().records


def test_a_step_that_is_taken_back_leaves_no_trace(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    ours, theirs, guessed, agreed = two(run_spec, theta, data)
    before = bits(dict(ours.theta)), ours.digest(), ours.outer
    apply(ours, guessed)
    assert ours.digest() != before[1]
    ours.undo_outer_step()
    assert (bits(dict(ours.theta)), ours.digest(), ours.outer) == before
    assert weights(ours) == before[0]
    for replica in (ours, theirs):
        apply(replica, agreed)
        replica.inner_round(work(data))
    assert ours.digest() == theirs.digest()
    assert ours.compress().records == theirs.compress().records


def test_steps_from_a_wrong_guess_are_moved_by_the_difference_and_gone_on_with(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    ours, theirs, guessed, agreed = two(run_spec, theta, data)
    apply(ours, guessed)
    ours.inner_round(work(data), stopped=stop_after(2))
    moved = {name: value.detach() - ours.theta[name] for name, value in ours.model.named_parameters()}
    ours.undo_outer_step()
    for replica in (ours, theirs):
        apply(replica, agreed)
    assert ours.digest() == theirs.digest()
    report = ours.inner_round(work(data), stopped=stop_after(1), resume=True)
    assert report.steps == 3
    ours.inner_round(work(data), resume=True)
    theirs.inner_round(work(data))
    for name, value in ours.model.named_parameters():
        step = float(moved[name].abs().max())
        assert float((value - dict(theirs.model.named_parameters())[name]).detach().abs().max()) < 4 * step


def test_after_all_steps_the_weights_are_moved_alone(run_spec: RunSpec, theta: dict[str, Tensor], data: Shards) -> None:
    ours, _, guessed, agreed = two(run_spec, theta, data)
    apply(ours, guessed)
    report = ours.inner_round(work(data))
    moved = {name: value.detach() - ours.theta[name] for name, value in ours.model.named_parameters()}
    ours.undo_outer_step()
    with pytest.raises(AssertionError, match="taken back"):
        ours.compress()
    apply(ours, agreed)
    assert ours.inner_round(work(data), resume=True) == report
    for name, value in ours.model.named_parameters():
        assert torch.allclose(value.detach() - ours.theta[name], moved[name], atol=1e-6)
    ours.compress()
    with pytest.raises(RuntimeError, match="overwritten"):
        ours.undo_outer_step()


def test_a_void_round_after_a_guess_gives_back_and_goes_on(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    ours, _, guessed, _ = two(run_spec, theta, data)
    before = bits(dict(ours.theta))
    ours.inner_round(work(data))
    sent = ours.compress()
    apply(ours, guessed)
    ours.inner_round(work(data), stopped=stop_after(1))
    ours.undo_outer_step()
    ours.restore_to_error_feedback(sent)
    assert ours.inner_round(work(data), resume=True).steps == run_spec.inner.steps
    assert bits(dict(ours.theta)) == before


def test_steps_made_where_a_void_round_was_expected_are_kept_when_it_was_not_void(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    ours, theirs, _, agreed = two(run_spec, theta, data)
    ours.inner_round(work(data), stopped=stop_after(2))
    ours.displace()
    for replica in (ours, theirs):
        apply(replica, agreed)
    assert ours.inner_round(work(data), stopped=stop_after(1), resume=True).steps == 3
    assert ours.inner_round(work(data), resume=True).steps == run_spec.inner.steps
    assert ours.digest() == theirs.digest()


def test_after_another_state_was_loaded_nothing_is_resumed(
    run_spec: RunSpec, theta: dict[str, Tensor], data: Shards
) -> None:
    ours, theirs, guessed, agreed = two(run_spec, theta, data)
    apply(theirs, agreed)
    apply(ours, guessed)
    ours.inner_round(work(data), stopped=stop_after(1))
    ours.undo_outer_step()
    ours.load_consensus(theirs.consensus_state())
    ours.inner_round(work(data), resume=True)
    assert theirs.inner_round(work(data)).steps == run_spec.inner.steps
    assert weights(ours) != bits(dict(ours.theta))
    assert ours.digest() == theirs.digest()
