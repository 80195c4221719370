"""The micro-batch: doubled until memory ends, whole on a CPU, and a clear answer when nothing fits."""

import pytest
import torch

from murmur.plan import presets
from murmur.plan.requirements import Plan
from murmur.protocol.errors import ConfigError
from murmur.protocol.spec import RunSpec
from murmur.training import batch_trial
from murmur.training.batch_trial import Fit, fit, fit_cpu, fit_planned, fit_tried
from murmur.training.memory import RESERVE, memory_total
from murmur.training.model import Transformer
from murmur.training.optimizer import make_optimizer
from murmur.training.parallel import ALONE, Ranks
from murmur.training.sizes import Recompute

ORDER: list[Recompute] = ["none", "selective", "full"]


class Memory:
    """A device on which a sequence takes so many bytes in each mode; remembers what was tried."""

    def __init__(self, num_bytes: int, sequence_bytes: dict[Recompute, int]) -> None:
        self.num_bytes, self.sequence_bytes = num_bytes, sequence_bytes
        self.tried: list[tuple[int, Recompute]] = []

    def __call__(self, size: int, recompute: Recompute) -> bool:
        self.tried.append((size, recompute))
        return size * self.sequence_bytes[recompute] <= self.num_bytes


@pytest.mark.parametrize("room", range(13))
@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 12])
def test_it_doubles_until_memory_ends(room: int, most: int) -> None:
    memory = Memory(room, {"none": 1, "selective": 1, "full": 1})
    found = fit_tried(memory, most)
    # A share that is no power of two is tried whole when the power below it runs.
    expected = max((size for size in (1, 2, 4, 8, most) if size <= min(room, most)), default=0)
    assert found == (Fit(expected, "none") if room else None)
    first = [size for size, recompute in memory.tried if recompute == "none"]
    assert first == sorted(set(first))
    assert max(first) <= min(most, 2 * max(room, 1))


@pytest.mark.parametrize(("room", "expected"), [(9, None), (10, "full"), (20, "selective"), (60, "none")])
def test_layers_compute_again_only_when_nothing_fits_without(room: int, expected: Recompute | None) -> None:
    found = fit_tried(Memory(room, {"none": 60, "selective": 20, "full": 10}), 64)
    assert found == (None if expected is None else Fit(1, expected))


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_planned_micro_batch_fits_and_one_more_would_not(gpus: int) -> None:
    spec = presets.read("8b" if gpus == 8 else "1b").first
    seen = set()
    for gpu_bytes in range(20 * 10**9, 200 * 10**9, 10 * 10**9):
        found = fit_planned(spec, gpus, gpu_bytes, 24)
        room = (1 - RESERVE) * gpu_bytes

        def fits(size: int, recompute: Recompute, room: float = room) -> bool:
            return memory_total(spec, gpus, size, recompute).gpu_computing <= room

        if found is None:
            assert not fits(1, "full")
            continue
        seen.add(found.recompute)
        assert fits(found.micro_sequences, found.recompute)
        assert found.micro_sequences == 24 or not fits(found.micro_sequences + 1, found.recompute)
        assert not any(fits(1, mode) for mode in ORDER[: ORDER.index(found.recompute)])
    assert "none" in seen


def test_on_a_cpu_a_batch_stays_whole_where_memory_allows() -> None:
    tiny = presets.read("tiny").first
    assert fit_cpu(tiny, 8) == Fit(8, "none")
    large = presets.read("150m").first
    found = fit_cpu(large, 256)
    assert 1 <= found.micro_sequences < 256
    assert found.recompute == "none"
    assert fit_cpu(presets.read("covenant-72b").first, 192) == Fit(1, "none")


def test_each_rank_takes_its_share(run_spec: RunSpec) -> None:
    model = Transformer(run_spec.model)
    optimizer = make_optimizer(model, run_spec.inner)
    assert fit(model, optimizer, run_spec, ALONE) == Fit(run_spec.inner.sequences, "none")
    assert fit(model, optimizer, run_spec, Ranks(1, 3)) == Fit(2, "none")


def refused(spec: RunSpec, gpus: int, gpu_bytes: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the operator reads when every step on a GPU of this size runs out of memory."""
    properties = type("Properties", (), {"total_memory": gpu_bytes})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(batch_trial, "step_on_gpu", lambda *given: lambda size, recompute: False)
    monkeypatch.setattr(Ranks, "sum", lambda self, values: torch.full_like(values, gpu_bytes))
    with torch.device("meta"):
        model = Transformer(spec.model.model_copy(update={"layers": 1, "vocabulary": 8}))
    with pytest.raises(ConfigError) as fault:
        fit(model, make_optimizer(model, spec.inner), spec, Ranks(0, gpus, "cuda"))
    return str(fault.value)


def test_a_model_that_does_not_fit_is_answered_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = presets.read("1b").first
    plan = Plan(spec, 1, 12 * 10**9)
    said = refused(spec, 1, 12 * 10**9, monkeypatch)
    assert f"parameters {plan.memory()['parameters'].gpu_computing / 1e9:.1f}" in said
    assert f"adam moments {plan.memory()['adam_moments'].gpu_computing / 1e9:.1f}" in said
    assert f"{plan.memory_total.gpu_computing / 1e9:.1f} in all" in said
    assert f"--nproc_per_node {plan.gpus_needed}" in said


def test_the_advice_knows_when_no_number_of_gpus_helps_and_when_it_should_have_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "more memory: no number" in refused(presets.read("covenant-72b").first, 8, 24 * 10**9, monkeypatch)
    assert "stop what else uses the GPU" in refused(presets.read("1b").first, 1, 80 * 10**9, monkeypatch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_trial_on_a_gpu_finds_a_size_and_leaves_no_gradients(run_spec: RunSpec) -> None:
    ranks = Ranks(device="cuda")
    model = Transformer(run_spec.model).to(ranks.device)
    optimizer = make_optimizer(model, run_spec.inner)
    assert fit(model, optimizer, run_spec, ranks) == Fit(run_spec.inner.sequences, "none")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_running_out_of_memory_is_a_no_that_leaves_nothing_behind(
    run_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of a GPU, on the CPU, with a model that runs out of memory from three sequences on."""
    model = Transformer(run_spec.model)
    whole = model.loss

    def loss(sequences: torch.Tensor, recompute: Recompute) -> torch.Tensor:
        if len(sequences) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(sequences, recompute)

    monkeypatch.setattr(model, "loss", loss)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    optimizer = make_optimizer(model, run_spec.inner)
    try_step = batch_trial.step_on_gpu(model, optimizer, run_spec, torch.device("cpu"), 10**6)
    assert [try_step(size, "none") for size in (1, 2, 3)] == [True, True, False]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert fit_tried(try_step, 4) == Fit(2, "none")
