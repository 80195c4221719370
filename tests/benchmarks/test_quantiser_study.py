import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from murmur.protocol.layout import CHUNK, record_bytes
from murmur.training.replica import Replica, genesis_theta
from sparseloco import outer, reference
from sparseloco.quantize import level_codes, level_values
from tests.specs import toy_spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    """The script, which runs with its own folder in the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import quantiser_study

        yield quantiser_study
    finally:
        sys.path.remove(str(BENCHMARKS))


def heavy_tailed(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1e-3 * torch.randn(shape, generator=generator) ** 3


def test_with_the_present_quantiser_a_round_is_the_codecs(study: ModuleType) -> None:
    spec = toy_spec({"compression.k": 40})
    replica = Replica(spec, genesis_theta(spec.model, 0))
    layout, names = replica.layout, list(replica.theta)
    updates, sent = [], []
    for peer in range(3):
        theta_r = {name: replica.theta[name] - heavy_tailed(replica.theta[name].shape, peer) for name in names}
        error = {name: heavy_tailed(replica.theta[name].shape, 10 + peer) for name in names}
        update, new_error = reference.compress(replica.theta, theta_r, error, layout, 0.95)
        acc = {name: study.accumulate(replica.theta[name] - theta_r[name], error[name], 0.95) for name in names}
        dense, other_error = study.compress(acc, layout, study.CANDIDATES[study.PRESENT].quantise)
        for name in names:
            assert torch.equal(dense[name], update.dense(name))
            assert torch.equal(other_error[name], new_error[name])
        updates.append(update)
        sent.append(dense)
    saved = study.outer_step(replica, sent)
    theta, state, _ = outer.outer_step(replica.theta, updates, replica.outer, alpha=1.0, aggregate="mean")
    for name in names:
        assert torch.allclose(saved.tensors[name], theta[name], rtol=1e-6, atol=0)
    replica.load_consensus(saved)
    assert replica.outer.rounds == state.rounds
    assert replica.outer.averages == pytest.approx(state.averages, rel=1e-12)


@pytest.mark.parametrize("rounding", ["exact", "E5M3"])
def test_no_split_is_better_than_the_best_split(study: ModuleType, rounding: str) -> None:
    rounded = getattr(study, rounding)
    magnitudes = torch.cat([heavy_tailed((6, 20), 3), torch.full((1, 20), 2e-3), torch.zeros(1, 20)]).abs().double()

    def error(row: Tensor, lo: Tensor, hi: Tensor) -> float:
        return float(torch.minimum((row - lo) ** 2, (row - hi) ** 2).sum())

    found = zip(magnitudes, *study.best_split(magnitudes, rounded), strict=True)
    for row, lo, hi in found:
        ordered = row.sort().values
        splits = [rounded(ordered[:at].mean(), ordered[at:].mean()) for at in range(1, len(row))]
        assert error(row, lo, hi) <= min(error(row, *pair) for pair in splits) * (1 + 1e-9) + 1e-30


def test_three_mantissa_bits_are_the_codecs_levels(study: ModuleType) -> None:
    levels = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * torch.exp2(torch.arange(1000) % 28 - 26.0)
    codecs = level_values(level_codes(levels)).double()
    rounded, _ = study.E5M3(levels.double(), levels.double())
    inside = (codecs > 0) & (codecs < 7.5) & (levels > study.SMALLEST)
    assert inside.sum() > 900
    assert torch.equal(rounded[inside], codecs[inside])


def test_a_ratio_gives_two_ordered_levels_that_fp32_holds(study: ModuleType) -> None:
    lo, hi = heavy_tailed((2, 1000), 5).abs().double().sort(dim=0).values
    lo, hi = study.ratio(lo, hi, bits=5, ratio_bits=6)
    assert (lo <= hi).all()
    assert torch.equal(lo.float().double(), lo)


def test_bytes_are_counted_as_the_format_counts_them(study: ModuleType) -> None:
    for name, k in ((study.PRESENT, 64), ("two E5M3, k = 94", 94)):
        assert study.CANDIDATES[name].num_bytes == record_bytes(CHUNK, k)
    assert study.CANDIDATES["one level E5M3, k = 74"].num_bytes == record_bytes(CHUNK, 64)
