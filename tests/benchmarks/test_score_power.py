"""The two ways of bounding that the benchmark compares, and its pairs."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score_power import ahead, once, product
from sparseloco.outer import OuterState
from sparseloco.update import Norms

TENSORS = 3
SIZES = st.lists(st.floats(0.01, 100.0), min_size=TENSORS, max_size=TENSORS)


def norms(sizes):
    return Norms(tuple(sizes), sqrt(sum(size**2 for size in sizes)))


@given(st.lists(SIZES, min_size=1, max_size=7))
def test_bounding_once_keeps_both_bounds(peers):
    fresh = OuterState(0, (0.0,) * TENSORS, 0.0)
    found = once([norms(sizes) for sizes in peers], fresh)
    limits = [sorted(sizes[t] for sizes in peers)[(len(peers) - 1) // 2] for t in range(TENSORS)]
    cut = [sqrt(sum(min(n, b) ** 2 for n, b in zip(sizes, limits, strict=True))) for sizes in peers]
    whole = sorted(cut)[(len(cut) - 1) // 2]
    for sizes, factors in zip(peers, found, strict=True):
        kept = [s * n for s, n in zip(factors, sizes, strict=True)]
        assert all(k <= b * (1 + 1e-9) for k, b in zip(kept, limits, strict=True))
        assert sqrt(sum(k**2 for k in kept)) <= whole * (1 + 1e-9)


def test_twice_the_norm_enters_with_a_half_when_bounded_once_and_a_quarter_by_the_product():
    peers = [norms([3.0, 4.0, 1.0])] * 3 + [norms([6.0, 8.0, 2.0])]
    fresh = OuterState(0, (0.0,) * TENSORS, 0.0)
    assert once(peers, fresh)[-1] == pytest.approx((0.5,) * TENSORS)
    assert product(peers, fresh)[-1] == pytest.approx((0.25,) * TENSORS)


def test_ahead_is_the_share_of_pairs():
    assert ahead(np.array([1.0, 3.0]), np.array([0.0, 2.0])) == 0.75
