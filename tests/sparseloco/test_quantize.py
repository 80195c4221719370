import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparseloco import quantize
from tests.sparseloco import twin

MAX_BITS = 0x7F80_0000


def test_every_level_is_a_normal_number_and_encodes_to_its_own_code():
    codes = torch.arange(256)
    levels = quantize.level_values(codes)
    assert [float(value) for value in levels] == [float(twin.level(code)) for code in range(256)]
    assert (levels[0], levels[1], levels[255]) == (0.0, 1.125 * 2.0**-29, 7.5)
    assert quantize.level_codes(levels).tolist() == list(range(256))
    assert bool((levels[1:] > levels[:-1]).all())


def test_a_level_rounds_to_the_nearest_code_and_halves_go_up():
    levels = quantize.level_values(torch.arange(256)).double()
    middles = ((levels[1:-1] + levels[2:]) / 2).float()
    below = torch.nextafter(middles, torch.tensor(0.0))
    assert quantize.level_codes(middles).tolist() == list(range(2, 256))
    assert quantize.level_codes(below).tolist() == list(range(1, 255))


@given(st.lists(st.integers(0, MAX_BITS), min_size=1, max_size=200))
def test_any_magnitude_encodes_as_in_the_twin_up_to_infinity(patterns):
    levels = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    assert quantize.level_codes(levels).tolist() == [twin.level_code(float(value)) for value in levels]


@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 63, 64, 94])
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 1e-7, 0.1, 1.0, 10.0, 60.0]))
def test_the_fit_equals_the_twin_value_by_value(k, seed, spread):
    rng = np.random.default_rng(seed)
    scale = 2.0 ** rng.uniform(-40, 4)
    rows = np.exp(rng.normal(size=(3, k)) * spread).clip(1e-30, 1e30) * scale * rng.choice([-1, 1], (3, k))
    rows = rows.astype(np.float32)
    codes = quantize.fit(torch.from_numpy(rows))
    for i, row in enumerate(rows):
        lo, hi, pairs = twin.quantise(list(row))
        assert (int(codes.lo[i]), int(codes.hi[i])) == (lo, hi)
        assert list(zip(codes.signs[i].tolist(), codes.magnitudes[i].tolist(), strict=True)) == pairs


@pytest.mark.parametrize("k", [257, 3583, 4096])
def test_codes_of_values_around_a_boundary_never_cross(k):
    # Here means are off by several ulps, so that the level lo may lie above the level hi.
    rng = np.random.default_rng(k)
    for code in (96, 101, 107):
        boundary = ((784 + code) << 20) + 2**19
        shares, depths = rng.choice([0.002, 0.1, 0.5, 0.9, 0.99], (60, 1)), rng.integers(-6, 40, (2, 60, 1))
        patterns = boundary - np.where(rng.random((60, k)) < shares, depths[0], depths[1])
        codes = quantize.fit(torch.from_numpy(patterns.astype(np.int32)).view(torch.float32))
        assert bool((codes.lo <= codes.hi).all())
        assert {*codes.lo.tolist(), *codes.hi.tolist()} == {code, code + 1}


@pytest.mark.parametrize("k", [1, 15, 16, 17, 64, 94, 4096])
def test_a_mean_is_summed_over_lanes_and_tree_to_the_last_bit(k):
    rng = np.random.default_rng(k)
    rows = np.exp(rng.normal(size=(8, k))).astype(np.float32)
    sides = rng.random((8, k)) < 0.6
    kept_level = torch.full((8,), 123.0)
    found = quantize.lane_mean(torch.from_numpy(rows), torch.from_numpy(sides), kept_level)
    expected = [
        twin.lane_sum(row, side) / np.float32(side.sum()) if side.any() else np.float32(123)
        for row, side in zip(rows, sides, strict=True)
    ]
    assert found.tolist() == [float(value) for value in expected]


def test_two_magnitudes_survive_exactly_when_both_are_levels():
    values = torch.tensor([[0.5, -2.0, 2.0, -0.5, 0.5]])
    assert torch.equal(quantize.fit(values).values(), values)


def test_sums_that_overflow_saturate_and_make_no_nan():
    codes = quantize.fit(torch.full((1, 64), -3.4e38))
    assert codes.values().tolist() == [[-7.5] * 64]
