import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.protocol.layout import Layout
from sparseloco.outer import OuterState, apply_probe, bound, bounds, outer_step, scales
from sparseloco.update import Norms
from tests.sparseloco import twin
from tests.sparseloco.samples import RAGGED, arrays, same_bits, tensors, update_of

SHAPES = {"cube": (3, 5, 7), "edge": (65, 70), "empty": (0, 5), "scalar": (), "vector": (300,)}


def norms(*values):
    return Norms(values, sum(value**2 for value in values) ** 0.5)


def decoded(update):
    return None if update is None else (update.records, {name: update.dense(name).numpy() for name in SHAPES})


@pytest.mark.parametrize("k", [64, 700])
def test_the_outer_step_equals_the_naive_loop_bit_for_bit(k):
    updates = [
        update_of("normal", 1, SHAPES, k),
        update_of("heavy-tailed", 2, SHAPES, k),
        None,
        update_of("tied", 3, SHAPES, k),
        update_of("sparse", 4, SHAPES, k),
        update_of("zero", 5, SHAPES, k),
    ]
    theta = arrays("normal", 9, SHAPES)
    theta["edge"][0, :5] = -0.0
    state = OuterState(4, (1e-3, 2e-3, 1e-3, 1e-3, 1e-4), 3e-3)
    given = tensors(theta)
    found, after, factors = outer_step(given, updates, state, alpha=0.65, aggregate="mean")
    named = [dict(zip(sorted(SHAPES), factor, strict=True)) for factor in factors]
    expected = twin.aggregate(theta, [decoded(update) for update in updates], named, 0.65, k)
    assert same_bits(found, expected)
    assert any(0 < factor < 1 for factor in factors[1])
    assert factors[2] == factors[5] == (0.0,) * 5
    assert after == bounds([update and update.norms for update in updates], state)[1]
    assert same_bits(given, theta)


def test_the_number_of_contributors_counts_payloads_that_do_not_parse():
    theta = tensors(arrays("zero", 0, SHAPES))
    update = update_of("constant", 0, SHAPES)
    state = OuterState.initial(update.layout)
    alone, _, _ = outer_step(theta, [update], state, alpha=1.0, aggregate="mean")
    beside, _, _ = outer_step(theta, [None, update], state, alpha=1.0, aggregate="mean")
    assert same_bits(beside, {name: value * 0.5 for name, value in alone.items()})


def test_a_round_without_a_payload_that_parses_changes_only_the_count():
    theta = tensors(arrays("normal", 0, SHAPES))
    state = OuterState(3, (0.5,) * 5, 2.0)
    found, after, factors = outer_step(theta, [None, None], state, alpha=1.0, aggregate="mean")
    assert same_bits(found, theta)
    assert after == OuterState(4, (0.5,) * 5, 2.0)
    assert factors == ((0.0,) * 5,) * 2


def test_the_first_round_is_bounded_by_the_lower_median():
    peers = [norms(3.0, 8.0), norms(1.0, 2.0), norms(2.0, 6.0), norms(4.0, 4.0)]
    limit, after = bound(peers, OuterState(0, (0.0, 0.0), 0.0))
    assert limit.tensors == (2.0, 4.0)
    assert limit.whole == sorted(peer.whole for peer in peers)[1]
    assert after == OuterState(1, limit.tensors, limit.whole)


def test_later_rounds_are_bounded_by_three_times_the_slow_average():
    limit, after = bound([Norms((10.0, 1.0), 10.0)], OuterState(5, (2.0, 2.0), 4.0))
    assert limit == Norms((6.0, 1.0), 10.0)
    assert after == OuterState(6, (0.9 * 2.0 + 0.1 * 6.0, 0.9 * 2.0 + 0.1 * 1.0), 0.9 * 4.0 + 0.1 * 10.0)


def test_a_tensor_that_nobody_moved_at_first_is_not_frozen_for_ever():
    _, after = bound([Norms((0.0,), 0.0)], OuterState(0, (0.0,), 0.0))
    limit, last = bound([Norms((5.0,), 5.0)], after)
    assert limit == Norms((5.0,), 5.0)
    assert last == OuterState(2, (5.0,), 5.0)


def test_scales_multiply_the_bound_of_the_tensor_and_of_the_whole():
    assert scales(Norms((4.0, 1.0, 0.0), 8.0), Norms((1.0, 2.0, 3.0), 4.0)) == (0.25 * 0.5, 0.5, 0.0)
    assert scales(Norms((0.0,), 0.0), Norms((1.0,), 1.0)) == (0.0,)
    assert scales(Norms((1.0,), 1.0), Norms((0.0,), 1.0)) == (0.0,)


SIZES = st.lists(st.floats(0.001, 1000.0) | st.just(0.0), min_size=3, max_size=3)
AVERAGES = st.lists(st.floats(0.001, 1000.0) | st.just(0.0), min_size=4, max_size=4)


@given(st.lists(SIZES, min_size=1, max_size=7), AVERAGES)
def test_no_tensor_and_no_whole_is_above_its_bound(peers, averages):
    state = OuterState(3, tuple(averages[:3]), averages[3])
    everyone = [norms(*sizes) for sizes in peers]
    limit, _ = bound(everyone, state)
    for sizes, factors in zip(peers, bounds(everyone, state)[0], strict=True):
        kept = [s * n for s, n in zip(factors, sizes, strict=True)]
        assert all(0 <= s <= 1 for s in factors)
        assert all(k <= b * (1 + 1e-12) for k, b in zip(kept, limit.tensors, strict=True))
        assert sum(k**2 for k in kept) ** 0.5 <= limit.whole * (1 + 1e-12)


@pytest.mark.parametrize("times", [1.5, 2.0, 10.0])
def test_inflating_an_update_beyond_its_bounds_makes_it_count_for_less(times):
    limit = norms(3.0, 4.0, 12.0)
    own = [times * size for size in limit.tensors]
    kept = [s * n for s, n in zip(scales(norms(*own), limit), own, strict=True)]
    assert kept == pytest.approx([size / times for size in limit.tensors])


def test_a_thousandfold_update_moves_theta_no_further_than_an_honest_one():
    layout = Layout.of(SHAPES, 64)
    honest = [update_of("normal", seed, SHAPES) for seed in range(3)]
    huge = update_of("tied", 7, SHAPES)
    assert huge.norms.whole > 50 * honest[0].norms.whole
    _, _, factors = outer_step(
        tensors(arrays("zero", 0, SHAPES)), [*honest, huge], OuterState.initial(layout), alpha=1.0, aggregate="mean"
    )
    largest = max(update.norms.whole for update in honest)
    bounded = sum((norm * s) ** 2 for norm, s in zip(huge.norms.tensors, factors[3], strict=True)) ** 0.5
    assert bounded <= largest * (1 + 1e-12)


def test_weights_too_small_for_normal_products_count_as_zero():
    update = update_of("constant", 0, SHAPES)
    theta = tensors(arrays("zero", 0, SHAPES))
    state = OuterState(1, (2.0**-100,) * 5, 100.0)
    found, _, factors = outer_step(theta, [update], state, alpha=1.0, aggregate="mean")
    assert 2.0**-110 < max(factors[0]) < 2.0**-96
    assert same_bits(found, theta)


def test_a_probe_takes_the_step_of_a_lone_contributor_and_leaves_theta_alone():
    theta = arrays("normal", 3)
    given = tensors(theta)
    update = update_of("heavy-tailed", 4)
    state = OuterState(2, (1e-2,) * len(RAGGED), 5e-2)
    stepped, _, factors = outer_step(given, [update], state, alpha=0.4, aggregate="mean")
    assert min(factor for factor in factors[0] if factor) < 1
    assert same_bits(apply_probe(given, update, factors[0], 0.4), stepped)
    assert same_bits(given, theta)


def test_theta_that_does_not_fit_the_layout_is_refused():
    update = update_of("normal", 0, SHAPES)
    theta = tensors(arrays("normal", 0, SHAPES))
    theta["vector"] = theta["vector"][:-1]
    with pytest.raises(ValueError, match="vector"):
        outer_step(theta, [update], OuterState.initial(update.layout), alpha=1.0, aggregate="mean")


def test_the_state_encodes_its_count_and_averages_little_endian():
    state = OuterState(258, (1.5, -2.0), 0.1)
    expected = (258).to_bytes(4, "little") + np.array([1.5, -2.0, 0.1], dtype="<f8").tobytes()
    assert state.encode() == expected
