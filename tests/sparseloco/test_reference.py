import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from murmur.protocol.layout import Layout
from murmur.protocol.types import Digest, PeerId
from sparseloco import ops
from sparseloco.digest import sync_proof, sync_values, theta_digest
from sparseloco.floats import NonFinite
from sparseloco.outer import OuterState
from sparseloco.wire import encode, parse
from tests.sparseloco import twin
from tests.sparseloco.samples import KINDS, RAGGED, arrays, same_bits, tensors, zeros

BETA = 0.95
GOLDEN = Path(__file__).parent.parent / "golden" / "sparseloco.json"
ALL_FINITE_SUMS = ("normal", "heavy-tailed", "tied", "sparse", "denormal", "around the smallest level", "signed zeros")


def inputs(kind, seed=0):
    """theta, theta_r, error. Kinds whose sums would overflow or lose their point stand in theta alone."""
    theta, nothing = arrays(kind, seed), {name: np.zeros(shape, np.float32) for name, shape in RAGGED.items()}
    if kind in ALL_FINITE_SUMS:
        return theta, arrays(kind, seed + 1), arrays(kind, seed + 2)
    return theta, nothing, nothing


def assert_equals_twin(kind, k):
    theta, theta_r, error = inputs(kind)
    layout = Layout.of(RAGGED, k)
    records, new_error, decoded = twin.compress(theta, theta_r, error, k, BETA)
    update, found_error = ops.compress(tensors(theta), tensors(theta_r), tensors(error), layout, BETA)
    assert update.records == records
    assert same_bits(found_error, new_error)
    parsed = parse(encode(Digest(bytes(32)), update), layout)
    assert parsed == update
    assert same_bits({name: parsed.dense(name) for name in RAGGED}, decoded)


@pytest.mark.parametrize("kind", KINDS)
def test_compress_equals_the_naive_twin_bit_for_bit_on(kind):
    assert_equals_twin(kind, 64)


@pytest.mark.parametrize("k", [1, 63, 94, 700])
@pytest.mark.parametrize("kind", ["normal", "tied"])
def test_compress_equals_the_naive_twin_for_any_k(kind, k):
    assert_equals_twin(kind, k)


def test_error_feedback_keeps_what_was_not_sent():
    theta, theta_r, error = inputs("normal")
    update, new_error = ops.compress(tensors(theta), tensors(theta_r), tensors(error), Layout.of(RAGGED, 64), BETA)
    for name in RAGGED:
        acc = error[name] * np.float32(BETA) + (theta[name] - theta_r[name])
        sent = update.dense(name).numpy()
        kept_back = new_error[name].numpy()
        assert np.array_equal(kept_back[sent == 0], acc[sent == 0])
        np.testing.assert_allclose(kept_back + sent, acc, rtol=2e-7, atol=0)
        # Between half and twice the sent value the subtraction is exact (Sterbenz), so the sum is acc to the bit.
        near = (abs(acc) <= 2 * abs(sent)) & (abs(acc) >= abs(sent) / 2) & (sent != 0)
        assert near.sum() >= (sent != 0).sum() // 2
        assert np.array_equal((kept_back + sent)[near], acc[near])


def test_no_error_is_a_zero_error():
    theta, theta_r, _ = inputs("signed zeros")
    layout = Layout.of(RAGGED, 64)
    without = ops.compress(tensors(theta), tensors(theta_r), None, layout, BETA)
    with_zeros = ops.compress(tensors(theta), tensors(theta_r), zeros(), layout, BETA)
    assert without[0] == with_zeros[0]
    assert same_bits(without[1], with_zeros[1])


def test_bf16_parameters_are_widened_exactly():
    theta, theta_r, error = (tensors(values) for values in inputs("normal"))
    layout = Layout.of(RAGGED, 64)
    half = {name: value.bfloat16() for name, value in theta_r.items()}
    found = ops.compress(theta, half, error, layout, BETA)
    wide = ops.compress(theta, {name: value.float() for name, value in half.items()}, error, layout, BETA)
    assert found[0] == wide[0]
    assert same_bits(found[1], wide[1])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_input_that_is_not_finite_is_refused(place, bad):
    given = [tensors(values) for values in inputs("normal")]
    given[place]["corner"][130, 66] = bad
    with pytest.raises(NonFinite):
        ops.compress(*given, Layout.of(RAGGED, 64), BETA)


def test_a_difference_that_overflows_is_refused():
    theta, theta_r = {"t": torch.full((5,), 3e38)}, {"t": torch.full((5,), -3e38)}
    with pytest.raises(NonFinite):
        ops.compress(theta, theta_r, None, Layout.of({"t": (5,)}, 64), BETA)


def test_inputs_are_not_changed_and_the_order_of_the_dicts_does_not_matter():
    given = [tensors(values) for values in inputs("normal")]
    before = [{name: value.clone() for name, value in values.items()} for values in given]
    layout = Layout.of(RAGGED, 64)
    update, error = ops.compress(*given, layout, BETA)
    assert all(same_bits(left, right) for left, right in zip(given, before, strict=True))
    backwards = [dict(reversed(values.items())) for values in given]
    again, error_again = ops.compress(*backwards, Layout.of(dict(reversed(RAGGED.items())), 64), BETA)
    assert again == update
    assert same_bits(error, error_again)


def test_tensors_that_are_not_contiguous_give_the_same_bytes():
    shapes = {"t": (100, 130)}
    layout = Layout.of(shapes, 64)
    given = [tensors(arrays("normal", seed, shapes)) for seed in range(3)]
    strided = [{"t": values["t"].t().contiguous().t()} for values in given]
    assert not strided[0]["t"].is_contiguous()
    expected, found = ops.compress(*given, layout, BETA), ops.compress(*strided, layout, BETA)
    assert found[0] == expected[0]
    assert same_bits(found[1], expected[1])


def test_one_and_two_threads_give_the_same_bits():
    shapes = {"matrix": (640, 500), "vector": (100_000,)}
    layout = Layout.of(shapes, 64)
    given = [tensors(arrays("heavy-tailed", seed, shapes)) for seed in range(3)]
    results = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            update, error = ops.compress(*given, layout, BETA)
            state = OuterState.initial(layout)
            theta, _, _ = ops.outer_step(given[0], [update, update], state, alpha=1.0, aggregate="mean")
            results.append((update, error, theta))
    finally:
        torch.set_num_threads(before)
    assert results[0][0] == results[1][0]
    assert same_bits(results[0][1], results[1][1])
    assert same_bits(results[0][2], results[1][2])


def counted(num, seed):
    """Values that depend on integer arithmetic alone, so that no library's random stream can change them."""
    words, state = [], seed
    for _ in range(num):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        words.append(((state >> 33) % 2001 - 1000) / 2 ** (10 + (state >> 50) % 8))
    return torch.tensor(words, dtype=torch.float32)


def test_payload_and_digests_equal_the_golden_file():
    shapes = {"a.weight": (70, 67), "b.norm": (130,), "c.cube": (3, 5, 7)}
    layout = Layout.of(shapes, 64)
    theta, theta_r, error = (
        {name: counted(int(np.prod(shape)), seed).reshape(shape) for name, shape in shapes.items()}
        for seed in (1, 2, 3)
    )
    state = OuterState.initial(layout)
    digest = theta_digest(theta, layout, state)
    update, new_error = ops.compress(theta, theta_r, error, layout, BETA)
    other, _ = ops.compress(theta, theta_r, new_error, layout, BETA)
    found = {
        "plaintext": encode(digest, update).hex(),
        "theta": digest.hex(),
        "sync_proof": sync_proof(
            sync_values(theta, layout, Digest(bytes(range(32)))), PeerId(bytes(range(32, 64)))
        ).hex(),
    }
    stepped, after, _ = ops.outer_step(theta, [update, None, other], state, alpha=0.7, aggregate="mean")
    found["theta_after_mean"] = theta_digest(stepped, layout, after).hex()
    if os.environ.get("WRITE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(GOLDEN.read_text()) == found
