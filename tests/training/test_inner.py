"""The inner loop: deterministic, equal to a plain loop, and it learns."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training.inner import inner_round
from murmur.training.loader import batches
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import make_optimizer
from murmur.training.parallel import whole
from murmur.training.schedule import lr_at
from murmur.training.sizes import Recompute
from tests.training.moments import adam_state


def fresh(model_spec: ModelSpec, inner_spec: InnerSpec) -> tuple[Transformer, torch.optim.Optimizer]:
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


def test_a_round_that_is_stopped_ends_after_that_step_as_a_shorter_one_does(
    model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    shorter, optimizer = fresh(model_spec, inner_spec)
    two = inner_round(shorter, optimizer, batches(data(), 2, 4), inner_spec, first_step=0)
    stopped, optimizer = fresh(model_spec, inner_spec)
    done: list[int] = []
    found = inner_round(
        stopped,
        optimizer,
        batches(data(), 4, 4),
        inner_spec,
        first_step=0,
        on_step=lambda step, loss: done.append(step),
        stopped=lambda: len(done) == 2,
    )
    assert found == two
    assert len(found.losses) == 2
    assert torch.equal(weights(stopped), weights(shorter))


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


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_layers_compute_again_changes_no_bit(
    recompute: Recompute, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    results = []
    for each in ("none", recompute):
        model, optimizer = fresh(model_spec, inner_spec)
        report = inner_round(
            model, optimizer, batches(data(), 4, 4), inner_spec, first_step=0, micro_sequences=3, recompute=each
        )
        results.append((report, weights(model)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("tied", [True, False])
def test_mixed_precision_is_the_same_with_and_without_fsdp(
    tied: bool, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    """Autocast, as on one GPU, and FSDP2's policy, as on several: the same loss, gradients up to bf16's rounding of
    sums."""
    found = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for sharded in (False, True):
            model, _ = fresh(model_spec.model_copy(update={"tie_embeddings": tied}), inner_spec)
            if sharded:
                policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
                for module in (*model.layers, model):
                    fully_shard(module, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
                register_fsdp_forward_method(model, "loss")
            parameters = dict(model.named_parameters())
            with torch.autocast("cpu", torch.bfloat16, enabled=not sharded):
                loss = model.loss(data()[:4])
            torch.autograd.backward(loss.sum())
            found.append((loss.detach(), {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}))
    finally:
        dist.destroy_process_group()
    (loss, grads), (other, others) = found
    assert torch.equal(loss, other)
    assert grads.keys() == others.keys() == model_spec.model_copy(update={"tie_embeddings": tied}).shapes().keys()
    for name, grad in grads.items():
        assert grad.dtype == others[name].dtype == torch.float32
        assert (others[name] - grad).norm() < 0.01 * grad.norm(), name


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
        tensors, _ = adam_state(dict(model.named_parameters()), optimizer)
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
    assert adam_state(dict(model.named_parameters()), optimizer)[1] == 0
