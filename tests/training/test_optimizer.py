"""The inner optimizers: what each takes, that they equal plain ones, and that their state is exact."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from murmur.data.shards import Shards
from murmur.protocol.errors import CheckpointCorrupt
from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.protocol.types import Page
from murmur.training.inner import inner_round
from murmur.training.loader import batches, sequences
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import load_adam_state, make_optimizer, set_constants, state_shapes
from murmur.training.parallel import ALONE, Ranks, whole
from tests.training.moments import adam_state

BOTH = pytest.mark.parametrize("optimizer", ["adamw", "muon"])


def fresh(model_spec: ModelSpec, inner_spec: InnerSpec, seed: int = 3) -> tuple[Transformer, torch.optim.Optimizer]:
    model = Transformer(model_spec)
    initialise(model, seed)
    return model, make_optimizer(model, inner_spec)


def named(model: Transformer) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, 257, (16, 33), generator=torch.Generator().manual_seed(seed))


def weights(model: Transformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def with_optimizer(inner_spec: InnerSpec, optimizer: str, **changes: object) -> InnerSpec:
    return InnerSpec.model_validate(inner_spec.model_dump() | {"optimizer": optimizer} | changes)


@BOTH
def test_a_restored_optimizer_goes_on_bit_for_bit(optimizer: str, model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    model, its = fresh(model_spec, spec)
    inner_round(model, its, batches(tokens(), 4, 4), spec, first_step=0)
    tensors, num_steps = adam_state(named(model), its)
    assert num_steps == 4
    other, others = fresh(model_spec, spec, seed=5)
    other.load_state_dict(model.state_dict())
    load_adam_state(named(other), others, tensors, num_steps)
    for each, mine in ((model, its), (other, others)):
        inner_round(each, mine, batches(tokens(1), 4, 4), spec, first_step=4)
    assert torch.equal(weights(model), weights(other))


@BOTH
def test_the_first_steps_state_may_be_saved_before_it(
    optimizer: str, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    model, its = fresh(model_spec, spec)
    other, others = fresh(model_spec, spec)
    load_adam_state(named(other), others, *adam_state(named(model), its))
    for each, mine in ((model, its), (other, others)):
        inner_round(each, mine, batches(tokens(), 4, 4), spec, first_step=0)
    assert torch.equal(weights(model), weights(other))


@BOTH
def test_state_has_the_promised_names_and_shapes_before_and_after_a_step(
    optimizer: str, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    model, its = fresh(model_spec, spec)
    for turn in range(2):
        tensors, num_steps = adam_state(named(model), its)
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == state_shapes(model_spec, spec)
        assert num_steps == turn
        assert any(tensor.any() for tensor in tensors.values()) == bool(turn)
        inner_round(model, its, batches(tokens(), 1, 4), spec, first_step=0)


def test_saved_state_is_a_copy(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model, its = fresh(model_spec, inner_spec)
    inner_round(model, its, batches(tokens(), 1, 4), inner_spec, first_step=0)
    tensors, _ = adam_state(named(model), its)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    inner_round(model, its, batches(tokens(1), 1, 4), inner_spec, first_step=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("change", ["missing", "shape"])
@BOTH
def test_state_of_another_model_is_refused(
    optimizer: str, change: str, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    model, its = fresh(model_spec, spec)
    tensors, _ = adam_state(named(model), its)
    name = sorted(tensors)[-1]
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(5)
    with pytest.raises(CheckpointCorrupt, match=name):
        load_adam_state(named(model), its, tensors, 0)


@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_every_matrix_and_adamw_the_gains(tied: bool, model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    spec, model_spec = with_optimizer(inner_spec, "muon"), model_spec.model_copy(update={"tie_embeddings": tied})
    momenta = {
        name.removeprefix("muon.momentum/") for name in state_shapes(model_spec, spec) if name.startswith("muon")
    }
    model, its = fresh(model_spec, spec)
    gains = {name for name in named(model) if "norm" in name}
    assert momenta == named(model).keys() - gains
    assert {"embedding.weight", "layers.1.ffn.down.weight"} <= momenta
    assert ("head.weight" in momenta) == (not tied)
    counts = [len(group["params"]) for group in its.param_groups]
    assert counts == [len(momenta), len(gains)]


def test_one_step_of_muon_moves_along_the_nearest_orthogonal_matrix_as_far_as_adamw_would(
    model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    """Against the singular value decomposition that its iteration stands for: U V^T, up to the iteration's known slack
    in the singular values, scaled to a root mean square of 0.2 learning rates."""
    lr = 1e-2
    spec = with_optimizer(inner_spec, "muon", weight_decay=0.0, peak_lr=lr, final_lr=lr, warmup_steps=0)
    model, its = fresh(model_spec, spec)
    name = "layers.1.ffn.gate.weight"
    before = named(model)[name].detach().clone()
    plain, _ = fresh(model_spec, spec)
    torch.autograd.backward(plain.loss(tokens()[:4]).mean())
    gradient = named(plain)[name].grad
    assert gradient is not None
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    inner_round(model, its, [tokens()[:4]], spec, first_step=0)
    moved = before - named(model)[name].detach()
    assert torch.nn.functional.cosine_similarity(moved.flatten(), (u @ v).flatten(), dim=0) > 0.97
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.2 * lr, rel=0.3)


def test_two_runs_of_muon_agree_bit_for_bit(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    spec = with_optimizer(inner_spec, "muon")
    results = []
    for _ in range(2):
        model, its = fresh(model_spec, spec)
        inner_round(model, its, batches(tokens(), 4, 4), spec, first_step=0)
        results.append(weights(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_at_a_rate_of_its_own_muon_learns_text_faster(
    seed: int, model_spec: ModelSpec, inner_spec: InnerSpec, data: Shards
) -> None:
    text = sequences(data.train, [Page(0, 32 * 800)], 32)
    losses = {}
    for optimizer, lr in (("adamw", 3e-3), ("adamw", 1.2e-2), ("muon", 1.2e-2)):
        spec = with_optimizer(inner_spec, optimizer, steps=100, sequences=8, decay_steps=200, peak_lr=lr)
        model, its = fresh(model_spec, spec, seed)
        report = inner_round(model, its, batches(text, 100, 8), spec, first_step=0)
        losses[optimizer, lr] = sum(report.losses[-10:]) / 10
    # Seen: 2.85 to 2.86 against 3.22 to 3.23, from 5.55.
    assert losses["muon", 1.2e-2] < min(losses["adamw", 3e-3], losses["adamw", 1.2e-2]) - 0.05


@BOTH
def test_an_amendment_of_the_constants_reaches_every_group(
    optimizer: str, model_spec: ModelSpec, inner_spec: InnerSpec
) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    _, its = fresh(model_spec, spec)
    changed = with_optimizer(spec, optimizer, beta1=0.5, beta2=0.6, epsilon=1e-3, weight_decay=0.7)
    set_constants(its, changed, 0.125)
    for group in its.param_groups:
        assert (group["lr"], group["weight_decay"]) == (0.125, 0.7)
    assert [(group["betas"], group["eps"]) for group in its.param_groups if "betas" in group] == [((0.5, 0.6), 1e-3)]


def trained_in_parts(model: Transformer, inner_spec: InnerSpec, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Weights after four steps, the optimizer made anew from its saved state after the first two."""
    parameters = named(model)
    its = make_optimizer(model, inner_spec, ranks)
    inner_round(model, its, batches(tokens(), 2, 4), inner_spec, first_step=0, ranks=ranks)
    saved = adam_state(parameters, its)
    its = make_optimizer(model, inner_spec, ranks)
    load_adam_state(parameters, its, *saved)
    inner_round(model, its, batches(tokens(1), 2, 4), inner_spec, first_step=2, ranks=ranks, recompute="selective")
    return {name: whole(parameter).detach().clone() for name, parameter in parameters.items()}


def initialised(model_spec: ModelSpec) -> Transformer:
    model = Transformer(model_spec)
    initialise(model, 3)
    return model


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """One rank, but a distributed one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@BOTH
def test_parameters_that_fsdp_holds_take_the_same_steps(
    optimizer: str, model_spec: ModelSpec, inner_spec: InnerSpec, mesh: DeviceMesh
) -> None:
    spec = with_optimizer(inner_spec, optimizer)
    model = initialised(model_spec)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(model, "loss")
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    found = trained_in_parts(model, spec)
    for name, weight in trained_in_parts(initialised(model_spec), spec).items():
        torch.testing.assert_close(found[name], weight, atol=1e-6, rtol=1e-6)


def train_sharded(index: int, size: int, folder: Path, specs: list[tuple[ModelSpec, InnerSpec]]) -> None:
    """One rank: train and leave the whole weights in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=index, world_size=size, store=dist.FileStore(str(folder / "store"), size))
    ranks = Ranks(index, size)
    for model_spec, inner_spec in specs:
        model = initialised(model_spec)
        ranks.shard(model, model.layers, methods=["loss"])
        found = trained_in_parts(model, inner_spec, ranks)
        if index == 0:
            torch.save(found, folder / f"{inner_spec.optimizer}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_sharded_over_two_ranks_both_optimizers_take_the_same_steps(
    model_spec: ModelSpec, inner_spec: InnerSpec, tmp_path: Path
) -> None:
    odd = model_spec.model_copy(update={"ffn": 65})  # shards of unequal size
    specs = [with_optimizer(inner_spec, optimizer) for optimizer in ("adamw", "muon")]
    torch.multiprocessing.spawn(train_sharded, (2, tmp_path, [(odd, spec) for spec in specs]), nprocs=2)
    start = named(initialised(odd))
    # Muon's iteration runs in bf16: sums in another order show there.
    for spec, tolerance in zip(specs, (0.002, 0.1), strict=True):
        found = torch.load(tmp_path / f"{spec.optimizer}.pt")
        for name, weight in trained_in_parts(initialised(odd), spec).items():
            moved = (weight - start[name].detach()).norm()
            assert (found[name] - weight).norm() < tolerance * moved, name
