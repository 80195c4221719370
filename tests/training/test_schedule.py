"""Learning rate at known points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.spec import InnerSpec
from training.schedule import lr_at

SPEC = InnerSpec(steps=30, sequences=192, peak_lr=1.2e-4, final_lr=1.2e-5, warmup_steps=1500, decay_steps=80_000)


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (0, 1.2e-4 / 1500),
        (749, 0.6e-4),
        (1499, 1.2e-4),
        (1500, 1.2e-4),
        ((1500 + 80_000) // 2, (1.2e-4 + 1.2e-5) / 2),
        (80_000, 1.2e-5),
        (10**9, 1.2e-5),
    ],
)
def test_the_rate_at_known_steps(step: int, lr: float) -> None:
    assert lr_at(step, SPEC) == pytest.approx(lr, rel=1e-12)


@given(st.integers(0, 100_000))
def test_the_rate_rises_through_warm_up_and_never_again(step: int) -> None:
    here, after = lr_at(step, SPEC), lr_at(step + 1, SPEC)
    assert (after > here) if step + 1 < 1500 else (after <= here)
    assert 0 < here <= 1.2e-4


def test_without_warm_up_or_decay_the_rate_is_defined_everywhere() -> None:
    spec = SPEC.model_copy(update={"warmup_steps": 0, "decay_steps": 1})
    assert lr_at(0, spec) == pytest.approx(1.2e-4)
    assert lr_at(1, spec) == 1.2e-5
    late = SPEC.model_copy(update={"warmup_steps": 10, "decay_steps": 5})
    assert lr_at(9, late) == pytest.approx(1.2e-4)
    assert lr_at(10, late) == 1.2e-5
