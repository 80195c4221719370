"""The inner loop: deterministic, resumable, equal to a plain loop, and it learns."""

import math

import pytest
import torch
from torch import Tensor

from protocol.errors import CheckpointCorrupt
from protocol.spec import InnerSpec, ModelSpec
from training.inner import adam_state, inner_round, load_adam_state, make_optimizer
from training.loader import batches
from training.model import Transformer, initialise
from training.schedule import lr_at


def fresh(model_spec: ModelSpec, inner_spec: InnerSpec) -> tuple[Transformer, torch.optim.AdamW]:
    model = Transformer(model_spec)
    initialise(model, 3)
    return model, make_optimizer(model, inner_spec)


def data(seed: int = 0) -> Tensor:
    return torch.randint(0, 257, (16, 33), generator=torch.Generator().manual_seed(seed))


def weights(model: Transformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_two_runs_from_one_seed_agree_bit_for_bit(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    results = []
    for _ in range(2):
        model, optimizer = fresh(model_spec, inner_spec)
        report = inner_round(model, optimizer, batches(data(), 4, 4), inner_spec, first_step=0)
        results.append((report, weights(model)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_it_equals_a_plain_loop_of_torchs_reference_adamw(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    plain, _ = fresh(model_spec, inner_spec)
    reference = torch.optim.AdamW(
        plain.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False, fused=False
    )
    report = inner_round(model, optimizer, batches(data(), 4, 4), inner_spec, first_step=6)
    losses = []
    for step, batch in enumerate(torch.split(data(), 4)):
        reference.param_groups[0]["lr"] = lr_at(6 + step, inner_spec)
        reference.zero_grad()
        loss = plain.loss(batch).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), inner_spec.clip)
        reference.step()
        losses.append(loss.item())
    assert report.losses == pytest.approx(losses, abs=1e-6)
    assert report.num_tokens == 16 * 32
    torch.testing.assert_close(weights(model), weights(plain), atol=2e-6, rtol=1e-5)


def test_accumulation_over_micro_batches_gives_the_whole_batchs_step(
    model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    results = []
    for micro in (None, 3, 1):
        model, optimizer = fresh(model_spec, inner_spec)
        # One step: Adam's division blows rounding up where a gradient is nearly zero.
        report = inner_round(model, optimizer, batches(data(), 1, 8), inner_spec, first_step=0, micro_sequences=micro)
        results.append((report.mean_loss, weights(model)))
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-6)
        assert (found - results[0][1]).norm() < 1e-3 * (
            results[0][1] - weights(fresh(model_spec, inner_spec)[0])
        ).norm()


def test_training_lowers_the_loss(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    first = inner_round(model, optimizer, batches(data(), 4, 4), inner_spec, first_step=0)
    for turn in range(1, 10):
        last = inner_round(model, optimizer, batches(data(), 4, 4), inner_spec, first_step=4 * turn)
    assert first.losses[0] == pytest.approx(math.log(257), abs=0.1)
    assert last.mean_loss < first.mean_loss - 0.2


def test_every_step_is_reported_as_it_happens(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    seen: list[tuple[int, float]] = []
    report = inner_round(
        model,
        optimizer,
        batches(data(), 4, 4),
        inner_spec,
        first_step=0,
        on_step=lambda step, loss: seen.append((step, loss)),
    )
    assert seen == list(enumerate(report.losses))


def test_gradients_are_clipped(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    moments = []
    for clip in (1e-3, 1e-6):
        model, optimizer = fresh(model_spec, inner_spec)
        inner_round(model, optimizer, batches(data(), 1, 4), inner_spec.model_copy(update={"clip": clip}), first_step=0)
        tensors, _ = adam_state(model, optimizer)
        moments.append(torch.cat([m.flatten() for name, m in tensors.items() if name.startswith("adam.first/")]).norm())
    # After one step Adam's first moment is (1 - beta1) times the clipped gradient.
    assert moments[0] == pytest.approx(0.1 * 1e-3, rel=1e-2)
    assert moments[1] == pytest.approx(0.1 * 1e-6, rel=1e-2)


def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(
    model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    with torch.no_grad():
        model.embedding.weight[5, 0] = float("inf")
    before = weights(model)
    bad = data()[:4].clone()
    bad[:, 3] = 5
    report = inner_round(model, optimizer, [bad], inner_spec, first_step=0)
    assert report.skipped_steps == 1
    assert torch.equal(weights(model), before)
    assert adam_state(model, optimizer)[1] == 0


def test_a_restored_optimizer_goes_on_bit_for_bit(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    inner_round(model, optimizer, batches(data(), 4, 4), inner_spec, first_step=0)
    tensors, num_steps = adam_state(model, optimizer)
    assert num_steps == 4
    other, other_optimizer = fresh(model_spec, inner_spec)
    other.load_state_dict(model.state_dict())
    load_adam_state(other, other_optimizer, tensors, num_steps)
    for each, its in ((model, optimizer), (other, other_optimizer)):
        inner_round(each, its, batches(data(1), 4, 4), inner_spec, first_step=4)
    assert torch.equal(weights(model), weights(other))


def test_the_first_steps_moments_may_be_saved_before_it(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    other, other_optimizer = fresh(model_spec, inner_spec)
    load_adam_state(other, other_optimizer, *adam_state(model, optimizer))
    for each, its in ((model, optimizer), (other, other_optimizer)):
        inner_round(each, its, batches(data(), 4, 4), inner_spec, first_step=0)
    assert torch.equal(weights(model), weights(other))


def test_moments_of_another_model_are_refused(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, optimizer = fresh(model_spec, inner_spec)
    tensors, _ = adam_state(model, optimizer)
    tensors["adam.first/norm.weight"] = torch.zeros(5)
    with pytest.raises(CheckpointCorrupt):
        load_adam_state(model, optimizer, tensors, 0)
