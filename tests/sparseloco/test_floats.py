import pytest
import torch

from murmur.protocol.errors import ConfigError
from murmur.protocol.layout import Layout
from sparseloco import ops
from sparseloco.floats import fp32, require_denormals, tensor_of
from sparseloco.outer import OuterState


def test_a_process_that_flushes_denormals_is_refused():
    require_denormals()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(ConfigError, match="flushes denormal"):
            require_denormals()
    finally:
        torch.set_flush_denormal(False)
    require_denormals()


def test_a_process_that_flushes_denormals_neither_compresses_nor_steps():
    layout = Layout.of({"t": (5,)}, 64)
    theta = {"t": torch.ones(5)}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(ConfigError):
            ops.compress(theta, theta, None, layout, 0.95)
        with pytest.raises(ConfigError):
            ops.outer_step(theta, [None], OuterState.initial(layout), alpha=1.0, aggregate="mean")
    finally:
        torch.set_flush_denormal(False)


def test_a_constant_is_rounded_to_fp32_once():
    assert fp32(0.95).item() == 0.949999988079071


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "missing"),
        ({"t": torch.zeros(3, 2)}, "needs torch.float32"),
        ({"t": torch.zeros(2, 3, dtype=torch.float64)}, "is torch.float64"),
    ],
)
def test_a_tensor_that_does_not_fit_the_layout_is_named(tensors, message):
    tensor = Layout.of({"t": (2, 3)}, 64).tensors[0]
    with pytest.raises(ValueError, match=message):
        tensor_of(tensors, tensor, torch.float32)
