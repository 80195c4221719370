"""Readings of speed: their intervals, their arithmetic, and the table of devices."""

from itertools import pairwise

import pytest
import torch

from murmur.protocol.spec import InnerSpec, ModelSpec
from murmur.training import meter as meter_module
from murmur.training.inner import inner_round
from murmur.training.loader import batches
from murmur.training.meter import Meter, Reading, memory_bytes, peak_flops, peak_flops_of
from murmur.training.model import Transformer, initialise
from murmur.training.optimizer import make_optimizer
from murmur.training.sizes import flops_per_token

CPU = torch.device("cpu")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def metered(
    model_spec: ModelSpec,
    inner_spec: InnerSpec,
    steps: int,
    step_seconds: float,
    interval_seconds: float,
    gpus: int = 1,
) -> list[Reading]:
    """Readings of a round whose step n has loss n."""
    clock, readings = Clock(), list[Reading]()
    meter = Meter(
        model_spec,
        inner_spec.model_copy(update={"steps": steps}),
        readings.append,
        device=CPU,
        gpus=gpus,
        interval_seconds=interval_seconds,
        clock=clock,
    )
    for step in range(steps):
        clock.now += step_seconds
        meter(step, float(step))
    return readings


def test_a_reading_comes_every_interval_and_at_the_end(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    readings = metered(model_spec, inner_spec, steps=8, step_seconds=4.0, interval_seconds=10.0)
    assert [reading.step for reading in readings] == [2, 5, 7]
    assert [reading.loss for reading in readings] == [1.0, 4.0, 6.5]
    assert [reading.tokens_per_second for reading in readings] == pytest.approx([4 * 32 / 4.0] * 3)


def test_every_step_is_read_once_whatever_the_interval(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    for interval_seconds in (0.0, 1.0, 3.0, 1e9):
        readings = metered(model_spec, inner_spec, steps=7, step_seconds=1.0, interval_seconds=interval_seconds)
        ends = [-1, *(reading.step for reading in readings)]
        counts = [after - before for before, after in pairwise(ends)]
        assert ends[-1] == 6
        assert sum(count * reading.loss for count, reading in zip(counts, readings, strict=True)) == sum(range(7))


def test_mfu_is_needed_flops_over_the_peak_of_all_gpus(
    model_spec: ModelSpec, inner_spec: InnerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter_module, "peak_flops", lambda device: 1e6)
    (reading,) = metered(model_spec, inner_spec, steps=5, step_seconds=2.0, interval_seconds=1e9, gpus=4)
    assert reading.mfu == pytest.approx(4 * 32 / 2.0 * flops_per_token(model_spec) / 4e6)


def test_a_cpu_has_no_mfu_and_its_line_no_word_of_it(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    assert peak_flops(CPU) is None
    (reading,) = metered(model_spec, inner_spec, steps=1, step_seconds=1.0, interval_seconds=1.0)
    assert reading.mfu is None
    assert "MFU" not in str(reading)


def test_the_line_has_units() -> None:
    line = str(Reading(29, 3.14159, 123456.7, 0.4567, 61_300_000_000))
    assert line == "step 29: loss 3.1416, 123,457 tokens/s, MFU 45.7%, 61.30 GB"


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_devices_are_known_by_the_names_that_cuda_gives(name: str, teraflops: int | None) -> None:
    found = peak_flops_of(name)
    assert found == (None if teraflops is None else teraflops * 1e12)


def test_memory_is_at_least_what_was_just_allocated() -> None:
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert memory_bytes(CPU) > block.numel()


def test_it_reads_a_real_round(model_spec: ModelSpec, inner_spec: InnerSpec) -> None:
    model = Transformer(model_spec)
    initialise(model, 0)
    readings: list[Reading] = []
    report = inner_round(
        model,
        make_optimizer(model, inner_spec),
        batches(torch.zeros(16, 33, dtype=torch.int64), 4, 4),
        inner_spec,
        first_step=0,
        on_step=Meter(model_spec, inner_spec, readings.append, device=CPU),
    )
    (reading,) = readings
    assert reading.loss == pytest.approx(report.mean_loss)
    assert reading.tokens_per_second > 0
