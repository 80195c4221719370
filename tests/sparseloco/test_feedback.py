import numpy as np
import pytest
import torch

from murmur.protocol.layout import Layout
from sparseloco import ops
from sparseloco.feedback import accumulate, restore
from sparseloco.reference import compress
from tests.sparseloco.samples import RAGGED, arrays, same_bits, tensors, zeros


def test_decay_and_sum_are_rounded_one_by_one():
    # beta * e has a rounding error that a fused multiply-add would keep.
    error, delta = torch.tensor([1.0 + 2.0**-23]), torch.tensor([-0.95])
    product = np.float32(np.float32(0.95) * np.float32(1.0 + 2.0**-23))
    expected = np.float32(product + np.float32(-0.95))
    assert accumulate(delta, error, 0.95).item() == float(expected)
    assert float(expected) != float(np.float32(0.95)) * (1.0 + 2.0**-23) + float(np.float32(-0.95))


def test_a_void_round_gives_back_what_was_sent():
    layout = Layout.of(RAGGED, 64)
    theta = tensors(arrays("normal", 0))
    update, error = compress(theta, zeros(), None, layout, 0.95)
    restored = restore(error, update)
    expected = {name: error[name] + update.dense(name) for name in RAGGED}
    assert same_bits(restored, expected)
    for name in RAGGED:
        torch.testing.assert_close(restored[name], theta[name], rtol=2e-7, atol=0)


@pytest.mark.parametrize("codec", ["reference", "native"])
def test_it_is_given_back_where_the_error_lies_as_into_new_tensors(codec: ops.Choice) -> None:
    layout = Layout.of(RAGGED, 64)
    update, error = compress(tensors(arrays("normal", 0)), zeros(), None, layout, 0.95)
    expected = restore(error, update)
    before = ops.backend()
    ops.use(codec)
    try:
        ops.restore_to_error_feedback(error, update)
    finally:
        ops.use("auto")
    assert ops.backend() == before
    for name in RAGGED:
        torch.testing.assert_close(error[name], expected[name], rtol=0, atol=0)


@pytest.mark.parametrize("codec", ["reference", "native"])
def test_an_error_of_before_loses_what_was_sent_and_keeps_the_rest(codec: ops.Choice) -> None:
    layout = Layout.of(RAGGED, 64)
    error = tensors(arrays("normal", 1))
    update, _ = compress(tensors(arrays("normal", 0)), zeros(), error, layout, 0.95)
    before = {name: value.clone() for name, value in error.items()}
    ops.use(codec)
    try:
        ops.remove_from_error_feedback(error, update)
    finally:
        ops.use("auto")
    for name in RAGGED:
        sent = update.dense(name) != 0
        assert sent.any() or not sent.numel()
        assert (error[name][sent] == 0).all()
        assert torch.equal(error[name][~sent], before[name][~sent])
