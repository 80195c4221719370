"""The filtered mean: inner products against dense vectors, and who keeps its weight."""

import numpy as np
import pytest

from murmur.protocol.layout import Layout
from sparseloco import kernels, native, ops
from sparseloco.outer import OuterState, bounds, outer_step
from sparseloco.spectral import UNITS, exact_products, gram, trust
from sparseloco.update import LEVELS
from tests.sparseloco.samples import KINDS, RAGGED, arrays, same_bits, tensors, update_of, zeros

SIZE = 4000


def dense(update, factor):
    pairs = zip(update.layout, factor, strict=True)
    return np.concatenate([update.dense(tensor.name).numpy().astype(np.float64).ravel() * s for tensor, s in pairs])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inner_products_are_those_of_the_dense_updates(kind):
    updates = [update_of(kind, 1), update_of("normal", 2), update_of(kind, 3)]
    factors = [tuple(np.random.default_rng(place).uniform(size=len(RAGGED))) for place in range(3)]
    vectors = np.array([dense(update, factor) for update, factor in zip(updates, factors, strict=True)])
    lengths = np.linalg.norm(vectors, axis=1)
    found = gram(updates, factors)
    assert np.all(np.abs(found - vectors @ vectors.T) <= 2e-4 * np.outer(lengths, lengths))
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize("k", [1, 64, 700])
@pytest.mark.parametrize("threads", [1, 2])
def test_native_inner_products_are_the_references(k, threads):
    try:
        isas = kernels.supported()
    except kernels.Unavailable as fault:
        pytest.skip(str(fault))
    shapes = {**RAGGED, "grid": (192, 256)}
    kinds = ("normal", "normal", "tied", "sparse", "zero", "constant", "heavy-tailed")
    updates = [update_of(kind, place, shapes, k) for place, kind in enumerate(kinds)]
    numbers = np.random.default_rng(k).integers(0, UNITS, (len(updates), len(shapes), LEVELS), np.int32, endpoint=True)
    expected = exact_products(updates, numbers)
    assert np.count_nonzero(expected)
    for isa in isas:
        assert np.array_equal(native.Codec(isa, threads).products(updates, numbers), expected)


def honest(rng, count, common=0.5):
    """Unit vectors that share a direction and are noise else, as pseudo-gradients of different pages are."""
    signal = rng.normal(size=SIZE)
    signal *= common / np.linalg.norm(signal)
    noise = rng.normal(size=(count, SIZE))
    return signal, signal + noise * np.sqrt(1 - common**2) / np.linalg.norm(noise, axis=1, keepdims=True)


def flipped(rng, signal, count):
    return np.repeat(-signal[None] / np.linalg.norm(signal), count, axis=0)


def constant(rng, signal, count):
    one = rng.normal(size=SIZE)
    return np.repeat(one[None] / np.linalg.norm(one), count, axis=0)


def perturbed(rng, signal, count):
    """Against the others and each with noise of its own, so that no two are copies."""
    noise = rng.normal(size=(count, SIZE)) / np.sqrt(SIZE)
    vectors = flipped(rng, signal, count) + noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("attack", [flipped, constant, perturbed])
@pytest.mark.parametrize("count", [7, 13, 20, 40])
def test_less_than_a_third_that_push_together_lose_their_weight(attack, count):
    rng = np.random.default_rng(count)
    colluding = (count - 1) // 3
    signal, vectors = honest(rng, count - colluding)
    everyone = np.concatenate([vectors, attack(rng, signal, colluding)])
    order = rng.permutation(count)
    weights = np.array(trust(everyone[order] @ everyone[order].T))[np.argsort(order)]
    assert weights.sum() == pytest.approx(count)
    assert np.all(weights[: count - colluding] > 0.8)
    clean = vectors.mean(axis=0)
    kept, plain = weights @ everyone / count, everyone.mean(axis=0)
    assert np.linalg.norm(kept - clean) < 0.25 * np.linalg.norm(plain - clean)


@pytest.mark.parametrize("count", [4, 7, 20, 60])
@pytest.mark.parametrize("common", [0.0, 0.5, 0.8])
def test_honest_peers_all_count_fully(count, common):
    for seed in range(10):
        _, vectors = honest(np.random.default_rng(seed), count, common)
        assert trust(vectors @ vectors.T) == (1.0,) * count


@pytest.mark.parametrize("count", [7, 20, 64])
def test_honest_noise_that_is_not_alike_in_all_directions_costs_little(count):
    """A few directions carry much of everybody's noise, as in real pseudo-gradients of a round."""
    rng = np.random.default_rng(count)
    signal = rng.normal(size=SIZE) * 0.4 / SIZE**0.5
    amplitudes = (1.0 + 4.0 * (np.arange(SIZE) < 12)) / SIZE**0.5
    vectors = signal + rng.normal(size=(count, SIZE)) * amplitudes
    assert trust(vectors @ vectors.T) == (1.0,) * count


@pytest.mark.parametrize("count", [4, 6])
def test_so_few_that_a_minority_is_one_peer_are_never_filtered(count):
    vectors = np.eye(count)
    vectors[-1] = -vectors[0]
    assert trust(vectors @ vectors.T) == (1.0,) * count


def test_nobody_counts_for_more_than_half_as_much_again():
    rng = np.random.default_rng(3)
    for _ in range(200):
        vectors = rng.normal(size=(9, 5)) * rng.choice([0.01, 1.0, 30.0], size=(9, 1))
        weights = trust(vectors @ vectors.T)
        assert 0.0 <= min(weights) <= max(weights) <= 1.5
        assert sum(weights) <= 9 * (1 + 1e-12)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_nothing_to_tell_apart_leaves_all_weights_at_one(count):
    assert trust(np.zeros((count, count))) == (1.0,) * count
    assert trust(np.ones((count, count))) == (1.0,) * count


def test_without_collusion_the_step_is_the_mean_bit_for_bit():
    updates = [*(update_of("normal", seed) for seed in range(6)), None]
    theta = tensors(arrays("normal", 9))
    state = OuterState.initial(Layout.of(RAGGED, 64))
    for step in (outer_step, ops.outer_step):
        filtered, _, _ = step(theta, updates, state, alpha=0.7, aggregate="filtered_mean")
        mean, _, _ = step(theta, updates, state, alpha=0.7, aggregate="mean")
        assert same_bits(filtered, mean)


def test_colluders_move_theta_little_on_either_backend():
    updates = [update_of("normal", seed) for seed in range(7)]
    colluding = [update_of("normal", 50)] * 3
    everyone = [*updates, *colluding]
    state = OuterState.initial(Layout.of(RAGGED, 64))
    factors, _ = bounds([update.norms for update in everyone], state)
    weights = trust(gram(everyone, factors))
    assert max(weights[7:]) < 0.05
    assert min(weights[:7]) > 0.9
    found = [
        step(zeros(), everyone, state, alpha=1.0, aggregate="filtered_mean")[0] for step in (outer_step, ops.outer_step)
    ]
    assert same_bits(*found)
    plain, _, _ = outer_step(zeros(), everyone, state, alpha=1.0, aggregate="mean")
    along = colluding[0].dense("full")
    assert abs(float((found[0]["full"] * along).sum())) < 0.2 * abs(float((plain["full"] * along).sum()))
