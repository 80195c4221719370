"""The plan's arithmetic against counts that others published, against torch's own, and against a watched step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from murmur import presets
from protocol.spec import ModelSpec
from tests.training.allocations import Watched
from training import model as model_module
from training.model import Transformer
from training.optimizer import state_shapes
from training.plan import (
    COVENANT,
    Plan,
    Recompute,
    flops_per_token,
    kept_layer_bytes,
    layer_parameters,
    memory_parts,
    memory_total,
    milestones,
    step_moments,
    transfer_seconds,
    untied_parameters,
    utilization,
)
from training.schedule import lr_at

COUNTS = {
    "tiny": (115_072, 131_520),
    "150m": (182_215_680, 214_983_680),
    "1b": (1_235_814_400, 1_498_482_688),
    "8b": (8_030_261_248, 8_030_261_248),
    "intellect-10b": (10_211_381_248, 10_211_381_248),
    "covenant-72b": (70_599_843_840, 72_747_327_488),
}


def planned(name: str, gpus: int = 8, memory: float = 180e9, flops: float = 530e12) -> Plan:
    return Plan(presets.read(name).first, gpus, int(memory), flops, 110.0, 500.0)


@contextmanager
def built_without_memory(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[None]:
    """Models made inside have their parameters on `device`, where skip_init would put them on the CPU."""

    def made(module: type[torch.nn.Module], *sizes: int, **options: Any) -> torch.nn.Module:
        return module(*sizes, device=device, **options)

    monkeypatch.setattr(model_module, "skip_init", made)
    with torch.device(device):
        yield


# --- sizes ---------------------------------------------------------------------------------------------------


def test_every_preset_has_its_count() -> None:
    assert set(COUNTS) == set(presets.names())


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_exact_and_those_of_the_model_that_is_trained(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = presets.read(name).first
    with built_without_memory(monkeypatch, "meta"):
        model = Transformer(spec.model)
    assert {key: tuple(value.shape) for key, value in model.named_parameters()} == spec.model.shapes()
    tied, untied = COUNTS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == planned(name).parameters == tied
    assert untied_parameters(spec.model) == untied
    assert layer_parameters(spec.model) == sum(parameter.numel() for parameter in model.layers[-1].parameters())


def test_covenants_tied_count_with_the_reports_vocabulary_would_need_another_ffn() -> None:
    """The report says tied and 262,208 rows; the published count is then not a Llama-3-70B feed-forward's."""
    model = presets.read("covenant-72b").first.model
    for ffn, expected in ((28_672, False), (29_764, True)):
        said = model.model_copy(update={"vocabulary": 262_208, "ffn": ffn})
        count = sum(torch.Size(shape).numel() for shape in said.shapes().values())
        assert (abs(count - COUNTS["covenant-72b"][1]) < 10**7) is expected


def test_a_full_chunk_is_82_bytes_and_covenant_has_nothing_else() -> None:
    assert planned("covenant-72b").payload_bytes == 70_599_843_840 // 4096 * 82 + 32 + 204
    assert planned("covenant-72b").parameters % 4096 == 0


@pytest.mark.parametrize("tied", [True, False])
def test_flops_of_matrix_products_are_what_torch_counts(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec(vocabulary=300, layers=3, width=48, heads=4, kv_heads=2, ffn=80, context=32, tie_embeddings=tied)
    model = Transformer(spec)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    with FlopCounterMode(display=False) as counter:
        model.loss(torch.zeros(2, 33, dtype=torch.int64)).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in counted.items() if "attention" not in str(op))
    attention = 6 * spec.layers * spec.width * (spec.context + 1)
    assert products == 2 * 32 * (flops_per_token(spec) - attention)


def test_published_throughput_follows_from_the_flops() -> None:
    """INTELLECT-1 reports 36.2 to 41.4 % of an H100's peak, and 38 minutes a round on eight of them."""
    assert 0.362 < planned("intellect-10b").flops / (38 * 60 * 8 * 989e12) < 0.414


def test_covenants_round_takes_the_published_20_minutes() -> None:
    assert planned("covenant-72b").compute_seconds == pytest.approx(20 * 60, rel=0.005)


# --- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "communication", "published"),
    [
        (20 * 60, 70, 94.5),  # Covenant-72B
        (4.5 * 60, 12, 95.7),  # SparseLoCo, 8B
        (38 * 60, 103, 95.7),  # INTELLECT-1, within the USA
        (38 * 60, 382, 85.6),  # with Europe
        (38 * 60, 469, 82.9),  # the whole world; published as 83
    ],
)
def test_utilization_gives_the_published_rows(compute: float, communication: float, published: float) -> None:
    assert 100 * utilization(compute, communication) == pytest.approx(published, abs=0.05)


def test_covenants_published_bytes_need_minutes_at_the_speeds_it_claims() -> None:
    up = transfer_seconds(COVENANT.payload_bytes, COVENANT.up_mbps)
    down = transfer_seconds(20 * COVENANT.payload_bytes, COVENANT.down_mbps)
    assert COVENANT.payload_bytes == pytest.approx(1.99e9, rel=1e-3)
    assert (round(up), round(down)) == (145, 637)
    assert utilization(1200, 70) > 0.94 > 0.61 > utilization(1200, up + down)


def test_transfers_are_the_bytes_of_one_payload_up_and_of_every_contributor_down() -> None:
    plan = planned("8b")
    assert plan.upload_seconds == pytest.approx(plan.spec.object_bytes * 8 / 110e6)
    assert plan.download_seconds == pytest.approx(20 * plan.spec.object_bytes * 8 / 500e6)
    assert plan.utilization == utilization(plan.compute_seconds, plan.upload_seconds + plan.download_seconds)


# --- memory --------------------------------------------------------------------------------------------------


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
    with FakeTensorMode(), built_without_memory(monkeypatch, "cpu"):
        model = Transformer(spec)
        if mesh is not None:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
            for layer in model.layers:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            register_fsdp_forward_method(model, "loss")
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
    moments = {name: sum(parts.values()) for name, parts in step_moments(spec, gpus, sequences, recompute).items()}
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
    for name in COUNTS:
        model = presets.read(name).first.model
        none, selective, full = (kept_layer_bytes(model, mode) for mode in ("none", "selective", "full"))
        assert 1.5 * full < selective < 0.8 * none


def test_shards_hold_every_value_once_and_the_phases_swap_error_feedback_and_moments() -> None:
    plan = planned("covenant-72b")
    parts, values = plan.memory(), 70_599_843_840
    computing = {name: 8 * part.gpu_computing for name, part in parts.items() if part.gpu_computing}
    assert {name: computing[name] / values for name in ("parameters", "gradients", "adam_moments")} == {
        "parameters": 4.0,
        "gradients": 4.0,
        "adam_moments": 8.0,
    }
    assert 8 * parts["error_feedback"].gpu_communicating == parts["error_feedback"].host_computing == 4 * values
    assert parts["adam_moments"].host_communicating == 8 * values
    assert parts["adam_moments"].gpu_communicating == parts["error_feedback"].gpu_computing == 0
    assert parts["payloads"].host_communicating == 21 * plan.payload_bytes


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_optimizers_state_is_what_is_saved_of_it(optimizer: str) -> None:
    spec = presets.read("1b").first
    spec = spec.model_copy(update={"inner": spec.inner.model_copy(update={"optimizer": optimizer})})
    num_bytes = sum(4 * torch.Size(shape).numel() for shape in state_shapes(spec.model, spec.inner).values())
    part = memory_parts(spec, 4, 1)["adam_moments"]
    assert part.host_communicating == num_bytes
    assert part.gpu_computing == num_bytes / 4


def test_the_total_is_at_least_every_part_and_at_most_their_sum() -> None:
    for name in COUNTS:
        plan = planned(name)
        parts, total = plan.memory().values(), plan.memory_total
        for column in ("gpu_computing", "gpu_communicating", "host_computing", "host_communicating"):
            values = [getattr(part, column) for part in parts]
            assert max(values) <= getattr(total, column) <= sum(values)


def test_eight_b200_hold_covenant_and_the_fewest_gpus_are_the_fewest() -> None:
    assert planned("covenant-72b").micro_sequences >= 1
    assert planned("covenant-72b", memory=80e9).micro_sequences == 0
    for name, memory in (("covenant-72b", 80e9), ("covenant-72b", 180e9), ("8b", 48e9)):
        needed = planned(name, memory=memory).gpus_needed
        assert needed is not None
        assert planned(name, needed, memory).micro_sequences > 0
        assert planned(name, needed - 1, memory).micro_sequences == 0
    assert planned("covenant-72b", memory=24e9).gpus_needed is None


def test_the_largest_micro_batch_is_the_largest() -> None:
    plan = planned("1b", 1, 40e9)
    most, usable = plan.micro_sequences, 0.95 * 40e9
    assert 1 <= most < plan.sequences_per_gpu == 192
    fits = [memory_total(plan.spec, 1, count).gpu_computing <= usable for count in (1, most, most + 1)]
    assert fits == [True, True, False]


# --- schedule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTS)
def test_milestones_are_in_order_and_between_them_the_rates_turn_nowhere(name: str) -> None:
    """Signs of the rate's slope change at milestones only."""
    run = presets.read(name)
    found = milestones(run)
    steps = [at.inner_step for at in found]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    length = run.first.inner.steps
    for at, after in zip(found, [*steps[1:], steps[-1] + 1000], strict=True):
        inside = sorted({at.inner_step, *range(at.inner_step, after, max(1, (after - at.inner_step) // 50))})
        specs = [run.spec_at(step // length) for step in inside]
        rates = [lr_at(step, spec.inner) for step, spec in zip(inside, specs, strict=True)]
        assert (at.lr, at.alpha) == (rates[0], specs[0].outer.alpha)
        assert {spec.outer.alpha for spec in specs} == {at.alpha}
        assert rates == sorted(rates) or rates == sorted(rates, reverse=True)
