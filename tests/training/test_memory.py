"""Memory and disk of a node: against a watched step, counts by hand, and processes that were measured."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.testing._internal.distributed.fake_pg import FakeStore

from murmur.plan import presets
from murmur.protocol.spec import ModelSpec, RunSpec
from murmur.training import muon
from murmur.training.memory import (
    COMPUTING,
    PROCESS_BYTES,
    Role,
    cpu_activations,
    disk_parts,
    host_moments,
    kept_layer_bytes,
    memory_total,
    micro_moments,
    trainer_parts,
)
from murmur.training.model import Transformer
from murmur.training.optimizer import make_optimizer, state_shapes
from murmur.training.parallel import ALONE, Ranks
from murmur.training.sizes import Recompute, Sizes
from tests.training.allocations import Watched
from tests.training.node_memory import spec_of

# --- GPUs --------------------------------------------------------------------------------------------------------


class FusedNorm(torch.autograd.Function):
    """What torch's norm on a GPU keeps and makes; the one on a CPU has twice as many tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, gain: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, gain, x[..., :1].clone())
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor, None]:
        x, gain, _ = ctx.saved_tensors
        return torch.empty_like(x), None, torch.empty_like(gain), None


def sharded(spec: ModelSpec, mesh: DeviceMesh) -> Transformer:
    """As Ranks.shard makes it on GPUs, on ranks without one."""
    model = Transformer(spec)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(model, "loss")
    return model


def watched_step(
    spec: ModelSpec,
    sequences: int,
    monkeypatch: pytest.MonkeyPatch,
    mesh: DeviceMesh | None = None,
    recompute: Recompute = "full",
) -> int:
    """Most bytes that exist at once in a second micro-batch, beyond parameters and the first one's gradients. Tensors
    are fake: they have shapes and no values.

    One GPU: bf16 autocast. A mesh: layers and the rest sharded by FSDP2 over so many fake ranks, of which this is one.
    """
    monkeypatch.setattr(torch.nn.functional, "rms_norm", FusedNorm.apply)
    with FakeTensorMode(), torch.device("cpu"):
        model = Transformer(spec) if mesh is None else sharded(spec, mesh)
        tokens = torch.zeros(sequences, spec.context + 1, dtype=torch.int64)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=mesh is None):
                loss = model.loss(tokens, recompute).sum()
            loss.backward()

        with Watched() as watched:
            step()
            gradients = watched.peak = watched.now()
            step()
        return watched.peak - gradients


SMALL = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 2, "ffn": 1536, "context": 512}


def fullest_moment(spec: ModelSpec, gpus: int, sequences: int, recompute: Recompute = "full") -> tuple[str, int]:
    moments = {name: sum(parts.values()) for name, parts in micro_moments(spec, gpus, sequences, recompute).items()}
    return max(moments.items(), key=lambda moment: moment[1])


@pytest.mark.parametrize(
    ("fields", "sequences", "fullest"),
    [
        ({"vocabulary": 2048, "layers": 8}, 1, "logits"),
        ({"vocabulary": 128_256, "layers": 2}, 2, "gradient of the logits"),
        ({"vocabulary": 32_000}, 5, "gradient of the logits"),
        ({"vocabulary": 16_384, "tie_embeddings": False, "layers": 1, "context": 32}, 1, "gradient of the head"),
        ({"vocabulary": 512}, 2, "gradient of a layer"),
        ({"vocabulary": 512, "kv_heads": 8, "tie_embeddings": False}, 8, "gradient of a layer"),
        ({"vocabulary": 262_144, "layers": 1, "context": 32}, 1, "gradient of the embedding"),
    ],
)
def test_a_step_on_one_gpu_takes_what_the_plan_says(
    fields: dict[str, Any], sequences: int, fullest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec.model_validate(SMALL | fields)
    moment, num_bytes = fullest_moment(spec, 1, sequences)
    assert moment == fullest
    assert num_bytes == pytest.approx(watched_step(spec, sequences, monkeypatch), rel=0.1)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Eight ranks, seven of which do not exist: collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (8,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("fields", "sequences", "fullest"),
    [
        ({"vocabulary": 32_000}, 5, "gradient of the logits"),
        ({"vocabulary": 512}, 8, "gradient of a layer"),
        ({"vocabulary": 2048, "layers": 5}, 1, "gradient of a layer"),
        ({"vocabulary": 200_000, "layers": 1, "context": 32}, 1, "gradient of the embedding"),
        ({"vocabulary": 200_000, "layers": 1, "context": 32, "tie_embeddings": False}, 1, "reduction"),
    ],
)
def test_a_sharded_step_takes_what_the_plan_says(
    fields: dict[str, Any], sequences: int, fullest: str, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec.model_validate(SMALL | fields)
    moment, num_bytes = fullest_moment(spec, 8, sequences)
    assert moment == fullest
    assert num_bytes == pytest.approx(watched_step(spec, sequences, monkeypatch, mesh), rel=0.1)


def with_optimizer(preset: str, optimizer: str, **model: object) -> RunSpec:
    table = presets.read(preset).first.model_dump()
    table["inner"] |= {"optimizer": optimizer, "state": "kept"}
    table["gauntlet"]["trace_values"] = 0
    table["model"] |= model
    return RunSpec.model_validate(table)


@pytest.mark.parametrize(("layers", "optimizer"), [(1, "adamw"), (3, "adamw"), (2, "muon")])
def test_a_step_of_the_72b_model_takes_what_the_plan_says_on_one_rank_of_eight(
    layers: int, optimizer: str, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its layers, in their full width: forward, backward, clip and the optimizer's first two steps."""
    spec = with_optimizer("covenant-72b", optimizer, layers=layers)
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.bfloat16)  # as on a GPU
    monkeypatch.setattr(torch.nn.functional, "rms_norm", FusedNorm.apply)
    with FakeTensorMode(), torch.device("cpu"):
        model = sharded(spec.model, mesh)
        its = make_optimizer(model, spec.inner, Ranks(0, 8))
        tokens = torch.zeros(2, spec.model.context + 1, dtype=torch.int64)
        with Watched() as watched:
            model.loss(tokens, "full").sum().backward()
            gradients = watched.now()
            model.loss(tokens, "full").sum().backward()
            micro_batch = watched.peak - gradients
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.inner.clip)
            its.step()
            state, watched.peak = watched.now() - gradients, watched.now()
            its.step()
    parts = trainer_parts(Sizes(spec), 8, 2)
    assert gradients == parts["gradients"].gpu_computing
    assert state == pytest.approx(parts["adam_moments"].gpu_computing, rel=0.01)
    assert micro_batch == pytest.approx(fullest_moment(spec.model, 8, 2)[1], rel=0.1)
    stepped = parts["orthogonalised"].gpu_computing
    assert watched.peak - gradients - state == pytest.approx(stepped, rel=0.1)
    assert bool(stepped) == (optimizer == "muon")


@pytest.mark.parametrize("model", [{}, {"width": 512, "heads": 8, "kv_heads": 8, "ffn": 512, "vocabulary": 300}])
@pytest.mark.parametrize("ranks", [1, 8])
def test_muon_orthogonalises_in_what_the_plan_says(
    model: dict[str, object], ranks: int, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one matrix that is much larger than the others, and with many that are alike."""
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.bfloat16)  # as on a GPU
    spec = with_optimizer("1b", "muon", layers=2, **model)
    with FakeTensorMode(), torch.device("cpu"):
        module = Transformer(spec.model) if ranks == 1 else sharded(spec.model, mesh)
        its = make_optimizer(module, spec.inner, ALONE if ranks == 1 else Ranks(0, 8))
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        its.step()
        with Watched() as watched:
            its.step()
    planned = trainer_parts(Sizes(spec), ranks, 1)["orthogonalised"].gpu_computing
    assert watched.peak == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize(
    ("fields", "gpus", "sequences"),
    [
        ({"vocabulary": 2048, "layers": 8}, 1, 1),
        ({"vocabulary": 512, "kv_heads": 8}, 1, 8),
        ({"vocabulary": 32_000}, 8, 5),
        ({"vocabulary": 512}, 8, 8),
    ],
)
def test_a_step_that_keeps_more_of_its_layers_takes_what_the_plan_says(
    fields: dict[str, Any],
    gpus: int,
    sequences: int,
    recompute: Recompute,
    mesh: DeviceMesh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ModelSpec.model_validate(SMALL | fields)
    _, num_bytes = fullest_moment(spec, gpus, sequences, recompute)
    watched = watched_step(spec, sequences, monkeypatch, mesh if gpus > 1 else None, recompute)
    assert num_bytes == pytest.approx(watched, rel=0.1)


def test_the_more_is_computed_again_the_less_is_kept() -> None:
    for name in presets.names():
        model = presets.read(name).first.model
        none, selective, full = (kept_layer_bytes(model, mode) for mode in ("none", "selective", "full"))
        assert 1.5 * full < selective < 0.8 * none


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_optimizers_state_is_what_is_saved_of_it(optimizer: str) -> None:
    spec = with_optimizer("1b", optimizer)
    num_bytes = sum(4 * torch.Size(shape).numel() for shape in state_shapes(spec.model, spec.inner).values())
    assert Sizes(spec).optimizer == num_bytes
    assert trainer_parts(Sizes(spec), 4, 1)["adam_moments"].gpu_computing == num_bytes / 4


def test_the_total_is_at_least_every_part_and_at_most_their_sum() -> None:
    for name in presets.names():
        spec = presets.read(name).first
        parts, total = trainer_parts(Sizes(spec), 8, 1).values(), memory_total(spec, 8, 1)
        for column in ("gpu_computing", "gpu_communicating", "host_computing", "host_communicating"):
            values = [getattr(part, column) for part in parts]
            assert max(values) <= getattr(total, column) <= sum(values)


def test_shards_hold_every_value_once_and_moments_stay_on_the_gpus() -> None:
    spec, values = presets.read("covenant-72b").first, 70_599_843_840
    parts = trainer_parts(Sizes(spec), 8, 1)
    computing = {name: 8 * part.gpu_computing / values for name, part in parts.items() if part.gpu_computing}
    communicating = {name: 8 * part.gpu_communicating / values for name, part in parts.items()}
    assert [computing[name] for name in ("parameters", "gradients", "adam_moments")] == [4.0, 4.0, 8.0]
    assert [communicating[name] for name in ("parameters", "gradients", "adam_moments")] == [4.0, 0.0, 8.0]
    assert parts["theta"].host_computing == parts["error_feedback"].host_computing == 4 * values
    assert parts["stored_moments"].host_communicating == 8 * values


# --- host --------------------------------------------------------------------------------------------------------


def test_at_72b_a_miner_holds_five_models_and_hardly_more_at_its_fullest() -> None:
    spec = presets.read("covenant-72b").first
    held = {moment: sum(parts.values()) for moment, parts in host_moments(spec, "miner", ranks=8).items()}
    model = Sizes(spec).model
    assert held[COMPUTING] == 5 * model + 8 * PROCESS_BYTES
    assert max(held, key=lambda moment: held[moment]) == "outer step"
    assert held["outer step"] - Sizes(spec).contributors * Sizes(spec).payload == held[COMPUTING]


@pytest.mark.parametrize("role", ["miner", pytest.param("validator", marks=pytest.mark.slow)])
def test_the_host_takes_at_each_moment_what_a_process_was_measured_to_take(role: Role) -> None:
    """Within 5 %, of 21 M parameters on a CPU. Tensors that are gone are given back at once (the threshold): what an
    allocator keeps is not counted. Activations are counted with room to spare."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.node_memory", role]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    measured, spec = json.loads(done.stdout), spec_of(role)
    activations = cpu_activations(spec.model, spec.inner.sequences)
    planned = {
        moment: sum(parts.values()) - PROCESS_BYTES
        for moment, parts in host_moments(spec, role, cpu_activations=activations).items()
    }
    if COMPUTING in planned:
        assert measured[COMPUTING] <= planned.pop(COMPUTING) <= measured[COMPUTING] + activations
    # Mapped files: the system's, but a process is measured with them.
    planned["restart"] += Sizes(spec).own if role == "miner" else Sizes(spec).model
    assert {moment: measured[moment] for moment in planned} == pytest.approx(planned, rel=0.05)


# --- disk --------------------------------------------------------------------------------------------------------


def test_a_disk_holds_the_old_state_until_the_new_one_is_whole() -> None:
    spec = presets.read("8b").first
    model, payload = 4 * spec.layout.num_parameters, spec.object_bytes
    log = (8 + 4) * 20 * payload  # since the snapshot, and for others some rounds longer
    assert sum(disk_parts(spec, "miner").values()) == (2 + 2) * model + log + (2 + 20) * payload
    assert sum(disk_parts(spec, "validator").values()) == 3 * model + log + (24 + 3 * 24) * payload
